"""Verification of blocks, here and in worker processes."""
