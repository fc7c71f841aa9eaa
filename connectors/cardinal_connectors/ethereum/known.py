"""The blocks that a feed has given, or found published: what a new block's parent is looked up in.

Rules:

1. Branches are kept side by side. A node that goes from one branch to another and back is not given again what it
   was given before.
2. Closed under parents, down to the lowest number that is remembered: where one is on a node's chain, so are its
   remembered ancestors.
3. The parent of the very first block is remembered too, so that a sibling of the first block has its place.
4. Bounded: blocks more than ``window`` below the highest are forgotten.

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


class KnownBlocks:
    """Hashes with their numbers and, where it was learned, their total difficulty."""

    def __init__(self, published: Iterable[BlockRef], *, window: int) -> None:
        self._window = window
        self._blocks: dict[bytes, _Known] = {}
        self._heights: dict[int, set[bytes]] = defaultdict(set)
        self._lowest = 0
        for ref in published:
            self._remember(ref, None)
        self.highest = max(self._heights, default=-1)
        self._lowest = min(self._heights, default=0)
        self._forget()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def numbers(self) -> list[int]:
        """The heights at which anything is remembered, ascending."""
        return sorted(self._heights)

    def oldest(self) -> BlockRef:
        """The lowest block that is remembered."""
        number = min(self._heights)
        return BlockRef(number, min(self._heights[number]))

    def number(self, block_hash: bytes) -> int | None:
        """The number of a block that is remembered."""
        known = self._blocks.get(block_hash)
        return None if known is None else known.number

    def total(self, block_hash: bytes) -> int | None:
        """The total difficulty of a block, where both are remembered."""
        known = self._blocks.get(block_hash)
        return None if known is None else known.total

    def learn(self, block_hash: bytes, total: int) -> None:
        """Remember the total difficulty of a block that is remembered already."""
        known = self._blocks[block_hash]
        self._blocks[block_hash] = known._replace(total=total)

    def add(self, ref: BlockRef, parent: bytes, *, total: int, difficulty: int) -> None:
        """Remember a block that was given.

        Arguments:
            ref: the block.
            parent: its parent's hash, remembered with it where this is the first block.
            total: its total difficulty.
            difficulty: its own difficulty.

        """
        if not self._blocks and ref.number > 0:
            self._remember(BlockRef(ref.number - 1, parent), total - difficulty)
            self._lowest = ref.number - 1
        self._remember(ref, total)
        self.highest = max(self.highest, ref.number)
        self._forget()

    def _forget(self) -> None:
        while self.highest - self._lowest > self._window:
            for forgotten in self._heights.pop(self._lowest, ()):
                del self._blocks[forgotten]
            self._lowest += 1

    def _remember(self, ref: BlockRef, total: int | None) -> None:
        self._blocks[ref.hash] = _Known(ref.number, total)
        self._heights[ref.number].add(ref.hash)
