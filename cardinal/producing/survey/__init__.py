"""A producer's survey of the topics at a start: where they end, and what of a block is on them."""
