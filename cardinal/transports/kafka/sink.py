"""A producer's messages to Kafka.

Rules:

1. Idempotent, acknowledged by all in-sync replicas, partition by FNV-1a of the key, as the Go implementation does:
   copies of one key from any number of producers meet in one partition.
2. ``send`` refuses a message that its topic does not take before the first message is handed over.
3. What is handed over and not acknowledged is bounded in bytes: ``send`` waits. It never waits on the thread that
   serves acknowledgements, because nothing would wake it there; what that thread sends are seals, one small message
   a block, and the client's own queue has room for them beyond the bound.
4. A message that fails fails its call's future. Other calls are not touched.
5. Where the client stops for good, every call under way fails, and every later one says why.

Threads. Acknowledgements are served by a thread of the sink's, and by every thread that sends, right after it has
sent: while the interpreter is busy with splitting blocks, the serving thread waits for its turn before every single
acknowledgement (measured: 770 blocks under way at once without, 60 with it). So an acknowledgement is counted in a
way that two threads may do at once, and a future's callbacks run on either.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cardinal.errors import (
    CardinalError,
    DeliveryError,
    FencedError,
    OversizeError,
    RefusedError,
    TopicError,
    TransportError,
)
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Record, Routed, path_text

from .errors import Reasons, bad_setting, kafka_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

    from .topics import TopicInfo

HASH: Final = slice(1, 33)
_PATH: Final = slice(33, None)
_OVERHEAD: Final = 128
"""Bytes that travel with a key and value at most: batch header, lengths, our two headers without the id."""

_LOG: Final = logging.getLogger("cardinal.transports.kafka")
_LOG.addHandler(logging.NullHandler())  # what matters is in the errors; whoever wants the rest sets a handler
_POLL_SECONDS: Final = 0.1
_FULL_SECONDS: Final = 0.005
CLOSE_SECONDS: Final = 10.0


class Delivery:
    """The acknowledgements of one call's messages; called once for each, on any thread."""

    __slots__ = ("_acknowledged", "_done", "error", "total")

    def __init__(self, total: int, done: Callable[[Delivery], None]) -> None:
        self.total = total
        self.error: KafkaError | None = None
        self._done = done
        # next() on a count is one step of the interpreter: two threads never get the same number
        self._acknowledged = itertools.count(1)

    def __call__(self, error: KafkaError | None, message: Message | None) -> None:
        """One message was acknowledged, or failed."""
        del message
        if error is not None:
            self.error = error
        if next(self._acknowledged) == self.total:
            self._done(self)


