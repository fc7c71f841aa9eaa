"""Keeping partitions in step: which of them to pause while a reader catches up.

A block lies in many partitions. A reader that runs ahead in one of them holds the parts of many open blocks in memory
while it waits for the rest. So partitions that are far ahead of the slowest one are paused: by the times of their
records, which cost nothing to compare; or by the numbers of their blocks, where the times prove to be wrong.

Rules:

1. The slowest partition that still has something to deliver is never paused: nothing can stand still.
2. A partition at its end is neither slow nor ahead.
3. To pause costs what was fetched already, so it takes one whole window to be paused and less than half to go on.
4. Clocks are wrong where the times of a partition go back by more than a window, or where one that is far ahead by its
   times stands more than a window of blocks below one that is behind. Once they were wrong they are trusted no more:
   by a wrong clock one partition after the other is read to its end, and nearly all blocks are open at once.
5. Right clocks are not enough where blocks are small and many lie in a window of time: where a quarter of the room of
   whoever assembles them is taken, numbers decide from then on, too.
6. By numbers the window is a part of the room that is left. It is wide while there is much: one fetch brings thousands
   of records, and who pauses within them fetches the same again and again. (Measured on 12,000 blocks in 20 partitions:
   28 s with a window of 256 blocks, 9 s with 2,500 that shrink.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from .heights import Heights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Row

_WINDOW_MS: Final = 2_000
_ROOM_BLOCKS: Final = 10_000
_PART: Final = 4
_LEAST: Final = 0.05
"""Of a window: what is left of it where there is no room."""
_MANY: Final = 0.25
_CROWDED: Final = 0.5
_FAR: Final = 16
"""Windows: times of rows are those of records near by, and a few seconds apart prove nothing against a clock."""
_SAMPLE: Final = 16
_FEW: Final = 256


@runtime_checkable
class Unasked(Protocol):
    """A source that a reader need not wait for: it knows by itself, or asks its server beside the reading.

    A reader at the head waits for nothing but records: whatever it asked for in between, a block would wait for.
    """

    def at_end(self) -> frozenset[Partition]:
        """The partitions whose end was delivered, as far as the server has told with the records. A hint, no proof."""
        ...

    def look_later(self) -> Future[tuple[Partition, ...]]:
        """What :meth:`cardinal.transports.base.Source.partitions` gives, asked for on another thread."""
        ...

    def watermarks_later(self, *, look: bool) -> Future[dict[Partition, tuple[int, int]]]:
        """What :meth:`cardinal.transports.base.Source.watermarks` gives, asked for on another thread.

        Arguments:
            look: after a look for partitions.

        """
        ...


class Pace:
    """Follows what is read, and names the partitions to pause.

    Arguments:
        window_ms: how far ahead of the slowest a partition may be, while times are trusted.
        room: how many blocks may be open, of which a window is a part where they are not.

    Attributes:
        paused: what is paused now; whoever pauses says so here.
        heights: what blocks' numbers are asked of.
        fullness: how much of the room for open blocks is taken, 0 to 1.
        by_number: whether numbers decide.

    """

    def __init__(self, window_ms: int = _WINDOW_MS, room: int = _ROOM_BLOCKS) -> None:
        self._window = window_ms
        self._window_blocks = max(1, room // _PART)
        self._times: dict[Partition, int] = {}
        self.heights = Heights()
        self.fullness: Callable[[], float] = lambda: 0.0
        self.by_number = False
        self.paused: frozenset[Partition] = frozenset()

    def restart(self) -> None:
        """The partitions are read from other offsets from now on; nothing is paused."""
        self._times.clear()
        self.heights.restart()
        self.paused = frozenset()

    @property
    def strict(self) -> bool:
        """Whether there is little room: then one looks after every read, and reads little at a time."""
        return self.by_number and self.fullness() > _CROWDED

    def seen(self, records: Sequence[Row]) -> None:
        """Take note of records read: of a few all, of many a sample, since many come in runs of one partition."""
        if self.by_number:
            self.heights.seen(records)
            return
        sample = records if len(records) < _FEW else (*records[::_SAMPLE], *records[-1:])
        for record in sample:
            where, time = (record[0], record[1]), record[5]
            if time < self._times.get(where, time) - self._window:
                self.by_number = True
            self._times[where] = time
        self.heights.seen(sample)

    def ahead(self, behind: Iterable[Partition]) -> frozenset[Partition]:
        """The partitions to pause, where these have something to deliver; everything else is to be read."""
        behind = list(behind)
        heights = self.heights.stand(behind)
        if not self.by_number:
            times = {where: self._times.get(where, 0) for where in behind}
            found = self._far(times, self._window)
            if self.fullness() <= _MANY and not self._contradicted(found, times, heights):
                return found
            self.by_number = True
        return self._far(heights, int(self._window_blocks * max(_LEAST, 1 - self.fullness())))

    def _far(self, places: Mapping[Partition, int], window: int) -> frozenset[Partition]:
        slowest = min(places.values(), default=0)
        return frozenset(
            where
            for where, place in places.items()
            if place - slowest > (window // 2 if where in self.paused else window)
        )

    def _contradicted(
        self, found: Iterable[Partition], times: Mapping[Partition, int], heights: Mapping[Partition, int]
    ) -> bool:
        """Whether one of these, which are ahead by their times, is far behind by the numbers of its blocks.

        Where it stands must be known; where another one stands may be known, or be higher than is known.
        """
        return any(
            times[other] + _FAR * self._window < times[where] and heights[where] + self._window_blocks < heights[other]
            for where in found
            if self.heights.knows(where)
            for other in times
            if self.heights.knew(other)
        )
