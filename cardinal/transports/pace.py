"""Keeping partitions in step: which of them to pause while a reader catches up.

A block lies in many partitions. A reader that runs ahead in one of them holds the parts of many open blocks in memory
while it waits for the rest. So partitions that are far ahead of the slowest one, by the time of their records, are
paused.

Rules:

1. The slowest partition that still has something to deliver is never paused: nothing can stand still.
2. A partition at its end is neither slow nor ahead.
3. To pause costs what was fetched already, so it takes one whole window to be paused and less than half to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Row

_WINDOW_MS: Final = 2_000
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

    def watermarks_later(self) -> Future[dict[Partition, tuple[int, int]]]:
        """What :meth:`cardinal.transports.base.Source.watermarks` gives after a look, asked for on another thread."""
        ...


class Pace:
    """Follows the times of the records read, and names the partitions to pause.

    Arguments:
        window_ms: how far ahead of the slowest a partition may be.

    Attributes:
        paused: what is paused now; whoever pauses says so here.

    """

    def __init__(self, window_ms: int = _WINDOW_MS) -> None:
        self._window = window_ms
        self._times: dict[Partition, int] = {}
        self.paused: frozenset[Partition] = frozenset()

    def seen(self, records: Sequence[Row]) -> None:
        """Take note of records read: of a few all, of many a sample, since many come in runs of one partition."""
        for record in records if len(records) < _FEW else (*records[::_SAMPLE], *records[-1:]):
            self._times[record[0], record[1]] = record[5]

    def ahead(self, behind: Iterable[Partition]) -> frozenset[Partition]:
        """The partitions to pause, where these have something to deliver; everything else is to be read."""
        times = {where: self._times.get(where, 0) for where in behind}
        return frozenset(self._far(times)) if times else frozenset()

    def _far(self, times: Mapping[Partition, int]) -> Iterable[Partition]:
        slowest = min(times.values())
        for where, time in times.items():
            allowed = self._window // 2 if where in self.paused else self._window
            if time - slowest > allowed:
                yield where
