"""A consumer without its transport: assembly, ordering, missing blocks, cursors."""
