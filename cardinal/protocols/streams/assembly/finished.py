"""Blocks that are finished with, so that late copies of their messages are known again and compared.

Rules:

1. A hash is known for ``window`` blocks below the head, whatever became of the block.
2. What was held of a completed block is kept for comparing for as long, within a bound in bytes; the blocks that were
   finished first lose it first. Then their late copies are known, and no longer compared.
3. The hashes themselves are bounded too: numbers come from the wire and may be anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from .block import Candidate, OpenBlock

HASHES_MAX: Final = 100_000
_SLACK: Final = 1000


class FinishedBlock:
    """What is remembered of a block. ``held`` and ``candidate`` are None where nothing is left to compare with."""

    __slots__ = ("candidate", "held", "number", "reason")

    def __init__(
        self,
        number: int,
        held: OpenBlock | None = None,
        candidate: Candidate | None = None,
        reason: str = "",
    ) -> None:
        self.number = number
        self.held = held
        self.candidate = candidate
        self.reason = reason

    def release(self) -> int:
        """Let go what is held; returns its bytes."""
        size = 0 if self.held is None else self.held.size
        self.held = self.candidate = None
        return size


class FinishedBlocks:
    """See the module. ``max_bytes`` bounds what is kept for comparing."""

    def __init__(self, window: int, max_bytes: int) -> None:
        self._window = window
        self._max_bytes = max_bytes
        self._blocks: dict[bytes, FinishedBlock] = {}
        self._holding: dict[bytes, FinishedBlock] = {}
        self._by_number: dict[int, dict[bytes, None]] = {}
        self._numbers: list[int] = []
        self._bytes = 0
        self.get = self._blocks.get
        """The block with this hash, or None."""

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether a block with this hash is finished with."""
        return block_hash in self._blocks

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Number and hash of every block."""
        return ((block.number, block_hash) for block_hash, block in self._blocks.items())

    @property
    def held_bytes(self) -> int:
        """What is kept for comparing."""
        return self._bytes

    def add(self, block_hash: bytes, block: FinishedBlock) -> None:
        """Remember a block."""
        self._blocks[block_hash] = block
        level = self._by_number.get(block.number)
        if level is None:
            self._by_number[block.number] = {block_hash: None}
            heapq.heappush(self._numbers, block.number)
            if len(self._numbers) > 2 * len(self._by_number) + _SLACK:
                self._numbers = sorted(self._by_number)  # a sorted list is a heap
        else:
            level[block_hash] = None
        if block.held is not None:
            self._holding[block_hash] = block
            self._bytes += block.held.size
            while self._bytes > self._max_bytes:
                oldest = next(iter(self._holding))
                self._bytes -= self._holding.pop(oldest).release()
        if len(self._blocks) > HASHES_MAX:
            self._forget(next(iter(self._blocks)))

    def head_moved(self, number: int) -> None:
        """Forget what lies more than the window below the head."""
        while self._numbers and self._numbers[0] < number - self._window:
            for block_hash in tuple(self._by_number.get(heapq.heappop(self._numbers), ())):
                self._forget(block_hash)

    def forget(self, block_hash: bytes) -> None:
        """Know nothing of this block any more."""
        if block_hash in self._blocks:
            self._forget(block_hash)

    def _forget(self, block_hash: bytes) -> None:
        block = self._blocks.pop(block_hash)
        if self._holding.pop(block_hash, None) is not None:
            self._bytes -= block.release()
        level = self._by_number[block.number]
        del level[block_hash]
        if not level:
            del self._by_number[block.number]  # its entry in the heap goes when it comes up
