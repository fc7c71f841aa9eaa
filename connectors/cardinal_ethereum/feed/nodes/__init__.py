"""Nodes of one chain: identity, health, pool, retries."""
