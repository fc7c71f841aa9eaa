"""Cardinal under faults: a producer and a consumer at work on a real broker while something is broken."""
