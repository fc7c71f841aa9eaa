"""Log of a folder's segments: its partitions, their watermarks, and the position of an offset.

Positions order all records of the log; each partition's offsets ascend along them. A segment's header holds the next
offset of every partition, so a position is found by bisecting headers, then by the segment's index, then by reading.
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


class Position(NamedTuple):
    """Position in the log: a segment's number and a position in its file."""

    number: int
    at: int


class Following(NamedTuple):
    """The next segment: position of its first block, offsets there, and if no segment was removed before it."""

    position: Position
    offsets: Mapping[Partition, int]
    adjoins: bool


class Log:
    """Log of a folder's segments. Reading only; one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segments = Segments(folder)
        self._end = Position(0, 0)
        self._ends: dict[Partition, int] = {}

    def close(self) -> None:
        """Release every file. May be called twice."""
        self._segments.close()

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the log, sorted; at least those of all that was read."""
        numbers = self._segments.recent_numbers()
        header = self._segments.header(numbers[-1]) if numbers else None
        return tuple(sorted(header.offsets)) if header is not None else ()

    def ends(self) -> dict[Partition, int]:
        """The offset after the last readable record of every partition.

        Raises:
            LogDamagedError: unreadable data follows the last readable record.

        """
        if numbers := self._segments.numbers():
            if numbers[-1] != self._end.number and (mark := self._segments.newest_mark(numbers[-1])) is not None:
                self._end = Position(numbers[-1], mark.at)
                self._ends = dict(mark.offsets)
            while (block := self._segments.read(*self._end)) is not None or self._segments.in_doubt(*self._end):
                if block is None:
                    time.sleep(_DOUBT_PAUSE)  # a writer repairs it soon, or reading it raises
                    continue
                for record in block.records:
                    self._ends[record.topic, record.partition] = record.offset + 1
                self._end = Position(self._end.number, block.end)
        return dict(self._ends)

    def whole(self) -> tuple[dict[Partition, int], LogDamagedError | None]:
        """As :meth:`ends`; in a damaged log, the ends before the damage, and its error."""
        try:
            return self.ends(), None
        except LogDamagedError as damage:
            return dict(self._ends), damage

    def starts(self) -> dict[Partition, int]:
        """The lowest retained offset of every partition; the next one where it has no records."""
        numbers = self._segments.numbers()
        starts: dict[Partition, int] = {}
        if numbers and (first := self._segments.header(numbers[0])) is not None:
            starts |= first.offsets
        for tp in self.partitions():
            if tp not in starts:  # its topic was created later
                at = bisect_right(numbers, 0, key=lambda number: int(tp in self._offsets(number)))
                starts[tp] = self._offsets(numbers[min(at, len(numbers) - 1)]).get(tp, 0)
        return starts

    def find(self, positions: Mapping[Partition, int]) -> Position:
        """A position before every record at or above these offsets."""
        numbers = self._segments.numbers()
        if not numbers:
            return Position(1, 0)

        def beyond(number: int) -> int:
            try:
                offsets = self._offsets(number)
            except LogDamagedError:
                return 1  # raised when the reader reaches it
            return int(any(offsets.get(tp, -1) > at for tp, at in positions.items()))

        number = numbers[max(0, bisect_right(numbers, 0, key=beyond) - 1)]
        return Position(number, self._segments.nearest_mark(number, positions))

    def read(self, position: Position) -> Block | None:
        """The block at a position; None where none is complete (yet)."""
        return self._segments.read(*self._resolve(position))

    def lost(self, position: Position) -> bool:
        """True if a position no longer exists: its segment was cut off before it, removed or replaced."""
        segment = self._segments.get(position.number)
        if segment is not None:
            if position.at > segment.size() or (position.at and not segment.follows_marker(position.at)):
                return True
            if segment.is_current():
                return False
            if segment.path.exists():
                return True
        # Retention removes segments as well, when there are later ones.
        return position.at > 0 and not any(number > position.number for number in self._segments.numbers())

    def after(self, position: Position) -> Following | None:
        """The segment to read after this one is read to its end; None until it exists.

        Raises:
            LogDamagedError: the rest of the segment cannot be read, or was cut off.

        """
        numbers = self._segments.recent_numbers()
        following = bisect_right(numbers, position.number)
        if following == len(numbers):
            return None
        position = self._resolve(position)
        segment = self._segments.get(position.number)
        if segment is not None:
            if self._segments.read(*position) is not None:
                return None  # it grew before the next one was begun
            if position.at < segment.size():
                raise segment.damaged(position.at, "a block is incomplete, and the next segment was begun")
        number = numbers[following]
        header = self._segments.header(number)
        if header is None:
            return None
        adjoins = segment is not None and number == position.number + 1
        if segment is not None and adjoins and header.before is not None and position.at < header.before:
            raise segment.damaged(position.at, f"it ends here, and had {header.before} bytes before the next one")
        return Following(Position(number, header.size), header.offsets, adjoins=adjoins)

    def from_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        numbers = self._segments.numbers()
        ends, starts = self.ends(), self.starts()
        # latest only grows from header to header: the record is in the last segment that began before it, or later.
        first = bisect_right(numbers, timestamp_ms - 1, key=self._latest)
        found: dict[Partition, int] = {}
        for i in range(max(0, first - 1), len(numbers)):
            begin = self._offsets(numbers[i])
            end = self._offsets(numbers[i + 1]) if i + 1 < len(numbers) else ends
            left = {tp for tp in ends if tp not in found and begin.get(tp, 0) < end.get(tp, 0)}
            if left:
                self._scan(numbers[i], timestamp_ms, left, found)
        return {tp: max(found.get(tp, end), starts.get(tp, 0)) for tp, end in ends.items()}

    def _scan(self, number: int, timestamp_ms: int, left: set[Partition], found: dict[Partition, int]) -> None:
        position = self._resolve(Position(number, 0))
        while left and (block := self._segments.read(*position)) is not None:
            position = Position(number, block.end)
            for record in block.records:
                tp = (record.topic, record.partition)
                if record.timestamp_ms >= timestamp_ms and tp in left:
                    found[tp] = record.offset
                    left.discard(tp)

    def _resolve(self, position: Position) -> Position:
        """The position of the segment's first block, for a position at the segment's start."""
        if position.at == 0 and (header := self._segments.header(position.number)) is not None:
            return Position(position.number, header.size)
        return position

    def _offsets(self, number: int) -> Mapping[Partition, int]:
        header = self._segments.header(number)
        return {} if header is None else header.offsets

    def _latest(self, number: int) -> int:
        header = self._segments.header(number)
        return _FAR if header is None else header.latest
