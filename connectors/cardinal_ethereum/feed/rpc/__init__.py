"""JSON-RPC client of a node: transports, batches, credentials."""
