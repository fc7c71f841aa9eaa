"""Cardinal Streams, the message layer: the protocol as values and pure functions."""
