"""Sink on Kafka.

Rules:

1. Idempotent, acknowledged by all in-sync replicas, partition by FNV-1a of the key, as the Go implementation does:
   copies of one key from any number of producers meet in one partition.
2. A message larger than its topic or the client allows is refused before the first message of its call is sent.
3. The client's queue bounds what is in flight: a sending thread waits, and polls meanwhile (:mod:`.delivery`).
4. A failed message fails its call, and no other one.
5. When the client stops for good, every call in flight and every later one fails with a ClientStoppedError, or with a
   FencedError where another producer took over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cardinal._concurrency import new_future, settle
from cardinal.errors import (
    CardinalError,
    ClientStoppedError,
    DeliveryError,
    FencedError,
    OversizeError,
    RefusedError,
    TopicError,
    TransportError,
)
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Record, Routed, path_text
from cardinal.protocols.streams.wire.ranges import RANGES_HEADER
from cardinal.transports.base import Capabilities, Sink

from .delivery import Headers, Outbound
from .errors import Reasons, bad_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.transports.written import Written

    from .admin import TopicInfo
    from .delivery import Delivery

HASH: Final = slice(1, 33)
_PATH: Final = slice(33, None)
_OVERHEAD: Final = 128
"""Overhead of a message at most: batch header, lengths, our two headers without the id."""

_RANGES_OVERHEAD: Final = 16
"""Bytes of a record's header beyond its name and value, at most."""

LOG: Final = logging.getLogger("cardinal.transports.kafka")
LOG.addHandler(logging.NullHandler())  # errors carry what matters; the rest is for applications that add a handler
_PAUSE_SECONDS: Final = 0.001
_SLICE_SECONDS: Final = 0.005
CLOSE_SECONDS: Final = 10.0
_REFUSED_SECONDS: Final = 10.0


