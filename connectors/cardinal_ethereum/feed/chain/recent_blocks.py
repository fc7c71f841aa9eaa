"""Recent blocks of a feed, delivered or found published, by which a new block's parent is looked up.

Rules:

1. All branches are stored. When a node switches to another branch and back, nothing is delivered twice.
2. Closed under parents, down to the lowest stored number: if a block is on a node's chain, so are its stored ancestors.
3. The parent of the very first block is stored too, so that a sibling of the first block has a parent.
4. Bounded: blocks more than ``window`` below the highest are pruned.

Pure: no node, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from cardinal.protocols.streams.types import BlockRef


class _Known(NamedTuple):
    number: int
    total: int | None


class RecentBlocks:
    """Block hashes with their numbers and, where known, their total difficulty."""

    def __init__(self, published: Iterable[BlockRef], *, window: int) -> None:
        self._window = window
        self._blocks: dict[bytes, _Known] = {}
        self._heights: dict[int, set[bytes]] = defaultdict(set)
        self._lowest = 0
        for ref in published:
            self._store(ref, None)
        self.highest = max(self._heights, default=-1)
        self._lowest = min(self._heights, default=0)
        self._prune()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def numbers(self) -> list[int]:
        """The stored heights, ascending."""
        return sorted(self._heights)

    def oldest(self) -> BlockRef:
        """The lowest stored block."""
        number = min(self._heights)
        return BlockRef(number, min(self._heights[number]))

    def number(self, block_hash: bytes) -> int | None:
        """Number of a stored block, or None."""
        recent = self._blocks.get(block_hash)
        return None if recent is None else recent.number

    def total(self, block_hash: bytes) -> int | None:
        """Total difficulty of a stored block, or None."""
        recent = self._blocks.get(block_hash)
        return None if recent is None else recent.total

    def learn(self, block_hash: bytes, total: int) -> None:
        """Set the total difficulty of a stored block."""
        recent = self._blocks[block_hash]
        self._blocks[block_hash] = recent._replace(total=total)

    def add(self, ref: BlockRef, parent: bytes, *, total: int, difficulty: int) -> None:
        """Store a delivered block.

        Arguments:
            ref: the block.
            parent: its parent's hash, stored too if this is the first block.
            total: its total difficulty.
            difficulty: its own difficulty.

        """
        if not self._blocks and ref.number > 0:
            self._store(BlockRef(ref.number - 1, parent), total - difficulty)
            self._lowest = ref.number - 1
        self._store(ref, total)
        self.highest = max(self.highest, ref.number)
        self._prune()

    def _prune(self) -> None:
        while self.highest - self._lowest > self._window:
            for pruned in self._heights.pop(self._lowest, ()):
                del self._blocks[pruned]
            self._lowest += 1

    def _store(self, ref: BlockRef, total: int | None) -> None:
        self._blocks[ref.hash] = _Known(ref.number, total)
        self._heights[ref.number].add(ref.hash)
