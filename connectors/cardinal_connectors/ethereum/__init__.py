"""Ethereum-like nodes over JSON-RPC."""
