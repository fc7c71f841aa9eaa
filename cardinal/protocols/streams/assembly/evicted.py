"""Evicted blocks: their names, and the offsets at which their messages begin.

A block of which a message was evicted cannot be completed from later records: the first copies are gone, and later ones
may differ. Its messages are skipped until they are re-read from the first one on. Only its Batch is taken, unless one
was evicted too: the number decides which blocks to keep, the parent which ones to re-read. The latest ``NAMED_MAX``
blocks are named, of all others together only the lowest offsets are held. ``distance`` records after it was evicted a
block is forgotten, and no message is re-read from farther back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cardinal.protocols.streams.types import Partition, Row, lowest

Link: TypeAlias = tuple[bytes, int]
"""A block's parent and its number."""
NAMED_MAX: Final = 8192
"""About 1 kB each."""


@dataclass(slots=True, eq=False)
class EvictedBlock:
    """One evicted block, at the number of records read before it was evicted.

    ``links`` has parent and number as its Batches give them, none where it was evicted without a Batch; ``positions``
    for every partition the lowest offset of its messages, also of those that were skipped since.
    """

    links: set[Link]
    positions: dict[Partition, int]
    at: int

    def skip(self, record: Row) -> None:
        """Note that a message of it was read and skipped."""
        partition, offset = (record[0], record[1]), record[2]
        if offset < self.positions.get(partition, offset + 1):
            self.positions[partition] = offset

    @property
    def lowest(self) -> int:
        """The lowest number that it may have, -1 where that is not known."""
        return min((number for _, number in self.links), default=-1)


class EvictedBlocks:
    """The evicted blocks of one assembler: ``most`` are named, for ``distance`` records."""

    def __init__(self, distance: int, most: int = NAMED_MAX) -> None:
        self._distance = distance
        self._most = most
        self.records = 0
        """Records read so far."""
        self._named: dict[bytes, EvictedBlock] = {}
        self._others: EvictedBlock | None = None
        self.get = self._named.get

    def __len__(self) -> int:
        """The number of evicted blocks that may be re-read; all without a name count as one."""
        return len(self._named) + (self._others is not None)

    @property
    def unnamed(self) -> bool:
        """True while there are more than are named."""
        return self._others is not None

    @property
    def lowest(self) -> int | None:
        """The lowest number that one may have: -1 where one has no Batch, None where there is none."""
        if self._others is not None:
            return -1
        return min((block.lowest for block in self._named.values()), default=None)

    def any(self, test: Callable[[bytes, EvictedBlock], bool]) -> bool:
        """True when a test holds for an evicted block, or when there are some without a name."""
        return self._others is not None or any(test(*item) for item in self._named.items())

    def add(self, block_hash: bytes, links: Iterable[Link], positions: Mapping[Partition, int]) -> None:
        """A block was evicted."""
        before = self._named.pop(block_hash, None)
        if before is not None:
            links, positions = before.links.union(links), lowest(before.positions, positions)
        self._named[block_hash] = EvictedBlock(set(links), dict(positions), self.records)
        if len(self._named) > self._most:
            other = self._named.pop(next(iter(self._named)))
            others = () if self._others is None else (self._others.positions,)
            self._others = EvictedBlock(set(), lowest(other.positions, *others), other.at)

    def linked(self, block_hash: bytes, link: Link) -> None:
        """Note parent and number of a Batch that was taken: of several copies each may name others."""
        block = self._named.get(block_hash)
        if block is not None:
            block.links.add(link)

    def discard(self, block_hash: bytes) -> None:
        """A block needs no re-reading."""
        self._named.pop(block_hash, None)

    def read(self, records: int) -> None:
        """Count records read, and forget old evictions."""
        self.records += records
        oldest = self.records - self._distance
        while self._named and next(iter(self._named.values())).at < oldest:
            self.discard(next(iter(self._named)))
        if self._others is not None and self._others.at < oldest:
            self._others = None

    def floor(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """The offsets from which a reader at ``positions`` re-reads all evicted messages."""
        others = () if self._others is None else (self._others.positions,)
        return self._reach(lowest(*others, *(block.positions for block in self._named.values())), positions)

    def reread(
        self, positions: Mapping[Partition, int], needed: Callable[[bytes, EvictedBlock], bool], *, others: bool
    ) -> tuple[dict[Partition, int], frozenset[bytes]]:
        """The offsets from which the needed blocks are re-read, and their hashes; all between are evicted no more.

        Where none is needed, and ``others`` is true, those without a name are re-read.
        """
        wanted = {block_hash: block.positions for block_hash, block in self._named.items() if needed(block_hash, block)}
        floor = lowest(*wanted.values())
        if others and not wanted and self._others is not None:
            floor, self._others = self._others.positions, None
        begin = self._reach(floor, positions)
        for block_hash, block in list(self._named.items()):
            found = self._reach(block.positions, positions)
            if all(begin.get(partition, offset + 1) <= offset for partition, offset in found.items()):
                del self._named[block_hash]
        return begin, frozenset(wanted)

    def head_moved(self, number: int) -> None:
        """Forget the blocks with lower numbers: the chain is past them."""
        for block_hash, block in list(self._named.items()):
            if block.links and max(at for _, at in block.links) < number:
                self.discard(block_hash)

    def _reach(self, floor: Mapping[Partition, int], positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """These offsets, as far back as ``distance`` allows."""
        return {
            partition: max(offset, positions.get(partition, offset) - self._distance)
            for partition, offset in floor.items()
        }
