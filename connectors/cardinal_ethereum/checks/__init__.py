"""Checks of a block: hashes, roots, and proofs of its state delta."""
