"""Log of a folder's segments: its partitions, their starts and ends, and the place of an offset.

A place is a segment's number and a position in its file. Places order all records of the log; each partition's offsets
ascend along them. Segments' headers say the next offset of every partition at their beginning, so a place is found
by halving over headers, then by the segment's index, then by reading.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import LogDamagedError

from .segments import Segments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition

    from .segments import Block

_FAR: Final = 1 << 62
_DOUBT_PAUSE: Final = 0.02


class Place(NamedTuple):
    """Where something lies: a segment and a position in its file."""

    number: int
    at: int


class Following(NamedTuple):
    """The next segment: its first block, its next offsets there, and whether nothing was removed before it."""

    place: Place
    offsets: Mapping[Partition, int]
    adjoins: bool


class Log:
    """Log of a folder's segments. Reading only; one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segments = Segments(folder)
        self._end = Place(0, 0)
        self._ends: dict[Partition, int] = {}

    def close(self) -> None:
        """Release every file. May be called twice."""
        self._segments.close()

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the log, sorted; at least those of all that was read."""
        numbers = self._segments.numbers_lately()
        header = self._segments.header(numbers[-1]) if numbers else None
        return tuple(sorted(header.offsets)) if header is not None else ()

    def ends(self) -> dict[Partition, int]:
        """The offset after the last readable record of every partition.

        Raises:
            LogDamagedError: behind it stands what was written and cannot be read; that is no end.

        """
        if numbers := self._segments.numbers():
            if numbers[-1] != self._end.number and (mark := self._segments.newest_mark(numbers[-1])) is not None:
                self._end = Place(numbers[-1], mark.at)
                self._ends = dict(mark.offsets)
            while (block := self._segments.read(*self._end)) is not None or self._segments.in_doubt(*self._end):
                if block is None:
                    time.sleep(_DOUBT_PAUSE)  # a writer mends it in a moment, or reading it raises
                    continue
                for record in block.records:
                    self._ends[record.topic, record.partition] = record.offset + 1
                self._end = Place(self._end.number, block.end)
        return dict(self._ends)

    def whole(self) -> tuple[dict[Partition, int], LogDamagedError | None]:
        """As :meth:`ends`; where there is damage, the ends before it, and what it is."""
        try:
            return self.ends(), None
        except LogDamagedError as damage:
            return dict(self._ends), damage

    def starts(self) -> dict[Partition, int]:
        """The lowest offset that is kept, or that the first record will have, of every partition."""
        numbers = self._segments.numbers()
        starts: dict[Partition, int] = {}
        if numbers and (first := self._segments.header(numbers[0])) is not None:
            starts |= first.offsets
        for tp in self.partitions():
            if tp not in starts:  # its topic was created later
                at = bisect_right(numbers, 0, key=lambda number: int(tp in self._offsets(number)))
                starts[tp] = self._offsets(numbers[min(at, len(numbers) - 1)]).get(tp, 0)
        return starts

    def find(self, wanted: Mapping[Partition, int]) -> Place:
        """A place from which on nothing is missed of what lies at these offsets or above."""
        numbers = self._segments.numbers()
        if not numbers:
            return Place(1, 0)

        def beyond(number: int) -> int:
            try:
                offsets = self._offsets(number)
            except LogDamagedError:
                return 1  # told when the reading comes to it
            return int(any(offsets.get(tp, -1) > at for tp, at in wanted.items()))

        number = numbers[max(0, bisect_right(numbers, 0, key=beyond) - 1)]
        return Place(number, self._segments.nearest_mark(number, wanted))

    def read(self, place: Place) -> Block | None:
        """The block at a place; None where none is whole (yet)."""
        return self._segments.read(*self._begun(place))

    def lost(self, place: Place) -> bool:
        """Whether nothing comes at a place any more: its segment was cut off before it, removed or replaced."""
        segment = self._segments.get(place.number)
        if segment is not None:
            if place.at > segment.size() or (place.at and not segment.follows_marker(place.at)):
                return True
            if segment.is_there():
                return False
            if segment.path.exists():
                return True
        # Retention removes segments as well, when there are later ones.
        return place.at > 0 and not any(number > place.number for number in self._segments.numbers())

    def after(self, place: Place) -> Following | None:
        """Where reading goes on when a segment is read to its end: the next segment, if it was begun.

        Raises:
            LogDamagedError: there is more in the segment, and it cannot be read; or there was, and it is gone.

        """
        numbers = self._segments.numbers_lately()
        following = bisect_right(numbers, place.number)
        if following == len(numbers):
            return None
        place = self._begun(place)
        segment = self._segments.get(place.number)
        if segment is not None:
            if self._segments.read(*place) is not None:
                return None  # it grew before the next one was begun
            if place.at < segment.size():
                raise segment.damaged(place.at, "a block is not whole, and the next segment was begun")
        number = numbers[following]
        header = self._segments.header(number)
        if header is None:
            return None
        adjoins = segment is not None and number == place.number + 1
        if segment is not None and adjoins and header.before is not None and place.at < header.before:
            raise segment.damaged(place.at, f"it ends here, and had {header.before} bytes when the next one was begun")
        return Following(Place(number, header.size), header.offsets, adjoins=adjoins)

    def from_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        numbers = self._segments.numbers()
        ends, starts = self.ends(), self.starts()
        # latest only grows from header to header: what is looked for lies in the last segment that began before it.
        first = bisect_right(numbers, timestamp_ms - 1, key=self._latest)
        found: dict[Partition, int] = {}
        for position in range(max(0, first - 1), len(numbers)):
            begin = self._offsets(numbers[position])
            end = self._offsets(numbers[position + 1]) if position + 1 < len(numbers) else ends
            left = {tp for tp in ends if tp not in found and begin.get(tp, 0) < end.get(tp, 0)}
            if left:
                self._look(numbers[position], timestamp_ms, left, found)
        return {tp: max(found.get(tp, end), starts.get(tp, 0)) for tp, end in ends.items()}

    def _look(self, number: int, timestamp_ms: int, left: set[Partition], found: dict[Partition, int]) -> None:
        place = self._begun(Place(number, 0))
        while left and (block := self._segments.read(*place)) is not None:
            place = Place(number, block.end)
            for record in block.records:
                tp = (record.topic, record.partition)
                if record.timestamp_ms >= timestamp_ms and tp in left:
                    found[tp] = record.offset
                    left.discard(tp)

    def _begun(self, place: Place) -> Place:
        """The place, its segment's first block where it has no position yet."""
        if place.at == 0 and (header := self._segments.header(place.number)) is not None:
            return Place(place.number, header.size)
        return place

    def _offsets(self, number: int) -> Mapping[Partition, int]:
        header = self._segments.header(number)
        return {} if header is None else header.offsets

    def _latest(self, number: int) -> int:
        header = self._segments.header(number)
        return _FAR if header is None else header.latest
