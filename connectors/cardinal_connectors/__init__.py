"""Ready-made feeds of blocks for `cardinal produce`, found by URL scheme."""

from .base import BlockFeed

__all__ = ["BlockFeed"]
