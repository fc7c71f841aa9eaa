"""Commands of ingest nodes and their clusters."""
