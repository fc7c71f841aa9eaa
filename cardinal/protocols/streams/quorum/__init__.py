"""Blocks that several producers agree on."""
