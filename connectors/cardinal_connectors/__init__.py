"""Ready-made feeds of blocks for `cardinal produce`, found by URL scheme."""

from cardinal.feeds import BlockFeed

__all__ = ["BlockFeed"]
