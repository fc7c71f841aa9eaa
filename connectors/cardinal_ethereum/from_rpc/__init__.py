"""Blocks from JSON-RPC: structures, canonical bytes, payloads."""
