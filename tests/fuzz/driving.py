"""Drives a follower over records as a consumer's transport would; after every step somebody may look at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from cardinal.protocols.streams import ChainUpdate, Follower, Record

STEP = 500


def steps(records: Iterable[Record], size: int = STEP) -> Iterator[list[Record]]:
    records = iter(records)
    while part := list(islice(records, size)):
        yield part


class Drive:
    """One consumer, which goes back in its topics when it wants to.

    Arguments:
        follower: what is driven.
        again: the same records once more, from the first one on.
        channel: what comes on a reorg channel's topic while it is read.
        watch: called after every step.

    """

    def __init__(
        self,
        follower: Follower,
        again: Callable[[], Iterable[Record]] = tuple,
        watch: Callable[[], None] = lambda: None,
        channel: Callable[[str], list[Record]] = lambda _topic: [],
    ) -> None:
        self.follower = follower
        self.again = again
        self.watch = watch
        self.channel = channel
        self.updates: list[ChainUpdate] = []
        self.events: Counter[str] = Counter()
        self.records = self.reread = 0
        self._positions: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}

    def run(self, records: Iterable[Record], size: int = STEP) -> None:
        for part in steps(records, size):
            self.records += len(part)
            self._read(part, size)
            for topic in self.follower.channels:
                self._positions.setdefault((topic, 0), 0)
                self._read(self.channel(topic), size)
        for _ in range(3):  # watermarks are taken and passed
            self._read([], size)

    def _read(self, part: list[Record], size: int) -> None:
        begin = self._step(part)
        while begin is not None:
            begin = self._rewind(begin, size)

    def _rewind(self, places: Mapping[tuple[str, int], int], size: int) -> Mapping[tuple[str, int], int] | None:
        """Read from there to where the reading stood, or until the follower wants to go back once more."""
        self._positions |= places
        positions, ends = dict(self._positions), dict(self._ends)
        again = (
            record
            for record in islice(self.again(), self.records)
            if positions[record[:2]] <= record.offset < ends[record[:2]]
        )
        for chunk in steps(again, size):
            self.reread += len(chunk)
            if (begin := self._step(chunk)) is not None:
                return begin
        return self._step([])

    def _step(self, part: list[Record]) -> Mapping[tuple[str, int], int] | None:
        for record in part:
            self._positions[record[:2]] = record.offset + 1
            self._ends[record[:2]] = max(record.offset + 1, self._ends.get(record[:2], 0))
        step = self.follower.step(part, self._positions, dict(self._ends))
        self.events.update(type(item).__name__ for item in step.items)
        self.updates += step.updates
        self.watch()
        return step.requests.rewind
