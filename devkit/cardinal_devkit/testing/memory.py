"""Broker in memory: topics with partitions and offsets, no processes, no I/O.

It follows Kafka's rules that a client sees: FNV-1a partitions, a heartbeat in every partition of a new topic, offsets
that are never reused, retention that moves the start. Faults are calls: :meth:`MemoryBroker.hold` withholds
acknowledgements, :meth:`MemoryBroker.fail` loses messages, :meth:`MemoryBroker.trim` removes old records.

Example::

    with MemoryBroker("mine") as broker:
        producer = Producer("memory://mine", app, producer_id="a")

"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from cardinal.errors import TopicError
from cardinal.protocols.streams.types import PRODUCER_HEADER, Partition, Record, Routed
from cardinal.transports.memory import enter, leave
from cardinal.transports.partitioner import fnv1a_partition
from cardinal_devkit.testing._memory_sink import MemorySink
from cardinal_devkit.testing._memory_source import MemorySource, expired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cardinal.transports.registry import Topics
    from cardinal_devkit.testing._memory_sink import Waiting


class _Log:
    """One partition: records from ``start`` on."""

    __slots__ = ("records", "start")

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Record] = []

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def read(self, offset: int, limit: int) -> list[Record]:
        first = offset - self.start
        return self.records[first : first + limit]


class MemoryBroker:
    """Topics in memory, reached as ``memory://name`` or through :meth:`sink` and :meth:`source`.

    Arguments:
        name: its name in URLs of this process; one broker a name.
        partitions: partitions of every topic.
        max_message_bytes: larger messages are refused.
        clock: seconds since 1970, for timestamps.

    """

    def __init__(
        self,
        name: str = "broker",
        *,
        partitions: int = 2,
        max_message_bytes: int = 10_000_024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.max_message_bytes = max_message_bytes
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._logs: dict[Partition, _Log] = {}
        self._widths: dict[str, int] = {}
        self._withheld: list[Waiting] | None = None
        self._lose: Callable[[Routed], bool] | None = None
        enter(name, self)

    @property
    def url(self) -> str:
        """Its URL, for producers and consumers of this process."""
        return f"memory://{self.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the name. Open sinks and sources keep working."""
        leave(self.name, self)

    def sink(self, app: Topics, *, producer_id: str) -> MemorySink:
        """A sink for the application's topics; missing ones are created with a heartbeat in every partition."""
        for topic in app.all_topics:
            self.create(topic, heartbeat=((PRODUCER_HEADER, producer_id.encode()),))
        return MemorySink(self, app, producer_id)

    def source(self, topics: Sequence[str], *, wait: float = 0.0) -> MemorySource:
        """A source of these topics; ``wait``: seconds to wait for them to exist."""
        with self._changed:
            if not self._changed.wait_for(lambda: all(topic in self._widths for topic in topics), wait):
                absent = next(topic for topic in topics if topic not in self._widths)
                raise TopicError(f"the topic {absent} does not exist: start a producer first", topic=absent)
            return MemorySource(self, topics)

    def topics(self) -> frozenset[str]:
        """The names of all topics."""
        with self._changed:
            return frozenset(topic for topic, _ in self._logs)

    def records(self, topic: str | None = None) -> list[Record]:
        """All retained records, of one topic or of all, in the order of positions."""
        with self._changed:
            return [record for tp in sorted(self._logs) if topic in (None, tp[0]) for record in self._logs[tp].records]

    def create(
        self, topic: str, *, partitions: int | None = None, heartbeat: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        """Create a missing topic, with a heartbeat in every partition; ``partitions`` overrides their number."""
        with self._changed:
            if topic not in self._widths:
                self._widen(topic, self.partitions if partitions is None else partitions, heartbeat)

    def widen(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions."""
        with self._changed:
            self._widen(topic, partitions, ())

    def _widen(self, topic: str, partitions: int, heartbeat: tuple[tuple[str, bytes], ...]) -> None:
        for number in range(self._widths.get(topic, 0), partitions):
            self._logs[topic, number] = _Log()
            self._append(topic, number, b"", b"", heartbeat)
        self._widths[topic] = partitions
        self._changed.notify_all()

    def partitions_of(self, topics: Iterable[str]) -> tuple[Partition, ...]:
        """Every partition of these topics, sorted."""
        with self._changed:
            return tuple(sorted((topic, number) for topic in topics for number in range(self._widths[topic])))

    # --- faults --------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Withhold acknowledgements until :meth:`release`."""
        with self._changed:
            if self._withheld is None:
                self._withheld = []

    def release(self) -> None:
        """Acknowledge withheld calls, in order, and everything from now on."""
        with self._changed:
            held, self._withheld = self._withheld or [], None
        for waiting in held:
            waiting.acknowledge()

    def release_some(self, which: Callable[[Routed], bool]) -> None:
        """Acknowledge withheld calls with a true ``which(first message)``; further ones stay withheld."""
        with self._changed:
            held = self._withheld or []
            chosen = [waiting for waiting in held if which(waiting.first)]
            held[:] = [waiting for waiting in held if not which(waiting.first)]
        for waiting in chosen:
            waiting.acknowledge()

    def fail(self, lose: Callable[[Routed], bool] | None) -> None:
        """Lose every message for which ``lose`` is true, and fail its call; None loses nothing."""
        with self._changed:
            self._lose = lose

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Remove the records below an offset, as retention does."""
        with self._changed:
            log = self._logs[topic, partition]
            cut = max(0, min(before, log.end) - log.start)
            log.records = log.records[cut:]
            log.start += cut

    # --- for its sinks and sources -------------------------------------------------------------------------

    def take(self, message: Routed, headers: tuple[tuple[str, bytes], ...]) -> bool:
        """Append a message; False where :meth:`fail` loses it."""
        with self._changed:
            if self._lose is not None and self._lose(message):
                return False
            number = fnv1a_partition(message.key, self._widths[message.topic])
            self._append(message.topic, number, message.key, message.value, headers)
            self._changed.notify_all()
            return True

    def acknowledge(self, waiting: Waiting) -> None:
        """Acknowledge now, or at the release."""
        with self._changed:
            if self._withheld is not None:
                self._withheld.append(waiting)
                return
        waiting.acknowledge()

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        """Records from these positions on, at most ``limit``, waiting for the first."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found: list[Record] = []
                for tp, offset in positions.items():
                    log = self._logs[tp]
                    if not log.start <= offset <= log.end:
                        raise expired(tp, offset, log.start)
                    found += log.read(offset, limit - len(found))
                left = deadline - time.monotonic()
                if found or left <= 0 or not self._changed.wait(left):
                    return found

    def marks(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        """Start and end of these partitions."""
        with self._changed:
            return {tp: (self._logs[tp].start, self._logs[tp].end) for tp in partitions}

    def _append(
        self, topic: str, number: int, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...]
    ) -> None:
        log = self._logs.get((topic, number))
        if log is None:
            raise TopicError(f"the topic {topic} does not exist", topic=topic)
        log.records.append(Record(topic, number, log.end, key, value, int(self._clock() * 1000), headers))
