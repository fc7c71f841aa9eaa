"""A development chain: deterministic, forking, with well-formed Ethereum blocks."""
