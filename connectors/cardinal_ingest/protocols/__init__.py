"""Protocols of ingest nodes: pure, each on its own."""
