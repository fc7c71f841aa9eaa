"""Values of a block, and their decoding from payloads."""
