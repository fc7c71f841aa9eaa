"""Ingest node: publishers push blocks, it arbitrates, verifies, stores, acknowledges, and puts them on the topics."""
