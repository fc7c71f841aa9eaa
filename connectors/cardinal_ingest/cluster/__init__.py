"""Ingest nodes that agree: their topics on Kafka, the claim log, and the promotion of agreed blocks."""
