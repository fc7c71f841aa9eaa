"""Blocks of a node's chain: fetching, ancestry, backfill, planning."""