class KafkaSink(Sink):
    """Sink on Kafka.

    Arguments:
        config: librdkafka's properties for a producer.
        topics: every topic that may be written, by name.
        producer_id: goes into a header of every record.
        reasons: collects the broker's refusals.
        recent: reads the newest records of the default topic.
        channel: creates the topic of a reorg channel, or checks the one that exists.
        cluster: its name, for headers that name offsets.

    """

    _more_headers: ClassVar[int] = 0
    """Bytes of further headers that a message may have."""

    def __init__(
        self,
        config: Mapping[str, str],
        topics: Mapping[str, TopicInfo],
        *,
        producer_id: str,
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
        self._overhead = _OVERHEAD + self._more_headers + len(producer_id.encode())
        self._most = int(config["message.max.bytes"])
        self._limits = {name: self._limit(topic) for name, topic in topics.items()}
        self._recent = recent
        self._channel = channel
        self._cluster = cluster
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False
        self._refusal: RefusedError | None = None
        self._outbound = Outbound(self._connect(), self._look_at_refusal)
        foreign = next((name for name, topic in topics.items() if not topic.append_time), "")
        self.capabilities = Capabilities(channels=True, records=True, polled=True, foreign_clock=foreign)

    # --- Sink ----------------------------------------------------------------------------------------------

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages that the topics do not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        if self._outbound.stopped is not None:
            raise self._failed(self._outbound.stopped, b"")
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

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Send messages of one block: see :meth:`cardinal.transports.base.Sink.post`."""
        if block:
            after = done if seal is None else partial(self._send_seal_after, seal, done, written)
            delivery = self._admit(block[0].key, len(block), after, written)
            self._outbound.send(block, self._headers, delivery)
        elif seal is not None:
            self._send_seal(seal, done, written)
        else:
            done(None)

    def serve(self, seconds: float) -> None:
        """Poll for acknowledgements: see :meth:`cardinal.transports.base.Sink.serve`."""
        self._outbound.poll(seconds)

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Send records with their own headers: see :meth:`cardinal.transports.base.Sink.replay`."""
        self.check([Routed(record.topic, record.key, record.value) for record in records])
        future = new_future()
        if records:
            delivery = self._admit(records[0].key, len(records), partial(settle, future))
            self._send_records(records, delivery)
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
        delivery = self._admit(b"", len(partitions), partial(settle, future))
        self._outbound.send_heartbeats(partitions, self._headers, delivery)
        return future

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` per partition."""
        return self._recent(limit)

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.Sink.open_channel`."""
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

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is acknowledged or has failed."""
        deadline = time.monotonic() + timeout
        while self._calls:
            if time.monotonic() > deadline:
                raise self._reasons.refusal() or TransportError(
                    f"{self._calls} sends are not acknowledged after {timeout:g} s; they stay in flight; retry the "
                    "flush or close"
                )
            self._outbound.poll(_SLICE_SECONDS)

    def close(self) -> None:
        """Flush for a bounded time, fail the remaining calls, release the connection."""
        if self._closed:
            return
        self._refusal = None  # an old refusal explains no failure from now on
        with contextlib.suppress(CardinalError):  # what is left fails its own futures below
            self.flush(CLOSE_SECONDS)
        with self._lock:
            self._closed = True
        self._outbound.close(CLOSE_SECONDS)
        deadline = time.monotonic() + CLOSE_SECONDS
        # A callback that closes the sink is a call itself: it ends later.
        while self._calls and not self._outbound.calls_back and time.monotonic() < deadline:
            self._refusal = self._refusal or self._reasons.refusal()
            self._outbound.fail_unacknowledged(CLOSE_SECONDS)
            time.sleep(_PAUSE_SECONDS)
        self._outbound.fail_unacknowledged(CLOSE_SECONDS)
        self._outbound.release()

    # --- inside --------------------------------------------------------------------------------------------

    def _send_seal_after(self, batch: Routed, done: Done, written: Written | None, error: BaseException | None) -> None:
        """Send a Batch, unless its content failed."""
        if error is None:
            self._send_seal(batch, done, written)
        else:
            done(error)

    def _send_seal(self, batch: Routed, done: Done, written: Written | None) -> None:
        """Send a Batch, also while the sink is being closed: its content was admitted."""
        with self._lock:
            self._calls += 1
        self._outbound.send((batch,), self._seal(batch, written), self._delivery(batch.key, 1, done))

    def _seal(self, batch: Routed, written: Written | None) -> Headers:
        """The headers of a Batch, with the ranges of its block where the topic allows a message of that size."""
        ranges = None if written is None else written.header(self._cluster)
        if ranges is None:
            return self._sealed
        capacity = self._limits[batch.topic] - len(batch.key) - len(batch.value) - len(RANGES_HEADER)
        return [*self._sealed, (RANGES_HEADER, ranges)] if len(ranges) + _RANGES_OVERHEAD <= capacity else self._sealed

    def _look_at_refusal(self) -> None:
        """Fail unsent messages after a lasting refusal, instead of retrying until they expire."""
        if self._calls and (refusal := self._reasons.lasting(_REFUSED_SECONDS)) is not None:
            self._refusal = refusal
            self._reasons.withdraw()
            self._outbound.fail_unsent()

    def _connect(self) -> Producer:
        try:
            return Producer({**self._config, "error_cb": self._reasons, "logger": LOG, **self._client_config()})
        except KafkaException as error:
            raise bad_setting(error) from None

    def _client_config(self) -> Mapping[str, Any]:
        """Further properties of the client, callbacks among them."""
        return {}

    def _limit(self, topic: TopicInfo) -> int:
        """Bytes that key and value of a message for this topic may have together."""
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

    def _admit(self, key: bytes, count: int, done: Done, written: Written | None = None) -> Delivery:
        self._count_in()
        return self._delivery(key, count, done, written)

    def _delivery(self, key: bytes, count: int, done: Done, written: Written | None = None) -> Delivery:
        """The delivery of a call that was counted in."""
        block_hash = key[HASH]
        settled = partial(self._settled, done, block_hash)
        return self._outbound.delivery(count, settled, {} if written is None else {block_hash: written})

    def _settled(self, done: Done, block_hash: bytes, error: KafkaError | None) -> None:
        if error is None:
            self._reasons.forget()
        try:
            done(None if error is None else self._failed(error, block_hash))
        finally:
            self._count_out()  # last: the next message of the block is counted in by then

    def _count_in(self) -> None:
        with self._lock:
            if self._closed:
                raise TransportError("this producer is closed; open another one")
            self._calls += 1

    def _count_out(self) -> None:
        with self._lock:
            self._calls -= 1

    def _send_records(self, records: Sequence[Record], delivery: Delivery) -> None:
        """Send records with their headers, except the one that names offsets of another log."""
        for record in records:
            message = Routed(record.topic, record.key, record.value)
            headers: Headers = [header for header in record.headers if header[0] != RANGES_HEADER]
            self._outbound.send((message,), headers, delivery)

    def _failed(self, error: KafkaError, block_hash: bytes) -> TransportError:
        """The error for a block with an unacknowledged message."""
        stopped = self._outbound.stopped
        if self._refusal is not None and error.code() == KafkaError._PURGE_QUEUE:  # noqa: SLF001 - public code with a private name
            return self._refusal
        mapped = self._reasons.map(stopped or error, "while taking messages")
        if isinstance(mapped, FencedError | RefusedError):
            return mapped
        if stopped is not None or error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - public code with a private name
            why = (stopped or error).str()
            return ClientStoppedError(f"the Kafka client stopped for good: {why}; restart the producer")
        return DeliveryError(f"block 0x{block_hash.hex()} was not acknowledged: {mapped}", block_hash=block_hash)
