"""Ethereum-like chains."""
