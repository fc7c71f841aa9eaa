"""Log of a folder's segments: its partitions, their watermarks, and the position of an offset.

Positions order all records of the log; each partition's offsets ascend along them. A segment's header holds the next
offset of every partition, so a position is found by bisecting headers, then by reading from the segment's beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import LogDamagedError

from .folders import numbers_of
from .segments import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition

    from .container import Header
    from .segments import Block

_FAR: Final = 1 << 62


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
    """Log of a folder's segments; the last used one is open. Reading only; one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: Segment | None = None
        self._end = Position(0, 0)
        self._ends: dict[Partition, int] = {}

    def close(self) -> None:
        """Release the open file. May be called twice."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the log, sorted; at least those of all that was read."""
        numbers = numbers_of(self.folder)
        header = self._header(numbers[-1]) if numbers else None
        return tuple(sorted(header.offsets)) if header is not None else ()

    def ends(self) -> dict[Partition, int]:
        """The offset after the last readable record of every partition.

        Raises:
            LogDamagedError: unreadable data follows the last readable record.

        """
        if numbers := numbers_of(self.folder):
            if numbers[-1] != self._end.number and (header := self._header(numbers[-1])) is not None:
                self._end = Position(numbers[-1], header.size)
                self._ends = dict(header.offsets)
            while (block := self.read(self._end)) is not None:
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
        numbers = numbers_of(self.folder)
        starts: dict[Partition, int] = {}
        if numbers and (first := self._header(numbers[0])) is not None:
            starts |= first.offsets
        for tp in self.partitions():
            if tp not in starts:  # its topic was created later
                at = bisect_right(numbers, 0, key=lambda number: int(tp in self._offsets(number)))
                starts[tp] = self._offsets(numbers[min(at, len(numbers) - 1)]).get(tp, 0)
        return starts

    def find(self, positions: Mapping[Partition, int]) -> Position:
        """A position before every record at or above these offsets."""
        numbers = numbers_of(self.folder)
        if not numbers:
            return Position(1, 0)

        def beyond(number: int) -> int:
            try:
                offsets = self._offsets(number)
            except LogDamagedError:
                return 1  # raised when the reader reaches it
            return int(any(offsets.get(tp, -1) > at for tp, at in positions.items()))

        return Position(numbers[max(0, bisect_right(numbers, 0, key=beyond) - 1)], 0)

    def read(self, position: Position) -> Block | None:
        """The block at a position; None where none is complete (yet)."""
        segment = self._segment(position.number)
        return None if segment is None else segment.read(position.at or segment.header.size)

    def lost(self, position: Position) -> bool:
        """True if a position no longer exists: its segment was cut off before it, removed or replaced."""
        segment = self._segment(position.number)
        if segment is not None:
            if position.at > segment.size() or (position.at and not segment.follows_marker(position.at)):
                return True
            if segment.is_current():
                return False
            if segment.path.exists():
                return True
        # Retention removes segments as well, when there are later ones.
        return position.at > 0 and not any(number > position.number for number in numbers_of(self.folder))

    def after(self, position: Position) -> Following | None:
        """The segment to read after this one is read to its end; None until it exists.

        Raises:
            LogDamagedError: the rest of the segment cannot be read, or was cut off, or the next one was removed.

        """
        number, segment = position.number + 1, self._segment(position.number)
        if segment is None or not segment.is_current():  # retention removed it, and maybe later ones
            number = min((each for each in numbers_of(self.folder) if each >= number), default=number)
        later, header = self._header(number + 1), self._header(number)
        if header is None:
            if later is not None and segment is not None and segment.is_current():
                raise segment.damaged(segment.size(), f"segment {number} is missing, and later ones are there")
            return None
        adjoins = segment is not None and number == position.number + 1
        if segment is not None:
            at = position.at or segment.header.size
            if segment.read(at) is not None:
                return None  # it grew before the next one was begun
            if at < segment.size():
                raise segment.damaged(at, "a block is incomplete, and the next segment was begun")
            if adjoins and header.before is not None and at < header.before:
                raise segment.damaged(at, f"it ends here, and had {header.before} bytes before the next one")
        return Following(Position(number, header.size), header.offsets, adjoins=adjoins)

    def from_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        numbers = numbers_of(self.folder)
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
        position = Position(number, 0)
        while left and (block := self.read(position)) is not None:
            position = Position(number, block.end)
            for record in block.records:
                tp = (record.topic, record.partition)
                if record.timestamp_ms >= timestamp_ms and tp in left:
                    found[tp] = record.offset
                    left.discard(tp)

    def _segment(self, number: int) -> Segment | None:
        """A segment, open until another one is read; None where it does not exist."""
        if self._open is None or self._open.number != number:
            try:
                segment = Segment(self.folder, number)
            except FileNotFoundError:
                return None
            self.close()
            self._open = segment
        return self._open

    def _header(self, number: int) -> Header | None:
        """A segment's header; None where the segment does not exist."""
        if self._open is not None and self._open.number == number:
            return self._open.header
        try:
            with closing(Segment(self.folder, number)) as segment:
                return segment.header
        except FileNotFoundError:
            return None

    def _offsets(self, number: int) -> Mapping[Partition, int]:
        header = self._header(number)
        return {} if header is None else header.offsets

    def _latest(self, number: int) -> int:
        header = self._header(number)
        return _FAR if header is None else header.latest
