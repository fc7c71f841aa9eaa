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

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record

_WINDOW_MS: Final = 2_000
_SAMPLE: Final = 16


class Pace:
    """Follows the times of the records read, and names the partitions to pause.

    Arguments:
        window_ms: how far ahead of the slowest a partition may be.

    """

    def __init__(self, window_ms: int = _WINDOW_MS) -> None:
        self._window = window_ms
        self._times: dict[Partition, int] = {}
        self.paused: frozenset[Partition] = frozenset()

    def seen(self, records: Sequence[Record]) -> None:
        """Take note of records read; a sample of them will do."""
        for record in (*records[::_SAMPLE], *records[-1:]):
            self._times[record.topic, record.partition] = record.timestamp_ms

    def ahead(
        self, positions: Mapping[Partition, int], watermarks: Mapping[Partition, tuple[int, int]]
    ) -> frozenset[Partition]:
        """The partitions to pause now; everything else is to be read."""
        waiting = [where for where, at in positions.items() if at < watermarks[where][1]]
        times = {where: self._times.get(where, 0) for where in waiting}
        self.paused = frozenset(self._far(times)) if times else frozenset()
        return self.paused

    def _far(self, times: Mapping[Partition, int]) -> Iterable[Partition]:
        slowest = min(times.values())
        for where, time in times.items():
            allowed = self._window // 2 if where in self.paused else self._window
            if time - slowest > allowed:
                yield where
