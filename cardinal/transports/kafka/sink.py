"""A producer's messages to Kafka.

Rules:

1. Idempotent, acknowledged by all in-sync replicas, partition by FNV-1a of the key, as the Go implementation does:
   copies of one key from any number of producers meet in one partition.
2. A message that its topic or the client does not take is refused before the first message of its call is handed over.
3. What is handed over and not acknowledged is bounded in bytes: whoever sends waits, and serves meanwhile
   (:mod:`.outbox`). A thread that is telling of acknowledgements never waits; what it sends are seals, one small
   message a block, and the client's own queue has room for them beyond the bound.
4. A message that fails fails its call. Other calls are not touched.
5. Where the client stops for good, every call under way fails, and every later one says why.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
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
from cardinal.protocols.streams.wire.ranges import RANGES_HEADER
from cardinal.transports.posting import end, new_future

from .errors import Reasons, bad_setting
from .outbox import Headers, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.transports.posting import Done
    from cardinal.transports.written import Written

    from .outbox import Delivery
    from .topics import TopicInfo

HASH: Final = slice(1, 33)
_PATH: Final = slice(33, None)
_OVERHEAD: Final = 128
"""Bytes that travel with a key and value at most: batch header, lengths, our two headers without the id."""

_RANGES_OVERHEAD: Final = 16
"""Bytes of a record's header beyond its name and value, at most."""

_LOG: Final = logging.getLogger("cardinal.transports.kafka")
_LOG.addHandler(logging.NullHandler())  # what matters is in the errors; whoever wants the rest sets a handler
_SLICE_SECONDS: Final = 0.005
CLOSE_SECONDS: Final = 10.0
_REFUSED_SECONDS: Final = 10.0


