"""State deltas: evidence from a node, and their proof."""