class KafkaSink:
    """A :class:`~cardinal.transports.base.Sink` on Kafka.

    Arguments:
        config: librdkafka's properties for a producer.
        topics: every topic that may be written, by name.
        producer_id: goes into a header of every record.
        queue_bytes: what may be under way before ``send`` waits.
        reasons: collects why the broker refuses.
        recent: reads the newest records of the default topic.
        channel: creates the topic of a reorg channel, or checks the one that is there.

    """

    def __init__(
        self,
        config: Mapping[str, str],
        topics: Mapping[str, TopicInfo],
        *,
        producer_id: str,
        queue_bytes: int,
        reasons: Reasons,
        recent: Callable[[int], list[Record]],
        channel: Callable[[str], TopicInfo],
    ) -> None:
        self._config = config
        self._reasons = reasons
        self._producer = self._connect()
        self._topics = dict(topics)
        who = (PRODUCER_HEADER, producer_id.encode())
        self._headers: list[tuple[str, str | bytes | None]] = [who]
        self._sealed: list[tuple[str, str | bytes | None]] = [who, (SEALED_HEADER, b"1")]
        self._overhead = _OVERHEAD + len(producer_id.encode())
        self._limits = {name: topic.max_message_bytes - self._overhead for name, topic in topics.items()}
        self._queue_bytes = queue_bytes
        self._recent = recent
        self._channel = channel
        self._stopped: KafkaError | None = None
        self._room = threading.Condition()
        self._under_way = 0
        self._calls = 0
        self._later: deque[Callable[[], None]] = deque()
        self._serving = threading.local()
        self._closed = threading.Event()
        self._server = threading.Thread(target=self._serve, name="cardinal-kafka-sink", daemon=True)
        self._never_wait = {self._server}
        self._server.start()

    # --- Sink ----------------------------------------------------------------------------------------------

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what the topics do not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        self._check(messages)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over messages of one block: see :meth:`cardinal.transports.base.Sink.send`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        size = self._check(block if seal is None else (*block, seal))
        if not block and seal is None:
            future.set_result(None)
            return future
        self._admit(size, wait=bool(block))
        block_hash = (block[0] if block else seal or block[0]).key[HASH]

        def finish(error: KafkaError | None) -> None:
            self._finished(size)
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(self._failed(error, block_hash))

        def sealed(delivery: Delivery) -> None:
            finish(delivery.error)

        def acknowledged(delivery: Delivery) -> None:
            if delivery.error is None and seal is not None:
                self._hand_over((seal,), self._sealed, Delivery(1, sealed))
            else:
                finish(delivery.error)

        if block:
            self._hand_over(block, self._headers, Delivery(len(block), acknowledged))
        elif seal is not None:
            self._hand_over((seal,), self._sealed, Delivery(1, sealed))
        self._poll(0)
        return future

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over records with their own headers: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        size = self._check([Routed(record.topic, record.key, record.value) for record in records])
        if not records:
            future.set_result(None)
            return future
        self._admit(size, wait=True)

        def finish(delivery: Delivery) -> None:
            self._finished(size)
            if delivery.error is None:
                future.set_result(None)
            else:
                future.set_exception(self._failed(delivery.error, records[0].key[HASH]))

        self._hand_over_records(records, Delivery(len(records), finish))
        self._poll(0)
        return future

    def heartbeat(self, partitions: Sequence[tuple[str, int]], timeout: float) -> None:
        """One record with an empty key into each of these partitions, acknowledged within ``timeout`` seconds."""
        done: Future[None] = Future()

        def finish(delivery: Delivery) -> None:
            if delivery.error is None:
                done.set_result(None)
            else:
                done.set_exception(self._failed(delivery.error, b""))

        delivery = Delivery(len(partitions), finish)
        for topic, number in partitions:
            self._producer.produce(
                topic, value=b"", key=b"", partition=number, on_delivery=delivery, headers=self._headers
            )
        if partitions:
            try:
                done.result(timeout)
            except TimeoutError:
                raise self._reasons.unreachable(timeout) from None

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` a partition."""
        return self._recent(limit)

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.ChannelSink.open_channel`."""
        if topic not in self._topics:
            info = self._channel(topic)
            self._limits[topic] = info.max_message_bytes - self._overhead
            self._topics[topic] = info

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged or has failed."""
        with self._room:
            if self._room.wait_for(lambda: self._calls == 0, timeout):
                return
            calls, size = self._calls, self._under_way
        raise self._reasons.refusal() or TransportError(
            f"{calls} sends of {size} bytes are not acknowledged after {timeout:g} s; "
            "they stay under way, flush again or close"
        )

    def close(self) -> None:
        """Flush for a bounded time, fail what is left, release the connection."""
        if self._closed.is_set():
            return
        try:
            self.flush(CLOSE_SECONDS)
        except CardinalError:
            # What is left fails its own futures below, with the block's hash.
            self._producer.purge()
            self._producer.flush(CLOSE_SECONDS)
        self._closed.set()
        if threading.current_thread() is not self._server:
            self._server.join(CLOSE_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._poll(_POLL_SECONDS if not self._later else _FULL_SECONDS)
            for _ in range(len(self._later)):
                self._later.popleft()()

    def _poll(self, seconds: float) -> None:
        """Serve acknowledgements. A callback that sends comes here a second time: the client aborts on that."""
        if not getattr(self._serving, "now", False):
            self._serving.now = True
            try:
                self._producer.poll(seconds)
            except KafkaException as error:
                self._stop_for_good(kafka_error(error))
            except KafkaError as error:  # type: ignore[misc] # the client raises this too, and its type claims to be one
                self._stop_for_good(error)
            finally:
                self._serving.now = False

    def _connect(self) -> Producer:
        try:
            return Producer({**self._config, "error_cb": self._reasons, "logger": _LOG})
        except KafkaException as error:
            raise bad_setting(error) from None

    def _stop_for_good(self, error: KafkaError) -> None:
        """The client takes nothing more (fenced, or its sequence numbers are lost); what is under way fails."""
        self._stopped = error
        with contextlib.suppress(KafkaException):
            self._producer.purge()

    def _check(self, messages: Sequence[Routed]) -> int:
        """The size of all these messages, every one of them within its topic's limit."""
        if self._closed.is_set():
            raise TransportError("this sink is closed; open another one")
        if self._stopped is not None:
            raise self._failed(self._stopped, b"")
        total = 0
        limits = self._limits
        try:
            for topic, key, value in messages:
                size = len(key) + len(value)
                if size > limits[topic]:
                    raise self._oversize(topic, key, size)
                total += size
        except KeyError as error:
            name = str(error.args[0])
            raise TopicError(f"the topic {name} is not of this stream", topic=name) from None
        return total + len(messages) * self._overhead

    def _oversize(self, topic: str, key: bytes, size: int) -> OversizeError:
        path, limit = path_text(key[_PATH]), self._topics[topic].max_message_bytes
        return OversizeError(
            f"a message of {size + self._overhead} bytes ({path!r}) is larger than the {limit} that the topic {topic} "
            "takes: raise its max.message.bytes and the broker's message.max.bytes",
            path=path,
            size=size + self._overhead,
            limit=limit,
        )

    def _admit(self, size: int, *, wait: bool) -> None:
        with self._room:
            # A seal is one message of a block that was admitted: it never waits.
            if wait and threading.current_thread() not in self._never_wait:
                # One call that is larger than the bound goes alone.
                self._room.wait_for(
                    lambda: self._closed.is_set() or not self._under_way or self._under_way + size <= self._queue_bytes
                )
            self._under_way += size
            self._calls += 1

    def _finished(self, size: int) -> None:
        with self._room:
            self._under_way -= size
            self._calls -= 1
            self._room.notify_all()

    def _hand_over(
        self, messages: Sequence[Routed], headers: list[tuple[str, str | bytes | None]], delivery: Delivery
    ) -> None:
        produce = self._producer.produce
        for index, (topic, key, value) in enumerate(messages):
            try:
                produce(topic, value, key, on_delivery=delivery, headers=headers)
            except BufferError:
                if threading.current_thread() is self._server:
                    self._later.append(partial(self._hand_over, messages[index:], headers, delivery))
                    return
                self._produce_when_room(messages[index], headers, delivery)
            except KafkaException as error:
                delivery(kafka_error(error), None)

    def _hand_over_records(self, records: Sequence[Record], delivery: Delivery) -> None:
        for record in records:
            self._hand_over((Routed(record.topic, record.key, record.value),), list(record.headers), delivery)

    def _produce_when_room(
        self, message: Routed, headers: list[tuple[str, str | bytes | None]], delivery: Delivery
    ) -> None:
        while True:
            # Serves acknowledgements of this and other calls, which is what makes room.
            self._poll(_FULL_SECONDS)
            try:
                self._producer.produce(message.topic, message.value, message.key, on_delivery=delivery, headers=headers)
            except BufferError:
                time.sleep(_FULL_SECONDS)
            except KafkaException as error:
                delivery(kafka_error(error), None)
                return
            else:
                return

    def _failed(self, error: KafkaError, block_hash: bytes) -> TransportError:
        """The error for a block one of whose messages was not acknowledged."""
        mapped = self._reasons.map(self._stopped or error, "while taking messages")
        if isinstance(mapped, FencedError | RefusedError):
            return mapped
        if self._stopped is not None or error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - public code with a private name
            why = (self._stopped or error).str()
            return TransportError(f"the Kafka client stopped for good: {why}; start the producer again")
        return DeliveryError(f"block 0x{block_hash.hex()} was not acknowledged: {mapped}", block_hash=block_hash)
