"""A broker in memory: topics with partitions and offsets, no processes, no I/O. For your tests and ours.

It keeps Kafka's rules as far as a client can tell: FNV-1a partitions, a heartbeat in every partition of a new topic,
offsets that never come back, retention that moves the start. Faults are calls: :meth:`MemoryBroker.hold` keeps
acknowledgements back, :meth:`MemoryBroker.fail` loses messages, :meth:`MemoryBroker.trim` removes old records.

Example::

    with MemoryBroker("mine") as broker:
        producer = Producer("memory://mine", app, producer_id="a")

"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

from cardinal.errors import CursorExpiredError, DeliveryError, OversizeError, TopicError, TransportError
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Partition, Record, Routed, path_text
from cardinal.transports.memory import DIRECTORY
from cardinal.transports.partitioner import fnv1a_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from cardinal.transports.url import Topics


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
        name: how URLs of this process reach it; one broker a name.
        partitions: of every topic.
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
        self._held: list[_Waiting] | None = None
        self._lose: Callable[[Routed], bool] | None = None
        DIRECTORY.enter(name, self)

    @property
    def url(self) -> str:
        """How a producer or consumer of this process reaches it."""
        return f"memory://{self.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the name back. Sinks and sources that are open go on."""
        DIRECTORY.leave(self.name, self)

    def sink(self, app: Topics, *, producer_id: str) -> MemorySink:
        """A sink for the application's topics; missing ones are created with a heartbeat in every partition."""
        for topic in app.all_topics:
            self.create(topic, heartbeat=((PRODUCER_HEADER, producer_id.encode()),))
        return MemorySink(self, app, producer_id)

    def source(self, topics: Sequence[str], *, wait: float = 0.0) -> MemorySource:
        """A source of these topics, that waits so many seconds for them to exist."""
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
        """Everything that is kept, of one topic or of all, in the order of positions."""
        with self._changed:
            return [
                record
                for where in sorted(self._logs)
                if topic in (None, where[0])
                for record in self._logs[where].records
            ]

    def create(
        self, topic: str, *, partitions: int | None = None, heartbeat: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        """Create a topic that is not there, a heartbeat in every partition; ``partitions`` where it has others."""
        with self._changed:
            if topic not in self._widths:
                self._widen(topic, self.partitions if partitions is None else partitions, heartbeat)

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions; it keeps those that it has."""
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
        """Take messages and keep their acknowledgements back until :meth:`release`."""
        with self._changed:
            if self._held is None:
                self._held = []

    def release(self) -> None:
        """Acknowledge what was held, in order, and everything from now on."""
        with self._changed:
            held, self._held = self._held or [], None
        for waiting in held:
            waiting.acknowledge()

    def release_some(self, which: Callable[[Routed], bool]) -> None:
        """Acknowledge those held calls whose first message ``which`` is true for, and go on holding."""
        with self._changed:
            held = self._held or []
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
        """Append a message; False where the broker was told to lose it."""
        with self._changed:
            if self._lose is not None and self._lose(message):
                return False
            number = fnv1a_partition(message.key, self._widths[message.topic])
            self._append(message.topic, number, message.key, message.value, headers)
            self._changed.notify_all()
            return True

    def acknowledge(self, waiting: _Waiting) -> None:
        """Acknowledge now, or with the others when acknowledgements are released."""
        with self._changed:
            if self._held is not None:
                self._held.append(waiting)
                return
        waiting.acknowledge()

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        """Records from these positions on, at most ``limit``, waiting for the first."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found: list[Record] = []
                for where, offset in positions.items():
                    log = self._logs[where]
                    if not log.start <= offset <= log.end:
                        raise _expired(where, offset, log.start)
                    found += log.read(offset, limit - len(found))
                left = deadline - time.monotonic()
                if found or left <= 0 or not self._changed.wait(left):
                    return found

    def marks(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        """Start and end of these partitions."""
        with self._changed:
            return {where: (self._logs[where].start, self._logs[where].end) for where in partitions}

    def _append(
        self, topic: str, number: int, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...]
    ) -> None:
        log = self._logs.get((topic, number))
        if log is None:
            raise TopicError(f"the topic {topic} does not exist", topic=topic)
        log.records.append(Record(topic, number, log.end, key, value, int(self._clock() * 1000), headers))


class _Waiting:
    """A call that waits for its acknowledgement; sends its seal when it has it."""

    def __init__(self, sink: MemorySink, first: Routed, seal: Routed | None, future: Future[None]) -> None:
        self._sink = sink
        self.first = first
        self._seal = seal
        self._future = future

    def acknowledge(self) -> None:
        if self._seal is None:
            self._sink.finish(self._future, None)
        else:
            self.first = seal = self._seal
            self._seal = None
            self._sink.put((seal,), sealed=True, waiting=self, future=self._future)


class MemorySink:
    """A :class:`~cardinal.transports.base.Sink` on a :class:`MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, app: Topics, producer_id: str) -> None:
        self._broker = broker
        self._app = app
        self._who = (PRODUCER_HEADER, producer_id.encode())
        self._channels: set[str] = set()
        self._idle = threading.Condition()
        self._calls = 0
        self._closed = False

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what the broker does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        if self._closed:
            raise TransportError("this sink is closed; open another one")
        for message in messages:
            self._check(message)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over messages of one block: see :meth:`cardinal.transports.base.Sink.send`."""
        self.check(block if seal is None else (*block, seal))
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._idle:
            self._calls += 1
        if block:
            self.put(block, sealed=False, waiting=_Waiting(self, block[0], seal, future), future=future)
        elif seal is not None:
            self.put((seal,), sealed=True, waiting=_Waiting(self, seal, None, future), future=future)
        else:
            self.finish(future, None)
        return future

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over records as they are: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        routed = [Routed(record.topic, record.key, record.value) for record in records]
        self.check(routed)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._idle:
            self._calls += 1
        lost = [m for m, record in zip(routed, records, strict=True) if not self._broker.take(m, record.headers)]
        self._took(lost, None if not routed else _Waiting(self, routed[0], None, future), future)
        return future

    def put(self, messages: Sequence[Routed], *, sealed: bool, waiting: _Waiting, future: Future[None]) -> None:
        """Append these messages; fail the call where one of them is lost."""
        headers = (self._who, (SEALED_HEADER, b"1")) if sealed else (self._who,)
        self._took([message for message in messages if not self._broker.take(message, headers)], waiting, future)

    def _took(self, lost: Sequence[Routed], waiting: _Waiting | None, future: Future[None]) -> None:
        """Acknowledge a call, or fail it where messages were lost."""
        if lost:
            block_hash = lost[0].key[1:33]
            self.finish(
                future,
                DeliveryError(f"block 0x{block_hash.hex()} was not acknowledged: it was lost", block_hash=block_hash),
            )
        elif waiting is not None:
            self._broker.acknowledge(waiting)
        else:
            self.finish(future, None)

    def finish(self, future: Future[None], error: TransportError | None) -> None:
        """End a call."""
        with self._idle:
            self._calls -= 1
            self._idle.notify_all()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` a partition."""
        newest: dict[int, list[Record]] = {}
        for record in self._broker.records(self._app.default_topic):
            newest.setdefault(record.partition, []).append(record)
        return [record for number in sorted(newest) for record in newest[number][-limit:]]

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.ChannelSink.open_channel`."""
        self._broker.create(topic, partitions=1)
        self._channels.add(topic)

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._calls == 0, timeout):
                raise TransportError(f"{self._calls} sends are not acknowledged after {timeout:g} s; flush again")

    def close(self) -> None:
        """Take nothing more. May be called twice."""
        self._closed = True

    def _check(self, message: Routed) -> None:
        if message.topic not in self._app.all_topics and message.topic not in self._channels:
            raise TopicError(f"the topic {message.topic} is not of this stream", topic=message.topic)
        size, limit = len(message.key) + len(message.value), self._broker.max_message_bytes
        if size > limit:
            path = path_text(message.key[33:])
            raise OversizeError(
                f"a message of {size} bytes ({path!r}) is larger than the {limit} that the broker takes",
                path=path,
                size=size,
                limit=limit,
            )


class MemorySource:
    """A :class:`~cardinal.transports.base.Source` on a :class:`MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, topics: Sequence[str]) -> None:
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
        for where, offset in positions.items():
            if where not in marks:
                raise TopicError(f"there is no partition {where[1]} of {where[0]}", topic=where[0])
            low, high = marks[where]
            if not low <= offset <= high:
                raise _expired(where, offset, low)
        self._positions = dict(positions)
        self._paused = frozenset()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call."""
        self._paused = frozenset(partitions)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any."""
        wanted = {where: offset for where, offset in self._positions.items() if where not in self._paused}
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
        found = {where: high for where, (_, high) in self._broker.marks(self.partitions()).items()}
        for record in reversed(self._broker.records()):
            where = (record.topic, record.partition)
            if where in found and record.timestamp_ms >= timestamp_ms:
                found[where] = record.offset
        return found

    def close(self) -> None:
        """Nothing to release. May be called twice."""


def _expired(where: Partition, offset: int, low: int) -> CursorExpiredError:
    return CursorExpiredError(
        f"the records from {offset} to {low} of {where[0]}:{where[1]} are gone: start from a newer cursor",
        missing={where: (offset, low)},
    )
