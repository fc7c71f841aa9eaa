"""Reading from a broker in memory: see :mod:`cardinal_devkit.testing.memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cardinal.errors import CursorExpiredError, TopicError
from cardinal.transports.base import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record


class Logs(Protocol):
    """A source's view of its broker, :class:`.memory.MemoryBroker`."""

    def partitions_of(self, topics: Iterable[str]) -> tuple[Partition, ...]:
        """Every partition of these topics, sorted."""

    def marks(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        """Start and end of these partitions."""

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        """Records from these positions on."""

    def records(self, topic: str | None = None) -> list[Record]:
        """All retained records."""


class MemorySource(Source):
    """Source on a :class:`.memory.MemoryBroker`."""

    def __init__(self, broker: Logs, topics: Sequence[str]) -> None:
        self._broker = broker
        self._topics = tuple(topics)
        self._positions: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics, sorted."""
        return self._broker.partitions_of(self._topics)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other."""
        marks = self._broker.marks(self.partitions())
        for tp, offset in positions.items():
            if tp not in marks:
                raise TopicError(f"there is no partition {tp[1]} of {tp[0]}", topic=tp[0])
            low, high = marks[tp]
            if not low <= offset <= high:
                raise expired(tp, offset, low)
        self._positions = dict(positions)
        self._paused = frozenset()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call."""
        self._paused = frozenset(partitions)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any."""
        wanted = {tp: offset for tp, offset in self._positions.items() if tp not in self._paused}
        records = self._broker.read(wanted, limit, timeout)
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        return dict(self._positions)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """Start and end of every partition."""
        return self._broker.marks(self.partitions())

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        offsets = {tp: high for tp, (_, high) in self._broker.marks(self.partitions()).items()}
        for record in reversed(self._broker.records()):
            tp = (record.topic, record.partition)
            if tp in offsets and record.timestamp_ms >= timestamp_ms:
                offsets[tp] = record.offset
        return offsets

    def close(self) -> None:
        """Nothing to release. May be called twice."""


def expired(tp: Partition, offset: int, low: int) -> CursorExpiredError:
    """Error for expired records."""
    return CursorExpiredError(
        f"retention has removed the records from {offset} to {low} of {tp[0]}:{tp[1]}: start from a newer cursor",
        missing={tp: (offset, low)},
    )
