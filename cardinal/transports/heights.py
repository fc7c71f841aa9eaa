"""How far partitions are read, told by the numbers of the blocks that they hold: no clock has a part in it.

Rules:

1. A message names its block, and whoever assembles blocks knows the number of each whose Batch has come. So a partition
   stands where its newest blocks do.
2. A block that nobody knows the number of lies above the Batches: each is one more than the one before, and higher than
   where the last of the partitions with Batches stood when it came.
3. Numbers may be lies, or of copies that come late: of a few the middle one counts.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cardinal.protocols.streams.types import Partition, Row

_KNOWN: Final = 5
_REMEMBERED: Final = 256
"""Blocks of a partition whose numbers are looked for: the newest."""


class _Stretch:
    """What a partition has brought, and the height at which it stands."""

    __slots__ = ("height", "known", "newest", "unknown")

    def __init__(self) -> None:
        self.height = 0
        self.newest = b""
        self.known: deque[int] = deque(maxlen=_KNOWN)
        self.unknown: deque[bytes] = deque(maxlen=_REMEMBERED)

    def bring(self, block_hash: bytes, batches: int) -> None:
        self.newest = block_hash
        self.unknown.append(block_hash)
        self.height = max(self.height, batches) + 1

    def passed(self) -> None:
        """Something that belongs to no block, a ping: it may have come long after the newest block."""
        if self.newest:
            self.newest = b""
            self.unknown.append(b"")

    def look(self, number_of: Callable[[bytes], int | None]) -> None:
        """Learn the numbers of its blocks."""
        newest = 0
        for place, block_hash in enumerate(self.unknown, 1):
            if (number := number_of(block_hash)) is not None:
                self.known.append(number)
                newest = place
        if newest:
            for _ in range(newest):
                self.unknown.popleft()
            self.height = median_low(self.known) + len(self.unknown)


class Heights:
    """See the module.

    Attributes:
        number_of: the number of a block, None where it is not known.

    """

    def __init__(self) -> None:
        self.number_of: Callable[[bytes], int | None] = lambda _block_hash: None
        self._stretches: dict[Partition, _Stretch] = {}
        self._with_batches: set[Partition] = set()
        self._batches = 0

    def restart(self) -> None:
        """Forget what was read."""
        self._stretches.clear()
        self._with_batches.clear()
        self._batches = 0

    def seen(self, records: Iterable[Row]) -> None:
        """Take note of records read, in order within each partition."""
        for record in records:
            key = record[3]
            where, block_hash = (record[0], record[1]), key[1:HASH_END]
            if len(key) < HASH_END or key[0] > BATCH_DELETE_MSG:
                if where in self._stretches:
                    self._stretches[where].passed()
                continue
            stretch = self._stretches.get(where)
            if stretch is None:
                stretch = self._stretches[where] = _Stretch()
            if block_hash != stretch.newest:
                stretch.bring(block_hash, self._batches)
            if key[0] == BATCH:
                self._with_batches.add(where)

    def stand(self, behind: Iterable[Partition]) -> dict[Partition, int]:
        """The heights at which these partitions stand, which have something to deliver; 0 where none was seen yet."""
        heights = dict.fromkeys(behind, 0)
        for where in heights.keys() & self._stretches.keys():
            stretch = self._stretches[where]
            stretch.look(self.number_of)
            heights[where] = stretch.height
        self._batches = min((heights[where] for where in heights.keys() & self._with_batches), default=0)
        return heights

    def knows(self, where: Partition) -> bool:
        """Whether the newest block of this partition is known, as of the last look."""
        return self.knew(where) and not self._stretches[where].unknown

    def knew(self, where: Partition) -> bool:
        """Whether a block of this partition was ever known; then it does not stand lower than was told."""
        return where in self._stretches and bool(self._stretches[where].known)
