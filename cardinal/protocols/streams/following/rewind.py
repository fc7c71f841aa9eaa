"""Recovery from eviction: rewind to the first offsets of evicted messages, and read on, as a restart does.

1. The source is rewound when an evicted block may continue the chain and everything readable was read.
2. A rewind helped when it delivered a block, or left fewer blocks evicted than any before it. One that did not is
   repeated only after 2, 4, 8… new records, a delivered block counting as one: it frees capacity. The first such rewind
   is repeated at once: it may have held Batches in place of content that it evicted. Where nothing comes for long, one
   new record is enough: a stream that has ended is delivered to its end.
3. A rewind for blocks without a name that did not help is repeated only after as many records as it re-read, unless
   a block is certainly needed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Final

from cardinal.protocols.streams.assembly.evicted import EvictedBlock, EvictedBlocks
from cardinal.protocols.streams.types import Partition

_IDLE_PAUSE: Final = 64
"""Up to this pause a stream without new records is rewound in vain."""


class Rewind:
    """Rewinds of one source, for these evicted blocks. The longest pause is twice ``distance`` records."""

    def __init__(self, evicted: EvictedBlocks, distance: int) -> None:
        self._evicted = evicted
        self._distance = distance
        self._reread: int | None = None
        """The lowest number of the blocks that are being re-read."""
        self._pause = 0
        self._delivered = 0
        """Blocks delivered since the last rewind began."""
        self._ended = 0
        """Records that were read when the last rewind ended."""
        self._back_at: Mapping[Partition, int] = {}
        """The positions that the reader was last rewound from; empty once it is back there."""
        self._unnamed_after = 0
        """Records to be read before the next rewind for blocks without a name."""
        self._length = 0
        """Records that a rewind for blocks without a name re-reads."""
        self._fewest = 0
        """The fewest evicted blocks before or after any rewind; 0 where none was evicted."""

    @property
    def in_progress(self) -> bool:
        """True until the reading is back at the positions that it was rewound from."""
        return bool(self._back_at)

    @property
    def in_vain(self) -> bool:
        """True when the last two rewinds did not help."""
        return self._pause > 1

    def reaches(self, number: int) -> bool:
        """True when an evicted block, or one that is being re-read, may have this number or a lower one."""
        return any(lowest is not None and lowest <= number for lowest in (self._evicted.lowest, self._reread))

    def delivered(self, blocks: int) -> None:
        """Count delivered blocks, which free capacity."""
        self._delivered += blocks

    def is_back(self, positions: Mapping[Partition, int]) -> bool:
        """True when the reading is back at the positions that it was rewound from."""
        at = self._back_at
        return bool(at) and all(positions.get(partition, offset) >= offset for partition, offset in at.items())

    def judge(self) -> None:
        """End a rewind."""
        left = len(self._evicted)
        helped = self._delivered > 0 or left < self._fewest
        self._fewest = min(left, self._fewest)
        self._pause = 0 if helped else min(max(1, 2 * self._pause), 2 * self._distance)
        self._ended, self._back_at = self._evicted.records, {}
        if self._length:
            self._unnamed_after = self._ended + (0 if helped else self._length)
        self._length = 0
        self._reread = None

    def due(
        self,
        positions: Mapping[Partition, int],
        needed: Callable[[bytes, EvictedBlock], bool],
        *,
        wanted: bool,
        waited: bool,
    ) -> tuple[Mapping[Partition, int], Container[bytes]] | None:
        """The offsets to rewind to now, and the blocks that this is for; None where it is too early.

        ``needed`` chooses evicted blocks. ``wanted``: one is certainly needed. ``waited``: nothing came for long.
        """
        passed = self._evicted.records - self._ended + self._delivered
        early = passed == 0 and self._pause > _IDLE_PAUSE if waited else passed < self._pause // 2 * 2
        if self._back_at or early:
            return None
        before, lowest, unnamed = len(self._evicted), self._evicted.lowest, self._evicted.unnamed
        others = wanted or waited or self._evicted.records >= self._unnamed_after
        begin, blocks = self._evicted.reread(positions, needed, others=others)
        if not begin:
            return None
        if unnamed and not self._evicted.unnamed:
            self._length = sum(positions.get(partition, at) - at for partition, at in begin.items())
        self._fewest = self._fewest or before
        self._reread, self._delivered = lowest, 0
        self._back_at = {partition: positions[partition] for partition in begin if partition in positions}
        return begin, blocks
