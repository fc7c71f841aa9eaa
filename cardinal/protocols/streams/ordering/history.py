"""Hashes of the delivered chain far below the fork graph, for reorgs through a channel.

The blocks have consecutive numbers; a ring that reaches below a given start restarts the history. It is bounded, and
can be extended downwards by the parent links of older Batches (:class:`Parents`, :meth:`ChainHistory.recall`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cardinal.protocols.streams.types import BlockRef

from .forktree import Node


class ChainHistory:
    """Hashes of the delivered chain. ``most``: blocks that are remembered at least; 1.25 times as many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first = 0
        self._hashes: list[bytes] = []

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._hashes)

    def __contains__(self, block_hash: bytes) -> bool:
        """True when this block is one of them; it is searched from end to end."""
        return block_hash in self._hashes

    @property
    def lowest(self) -> BlockRef | None:
        """The lowest block that is remembered."""
        return BlockRef(self._first, self._hashes[0]) if self._hashes else None

    def at(self, number: int) -> bytes | None:
        """The hash of the delivered block with this number."""
        index = number - self._first
        return self._hashes[index] if 0 <= index < len(self._hashes) else None

    def upwards(self, number: int) -> Iterator[BlockRef]:
        """The delivered blocks from this number on."""
        for index in range(number - self._first, len(self._hashes)):
            yield BlockRef(self._first + index, self._hashes[index])

    def append(self, block: BlockRef | Node) -> None:
        """Add a block that is delivered on top."""
        hashes = self._hashes
        if block.number != self._first + len(hashes):
            self._first = block.number
            hashes.clear()
        hashes.append(block.hash)
        if len(hashes) > self._most + self._most // 4:
            cut = len(hashes) - self._most
            del hashes[:cut]
            self._first += cut

    def cut(self, count: int) -> None:
        """Remove the highest ``count`` blocks."""
        del self._hashes[max(0, len(self._hashes) - count) :]

    def recalls(self, number: int) -> bool:
        """True when :meth:`recall` may lead down to this number: the history is bounded."""
        return self._first - number <= self._most - len(self)

    def recall(self, parents: Mapping[bytes, bytes], floor: int) -> int:
        """Extend the history by parent links of any blocks, down to ``floor``; returns the number of blocks added."""
        found: list[bytes] = []
        capacity = min(self._first - floor, self._most - len(self))
        current = parents.get(self._hashes[0]) if self._hashes else None
        seen = set(self._hashes)  # no chain comes back to itself
        while current is not None and len(found) < capacity and current not in seen:
            found.append(current)
            seen.add(current)
            current = parents.get(current)
        self._hashes[:0] = reversed(found)
        self._first -= len(found)
        return len(found)


class Parents:
    """Parent links of Batches, hash to parent hash; a hash whose Batches disagree has none."""

    def __init__(self) -> None:
        self.links: dict[bytes, bytes] = {}
        self._disputed: set[bytes] = set()

    def add(self, block_hash: bytes, parent: bytes) -> None:
        """Add the link of one more Batch."""
        if block_hash not in self._disputed and self.links.setdefault(block_hash, parent) != parent:
            del self.links[block_hash]
            self._disputed.add(block_hash)

    def lead(self, block: BlockRef, number: int) -> bool:
        """True when the links lead from a block down to this number."""
        current = block.hash
        for _ in range(block.number - number):
            if current not in self.links:
                return False
            current = self.links[current]
        return True
