"""Partition sync: partitions that are read far ahead of others are paused while a reader catches up.

A reader that runs ahead in one partition holds the parts of many open blocks in memory while it waits for the rest. So
partitions far ahead of the slowest one are paused, by the numbers of the blocks whose messages they hold.

1. The slowest partition that still has something to deliver is never paused. One at its end is neither slow nor ahead.
2. A pause discards what was fetched already, so a partition is paused when it is a window ahead, and resumed at half of
   that. The window is a part of the capacity for open blocks that is left, wide while there is much of it. (Measured on
   12,000 blocks in 20 partitions: 28 s with a window of 256 blocks, 9 s with 2,500 that shrink.)
3. A message names its block, and the number of each block is known whose Batch was read. A block without a known number
   is above the Batches: each is one more than the one before, and higher than the slowest partition with Batches.
   Numbers may be false, or of late copies: the median of a few counts.
4. The ends of partitions are some seconds old: what came since does not count as something to deliver.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median_low
from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cardinal.consuming.watermarks import Watermarks
    from cardinal.protocols.streams.types import Partition, Row

POLL_RECORDS: Final = 2_000
"""Of one poll. Five times as many were read 10 to 20 % slower: a call's result no longer fits the core's cache."""
_LOOK_SECONDS: Final = 0.25
_PART: Final = 4
"""The window is the capacity divided by this."""
_LEAST: Final = 0.05
"""Of a window: what is left of it where there is no capacity."""
_CROWDED: Final = 0.5
_SAMPLE: Final = 16
"""Sampling interval in many records, while that misses few blocks."""
_NUMBERS: Final = 5
_BLOCKS: Final = 256
"""Newest blocks of a partition whose numbers are looked up."""


class Heights:
    """The height of each partition.

    The number of the newest block that it holds, by what ``number_of`` a block returns.
    """

    def __init__(self) -> None:
        self.number_of: Callable[[bytes], int | None] = lambda _block_hash: None
        self._stretches: dict[Partition, _Stretch] = {}
        self._with_batches: set[Partition] = set()
        self._batches = 0
        self._step = _SAMPLE

    def clear(self) -> None:
        """Forget what was read."""
        self._stretches.clear()
        self._with_batches.clear()
        self._batches = 0

    def read(self, records: Sequence[Row]) -> None:
        """Take note of records, in order within each partition: of many a sample, as long as blocks are large."""
        many = len(records) > _BLOCKS
        sample = records[:: self._step] if many else records
        blocks = sum(map(self._note, sample))
        if many:
            self._step = 1 if blocks * 4 > len(sample) else _SAMPLE

    def of(self, behind: Iterable[Partition]) -> dict[Partition, int]:
        """The heights of these partitions, which have something to deliver; 0 where nothing was read yet."""
        heights = dict.fromkeys(behind, 0)
        for tp in heights.keys() & self._stretches.keys():
            heights[tp] = self._stretches[tp].look_up(self.number_of)
        self._batches = min((heights[tp] for tp in heights.keys() & self._with_batches), default=0)
        return heights

    def _note(self, record: Row) -> bool:
        """Note a record; return True where its block is a new one of the partition."""
        tp, key = (record[0], record[1]), record[3]
        stretch = self._stretches.get(tp)
        if len(key) < HASH_END or key[0] > BATCH_DELETE_MSG:
            if stretch is not None:
                stretch.pass_other()
            return False
        if stretch is None:
            stretch = self._stretches[tp] = _Stretch()
        if key[0] == BATCH:
            self._with_batches.add(tp)
        block_hash = key[1:HASH_END]
        if block_hash == stretch.newest:
            return False
        stretch.add(block_hash, self._batches)
        return True


class _Stretch:
    """Newest blocks of a partition."""

    __slots__ = ("_height", "_numbers", "_unknown", "newest")

    def __init__(self) -> None:
        self.newest = b""
        self._height = 0
        self._numbers: deque[int] = deque(maxlen=_NUMBERS)
        self._unknown: deque[bytes] = deque(maxlen=_BLOCKS)

    def add(self, block_hash: bytes, batches: int) -> None:
        self.newest = block_hash
        self._unknown.append(block_hash)
        self._height = max(self._height, batches) + 1

    def pass_other(self) -> None:
        """A record of no block, a ping: it may have come long after the newest block."""
        if self.newest:
            self.newest = b""
            self._unknown.append(b"")

    def look_up(self, number_of: Callable[[bytes], int | None]) -> int:
        """The height, after a look for the numbers of its blocks."""
        newest = 0
        for place, block_hash in enumerate(self._unknown, 1):
            if (number := number_of(block_hash)) is not None:
                self._numbers.append(number)
                newest = place
        if newest:
            for _ in range(newest):
                self._unknown.popleft()
            self._height = median_low(self._numbers) + len(self._unknown)
        return self._height


class PartitionSync:
    """Pauses partitions of a source, so that not more than ``capacity`` blocks are open.

    Attributes:
        paused: what is paused now.
        limit: records that one poll returns at most.

    """

    def __init__(self, watermarks: Watermarks, capacity: int) -> None:
        self.paused: frozenset[Partition] = frozenset()
        self.limit = POLL_RECORDS
        self._watermarks = watermarks
        self._source = source = watermarks.source
        self._window = max(1, capacity // _PART)
        self._heights = Heights()
        self._fullness: Callable[[], float] = lambda: 0.0
        self._apart = not source.capabilities.single_log
        self._looked = 0.0
        self._brought = 0

    def use(self, number_of: Callable[[bytes], int | None], fullness: Callable[[], float]) -> None:
        """Use these numbers of blocks, and this share (0 to 1) of the capacity for open blocks that is taken."""
        self._heights.number_of = number_of
        self._fullness = fullness

    def read(self, records: Sequence[Row]) -> None:
        """Take note of the records of a poll."""
        self._brought = len(records)
        if self._apart:
            self._heights.read(records)

    def pause(self) -> None:
        """Pause what is ahead by what was read before, which is assembled by now."""
        if not self._apart or not (self._brought or self.paused):
            return
        due = time.monotonic() - self._looked >= _LOOK_SECONDS
        # Where there is little capacity, a look after every read.
        if not due and self._fullness() <= _CROWDED and self._brought < self.limit // 2:
            return
        positions, ended = self._source.positions(), self._source.at_end()
        if not self.paused and not self.ahead(positions.keys() - ended):
            return
        if due:
            self._looked = time.monotonic()
        behind = {tp for tp, (_, end) in self._watermarks.newest.items() if positions.get(tp, end) < end}
        paused = self.ahead(behind - ended)
        if paused != self.paused:
            self.paused = paused
            self._source.pause(paused)

    def ahead(self, behind: Iterable[Partition]) -> frozenset[Partition]:
        """The partitions to pause of these, which have something to deliver."""
        heights = self._heights.of(behind)
        slowest = min(heights.values(), default=0)
        window = int(self._window * max(_LEAST, 1 - self._fullness()))
        return frozenset(
            tp for tp, height in heights.items() if height - slowest > (window // 2 if tp in self.paused else window)
        )

    def rewound(self) -> None:
        """Pause nothing: the source reads from other offsets."""
        self._heights.clear()
        self.paused = frozenset()
