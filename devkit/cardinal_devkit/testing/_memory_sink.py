"""Writing to a broker in memory: see :mod:`cardinal_devkit.testing.memory`."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from cardinal._concurrency import new_future, settle
from cardinal.errors import DeliveryError, OversizeError, TopicError, TransportError
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Record, Routed, path_text
from cardinal.transports.base import Capabilities, Sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.transports.registry import Topics
    from cardinal.transports.written import Written


class Logs(Protocol):
    """A sink's view of its broker, :class:`.memory.MemoryBroker`."""

    @property
    def max_message_bytes(self) -> int:
        """Larger messages are refused."""

    def take(self, message: Routed, headers: tuple[tuple[str, bytes], ...]) -> bool:
        """Append a message; False where it is lost."""

    def acknowledge(self, waiting: Waiting) -> None:
        """Acknowledge now, or at the release."""

    def records(self, topic: str | None = None) -> list[Record]:
        """All retained records."""

    def create(self, topic: str, *, partitions: int | None = None) -> None:
        """Create a missing topic."""


class Waiting:
    """A call in flight; it sends its seal when it is acknowledged."""

    def __init__(self, sink: MemorySink, first: Routed, seal: Routed | None, done: Done) -> None:
        self._sink = sink
        self.first = first
        self._seal = seal
        self._done = done

    def acknowledge(self) -> None:
        if self._seal is None:
            self._sink.finish(self._done, None)
        else:
            self.first = seal = self._seal
            self._seal = None
            self._sink.put((seal,), sealed=True, waiting=self, done=self._done)


class MemorySink(Sink):
    """Sink on a :class:`.memory.MemoryBroker`."""

    capabilities = Capabilities(channels=True, records=True)

    def __init__(self, broker: Logs, app: Topics, producer_id: str) -> None:
        self._broker = broker
        self._app = app
        self._who = (PRODUCER_HEADER, producer_id.encode())
        self._channels: set[str] = set()
        self._idle = threading.Condition()
        self._calls = 0
        self._closed = False

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages that the broker does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        return sum(map(self._check, messages))

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Send messages of one block: see :meth:`cardinal.transports.base.Sink.post`."""
        del written
        self.check(block if seal is None else (*block, seal))
        with self._idle:
            self._calls += 1
        if block:
            self.put(block, sealed=False, waiting=Waiting(self, block[0], seal, done), done=done)
        elif seal is not None:
            self.put((seal,), sealed=True, waiting=Waiting(self, seal, None, done), done=done)
        else:
            self.finish(done, None)

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Send records unchanged: see :meth:`cardinal.transports.base.Sink.replay`."""
        routed = [Routed(record.topic, record.key, record.value) for record in records]
        self.check(routed)
        future = new_future()
        with self._idle:
            self._calls += 1
        lost = [m for m, record in zip(routed, records, strict=True) if not self._broker.take(m, record.headers)]
        done = partial(settle, future)
        self._took(lost, None if not routed else Waiting(self, routed[0], None, done), done)
        return future

    def put(self, messages: Sequence[Routed], *, sealed: bool, waiting: Waiting, done: Done) -> None:
        """Append these messages; fail the call where one of them is lost."""
        headers = (self._who, (SEALED_HEADER, b"1")) if sealed else (self._who,)
        self._took([message for message in messages if not self._broker.take(message, headers)], waiting, done)

    def _took(self, lost: Sequence[Routed], waiting: Waiting | None, done: Done) -> None:
        """Acknowledge a call, or fail it where messages were lost."""
        if lost:
            block_hash = lost[0].key[1:33]
            self.finish(
                done,
                DeliveryError(f"block 0x{block_hash.hex()} was not acknowledged: it was lost", block_hash=block_hash),
            )
        elif waiting is not None:
            self._broker.acknowledge(waiting)
        else:
            self.finish(done, None)

    def finish(self, done: Done, error: TransportError | None) -> None:
        """End a call."""
        with self._idle:
            self._calls -= 1
            self._idle.notify_all()
        done(error)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` per partition."""
        newest: dict[int, list[Record]] = {}
        for record in self._broker.records(self._app.default_topic):
            newest.setdefault(record.partition, []).append(record)
        return [record for number in sorted(newest) for record in newest[number][-limit:]]

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.Sink.open_channel`."""
        self._broker.create(topic, partitions=1)
        self._channels.add(topic)

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is acknowledged."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._calls == 0, timeout):
                raise TransportError(f"{self._calls} sends are not acknowledged after {timeout:g} s; retry the flush")

    def close(self) -> None:
        """Refuse further messages. May be called twice."""
        self._closed = True

    def _check(self, message: Routed) -> int:
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
        return size