class KafkaSink:
    """A :class:`~cardinal.transports.base.Sink` on Kafka, and a :class:`~cardinal.transports.posting.PostingSink`.

    Arguments:
        config: librdkafka's properties for a producer.
        topics: every topic that may be written, by name.
        producer_id: goes into a header of every record.
        queue_bytes: what may be under way before ``send`` waits.
        reasons: collects why the broker refuses.
        recent: reads the newest records of the default topic.
        channel: creates the topic of a reorg channel, or checks the one that is there.
        cluster: its name, for headers that name offsets.

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
        cluster: str,
    ) -> None:
        self._config = config
        self._reasons = reasons
        self._topics = dict(topics)
        who = (PRODUCER_HEADER, producer_id.encode())
        self._headers: Headers = [who]
        self._sealed: Headers = [who, (SEALED_HEADER, b"1")]
        self._overhead = _OVERHEAD + len(producer_id.encode())
        self._most = int(config["message.max.bytes"])
        self._limits = {name: self._limit(topic) for name, topic in topics.items()}
        self._queue_bytes = queue_bytes
        self._recent = recent
        self._channel = channel
        self._cluster = cluster
        self._lock = threading.Lock()
        self._under_way = 0
        self._calls = 0
        self._closed = False
        self._standing: RefusedError | None = None
        self._outbox = Outbox(self._connect(), self._look_at_refusal)

    # --- Sink ----------------------------------------------------------------------------------------------

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what the topics do not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        self.measure(messages)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over messages of one block: see :meth:`cardinal.transports.base.Sink.send`."""
        size = self.measure(block if seal is None else (*block, seal))
        future = new_future()

        def acknowledged(error: BaseException | None) -> None:
            if error is None and seal is not None:
                self.post_seal(seal, partial(end, future))
            else:
                end(future, error)

        if block:
            self.post(block, size, acknowledged)
        else:
            acknowledged(None)
        return future

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over records with their own headers: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        size = self.measure([Routed(record.topic, record.key, record.value) for record in records])
        future = new_future()
        if records:
            delivery = self._admit(records[0].key, len(records), size, partial(end, future))
            self._hand_over_records(records, delivery)
        else:
            future.set_result(None)
        return future

    def heartbeat(self, partitions: Sequence[tuple[str, int]], timeout: float) -> None:
        """One heartbeat into each of these partitions, acknowledged within ``timeout`` seconds."""
        if partitions:
            try:
                self.beat(partitions).result(timeout)
            except TimeoutError:
                raise self._reasons.unreachable(timeout) from None

    def beat(self, partitions: Sequence[tuple[str, int]]) -> Future[None]:
        """Send one record with an empty key to each of these partitions, at least one."""
        future = new_future()
        delivery = self._admit(b"", len(partitions), 0, partial(end, future))
        self._outbox.hand_over_to(partitions, self._headers, delivery)
        return future

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` a partition."""
        return self._recent(limit)

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.ChannelSink.open_channel`."""
        if topic not in self._topics:
            info = self._channel(topic)
            if info.max_message_bytes < int(self._config["batch.size"]):
                raise TopicError(
                    f"the reorg channel {topic} takes {info.max_message_bytes} bytes at once, and this producer sends "
                    f"up to {self._config['batch.size']}: raise its max.message.bytes, or lower batch.size",
                    topic=topic,
                )
            self._limits[topic] = self._limit(info)
            self._topics[topic] = info

    def foreign_clock(self) -> str | None:
        """A topic whose records are stamped by the clocks of their producers, if there is one."""
        return next((name for name, topic in self._topics.items() if not topic.append_time), None)

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged or has failed."""
        deadline = time.monotonic() + timeout
        while self._calls:
            if time.monotonic() > deadline:
                raise self._reasons.refusal() or TransportError(
                    f"{self._calls} sends of {self._under_way} bytes are not acknowledged after {timeout:g} s; "
                    "they stay under way, flush again or close"
                )
            self._outbox.serve(_SLICE_SECONDS)

    def close(self) -> None:
        """Flush for a bounded time, fail what is left, release the connection."""
        if self._closed:
            return
        self._standing = None  # one from before is no reason for what is left now
        with contextlib.suppress(CardinalError):  # what is left fails its own futures below, with the block's hash
            self.flush(CLOSE_SECONDS)
        with self._lock:
            self._closed = True  # whoever waits for room is let in no more
        for _ in range(2):  # what is told of the first may send its seal
            if self._calls:
                self._standing = self._standing or self._reasons.refusal()
                self._outbox.fail_what_is_left(CLOSE_SECONDS)
        self._outbox.close(CLOSE_SECONDS)

    # --- PostingSink ---------------------------------------------------------------------------------------

    def measure(self, messages: Sequence[Routed]) -> int:
        """The bytes of keys and values, all within their topics' limits; raises as :meth:`check`."""
        self._check_open()
        if self._outbox.stopped is not None:
            self._refuse(self._outbox.stopped)
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
        return total

    def post(self, content: Sequence[Routed], size: int, done: Done, written: Written | None = None) -> None:
        """Hand over messages of one block: see :meth:`cardinal.transports.posting.Poster.post`."""
        if content:
            delivery = self._admit(content[0].key, len(content), size, done, written)
            self._outbox.hand_over(content, self._headers, delivery)
        else:
            done(None)

    def post_seal(self, batch: Routed, done: Done, written: Written | None = None) -> None:
        """Hand over a Batch: see :meth:`cardinal.transports.posting.Poster.post_seal`."""
        # One message of a block that was admitted: it does not count, and never waits.
        self._count_in(0)
        delivery = self._delivery(batch.key, 1, 0, done)
        self._outbox.hand_over((batch,), self._seal(batch, written), delivery)

    def serve(self, seconds: float) -> None:
        """Take acknowledgements in: see :meth:`cardinal.transports.posting.PostingSink.serve`."""
        self._outbox.serve(seconds)

    # --- inside --------------------------------------------------------------------------------------------

    def _seal(self, batch: Routed, written: Written | None) -> Headers:
        """The headers of a Batch, with the ranges of its block where the topic takes a message of that size."""
        ranges = None if written is None else written.header(self._cluster)
        if ranges is None:
            return self._sealed
        room = self._limits[batch.topic] - len(batch.key) - len(batch.value) - len(RANGES_HEADER)
        return [*self._sealed, (RANGES_HEADER, ranges)] if len(ranges) + _RANGES_OVERHEAD <= room else self._sealed

    def _look_at_refusal(self) -> None:
        """Where the broker refuses us for good, say so, and let nothing knock on its door until messages expire.

        What is sent later is tried anew.
        """
        if self._calls and (refusal := self._reasons.standing(_REFUSED_SECONDS)) is not None:
            self._standing = refusal
            self._reasons.withdraw()
            self._outbox.fail_what_waits()

    def _connect(self) -> Producer:
        try:
            return Producer({**self._config, "error_cb": self._reasons, "logger": _LOG})
        except KafkaException as error:
            raise bad_setting(error) from None

    def _refuse(self, stopped: KafkaError) -> None:
        """Raise what a client that takes nothing more means, where it is to be started again."""
        raise self._failed(stopped, b"")

    def _limit(self, topic: TopicInfo) -> int:
        """How long key and value of a message for this topic may be together."""
        return min(topic.max_message_bytes, self._most) - self._overhead

    def _oversize(self, topic: str, key: bytes, size: int) -> OversizeError:
        path, limit = path_text(key[_PATH]), self._limits[topic] + self._overhead
        if limit == self._topics[topic].max_message_bytes:
            why = f"the topic {topic} takes: raise its max.message.bytes and the broker's message.max.bytes"
        else:
            why = "this producer may send: raise message.max.bytes in its URL, or leave it out"
        return OversizeError(
            f"a message of {size + self._overhead} bytes ({path!r}) is larger than the {limit} that {why}",
            path=path,
            size=size + self._overhead,
            limit=limit,
        )

    def _admit(self, key: bytes, count: int, size: int, done: Done, written: Written | None = None) -> Delivery:
        """Wait for room, and take the call in."""
        size += count * self._overhead
        self._wait_for_room(size)
        self._count_in(size, unless_closed=True)
        return self._delivery(key, count, size, done, written)

    def _wait_for_room(self, size: int) -> None:
        """One call that is larger than all the room goes alone."""
        while self._under_way and self._under_way + size > self._queue_bytes and self._outbox.may_wait:
            if self._closed:
                break
            self._outbox.serve(_SLICE_SECONDS)

    def _delivery(self, key: bytes, count: int, size: int, done: Done, written: Written | None = None) -> Delivery:
        """For a call that was counted in."""

        def settled(error: KafkaError | None) -> None:
            self._count_out(size)
            if error is None:
                self._reasons.forget()
            done(None if error is None else self._failed(error, key[HASH]))

        return self._outbox.delivery(count, settled, {} if written is None else {key[HASH]: written})

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("this sink is closed; open another one")

    def _count_in(self, size: int, *, unless_closed: bool = False) -> None:
        with self._lock:
            if unless_closed:
                self._check_open()
            self._under_way += size
            self._calls += 1

    def _count_out(self, size: int) -> None:
        with self._lock:
            self._under_way -= size
            self._calls -= 1

    def _hand_over_records(self, records: Sequence[Record], delivery: Delivery) -> None:
        """With their headers, but for the one that names offsets: these are others now."""
        for record in records:
            message = Routed(record.topic, record.key, record.value)
            headers: Headers = [header for header in record.headers if header[0] != RANGES_HEADER]
            self._outbox.hand_over((message,), headers, delivery)

    def _failed(self, error: KafkaError, block_hash: bytes) -> TransportError:
        """The error for a block one of whose messages was not acknowledged."""
        return self._meaning(error, self._outbox.stopped, block_hash)

    def _meaning(self, error: KafkaError, stopped: KafkaError | None, block_hash: bytes) -> TransportError:
        """The same, by what the client stopped with if it has."""
        if self._standing is not None and error.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - public code with a private name
            return self._standing
        mapped = self._reasons.map(stopped or error, "while taking messages")
        if isinstance(mapped, FencedError | RefusedError):
            return mapped
        if stopped is not None or error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - public code with a private name
            why = (stopped or error).str()
            return TransportError(f"the Kafka client stopped for good: {why}; start the producer again")
        return DeliveryError(f"block 0x{block_hash.hex()} was not acknowledged: {mapped}", block_hash=block_hash)
