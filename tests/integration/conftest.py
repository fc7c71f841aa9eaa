"""Brokers with TLS and logins, one of each kind for all files about security."""

from secured_brokers import certificates, folder, secured_broker

__all__ = ["certificates", "folder", "secured_broker"]
