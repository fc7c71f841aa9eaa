"""Publishing to ingest nodes: what :class:`.publisher.Publisher` is made of."""
