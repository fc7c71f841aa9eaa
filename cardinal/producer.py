"""The producing SDK: payloads in, sealed blocks on the topics.

Rules:

1. A block's messages go out at once, many blocks beside each other; its Batch goes out when all of them are
   acknowledged and the parent's Batch has been handed over (:mod:`cardinal.protocols.streams.sealing`).
2. ``add`` waits while too many blocks or bytes are under way. It never drops and never queues without bound.
3. A failed block is loud: its future fails, its descendants' Batches wait, and ``add`` of the same payload sends it
   again. While one has failed, ``add`` of others does not wait for room but says which block has to go again.
4. Nothing of a block is sent that the topics cannot carry as a whole.

Threads: ``add`` and ``send_sub_batch`` may be called from several threads. Acknowledgements come on threads of the
transport. Whoever frees a seal appends it to one line; one thread at a time works the line off, so that Batches are
handed over in the line's order, parents before children. At the moment of sending, the queue is asked again: a
failure may have come between.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from cardinal.errors import CardinalError, ConfigurationError, DeliveryError, LocalProtocolError, TransportError
from cardinal.protocols.streams.codec import encode
from cardinal.protocols.streams.messages import Ping
from cardinal.protocols.streams.sealing import SealQueue
from cardinal.protocols.streams.splitter import name_sub_batch, split, split_sub_batch
from cardinal.protocols.streams.types import Routed
from cardinal.transports.url import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from cardinal.protocols.streams.payload import Payload, SubBatch
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports.base import Sink
    from cardinal.transports.url import TransportUrl

_PING_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0
_MAX_BLOCKS: Final = 1024


class Stream(Protocol):
    """What a producer needs of an application: :class:`cardinal.apps.Application` has it."""

    @property
    def default_topic(self) -> str:
        """Where Batches go."""
        ...

    @property
    def all_topics(self) -> Sequence[str]:
        """Every topic of the stream."""
        ...

    @property
    def topics(self) -> Mapping[str, str]:
        """The schema: regular expression to topic."""
        ...


class ProducerStats(NamedTuple):
    """What a producer has done: sealed blocks, their messages and bytes, and the blocks under way."""

    blocks: int
    messages: int
    bytes: int
    under_way: int


@dataclass(slots=True)
class _Block:
    """A block under way."""

    batch: Routed
    messages: int
    size: int
    future: Future[None]
    failed: bool = False


def ping_id(producer_id: str) -> bytes:
    """The 32 bytes that a producer's pings carry: the SHA-256 of its configured id."""
    return hashlib.sha256(producer_id.encode()).digest()


class Producer:
    """Publishes payloads to a stream.

    Arguments:
        url: where to, see :mod:`cardinal.transports.url`.
        app: the application, as :func:`cardinal.apps.get` gives it.
        producer_id: this producer's name among those of the stream; stays the same over restarts.
        redundancy: ``all``: everything is sent, whatever other producers of the stream send.
        max_blocks: blocks under way before ``add`` waits.
        ping_seconds: how often the producer says that it is alive.

    Raises:
        ConfigurationError, UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_sink`.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: Stream,
        *,
        producer_id: str,
        redundancy: str = "all",
        max_blocks: int = _MAX_BLOCKS,
        ping_seconds: float = _PING_SECONDS,
    ) -> None:
        if redundancy != "all":
            raise ConfigurationError(
                f"redundancy={redundancy!r} is not in this release: use 'all'", setting="redundancy"
            )
        if not producer_id or max_blocks < 1 or ping_seconds <= 0:
            raise ConfigurationError("a producer needs an id, and room for a block, and a time between pings")
        self._app = app
        self._producer_id = producer_id
        self._max_blocks = max_blocks
        self._lock = threading.Condition()
        self._queue = SealQueue()
        self._blocks: dict[bytes, _Block] = {}
        self._failures: dict[bytes, CardinalError] = {}
        self._line: deque[bytes] = deque()
        self._working = False
        self._sealed_blocks = self._sealed_messages = self._sealed_bytes = 0
        self._stop = threading.Event()
        self._sink: Sink = open_sink(url, app, producer_id=producer_id)
        self._pinger = threading.Thread(
            target=self._ping, args=(ping_seconds,), name="cardinal-producer-ping", daemon=True
        )
        self._pinger.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> ProducerStats:
        """What was sealed since the start, and what is under way."""
        with self._lock:
            return ProducerStats(self._sealed_blocks, self._sealed_messages, self._sealed_bytes, len(self._blocks))

    def add(self, payload: Payload) -> Future[None]:
        """Publish a block, or send a failed one again. Its parent has been added before, or was published.

        Returns:
            A future that ends when the block's Batch is acknowledged, and fails with
            :class:`~cardinal.errors.DeliveryError` where a message was not: then add the payload again.

        Raises:
            SplitError: the payload contradicts itself or the application's topics; nothing was sent.
            OversizeError: a message is larger than its topic takes; nothing was sent.
            LocalProtocolError: this block is under way already.
            DeliveryError: there is no room, because another block (``hash``) failed and waits to be added again.
            TransportError: the producer is closed.

        """
        messages = split(payload, self._app.topics, self._app.default_topic)
        batch = messages.pop()
        self._sink.check((batch,))
        self._sink.check(messages)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        size = sum(len(message.key) + len(message.value) for message in messages) + len(batch.key) + len(batch.value)
        announced = [batch_id for batch_id, content in payload.sub_batches.items() if content is None]
        with self._lock:
            self._wait_for_room(payload.hash)
            self._queue.add(payload.hash, payload.parent, announced)
            self._failures.pop(payload.hash, None)
            self._blocks[payload.hash] = _Block(batch, len(messages) + 1, size, future)
        try:
            sent = self._sink.send(messages, None)
        except CardinalError as error:
            self._fail(payload.hash, error)
            raise
        sent.add_done_callback(partial(self._content_done, payload.hash))
        return future

    def send_sub_batch(self, block_hash: bytes, batch_id: bytes, sub_batch: SubBatch) -> Future[None]:
        """Send the content of a sub batch that the block's payload announced with None.

        Returns:
            A future that ends when all messages of the sub batch are acknowledged. Where it fails, send it again;
            the block's Batch waits for it.

        Raises:
            LocalProtocolError: the block is not under way.
            SplitError: the block does not announce it, or its path is taken; or as :meth:`add`.
            OversizeError, TransportError: as :meth:`add`.

        """
        messages = split_sub_batch(block_hash, batch_id, sub_batch, self._app.topics, self._app.default_topic)
        with self._lock:
            block = self._blocks.get(block_hash)
            if block is None:
                raise LocalProtocolError(f"block 0x{block_hash.hex()} is not under way: add its payload first")
            named = name_sub_batch(block.batch, batch_id, sub_batch.path)
            self._sink.check((named,))
            block.batch = named
        future = self._sink.send(messages, None)
        with self._lock:
            block.messages += len(messages)
        future.add_done_callback(partial(self._sub_batch_done, block_hash, block, batch_id))
        return future

    def reorg(self, ancestor: BlockRef, payloads: Iterable[Payload]) -> Future[None]:
        """Publish a branch that leaves deeper than the reorg threshold, on a channel of its own: not in this release.

        Branches within the threshold need no channel: ``add`` their payloads.
        """
        del payloads
        raise LocalProtocolError(
            f"reorg channels are not in this release: add the payloads above block {ancestor.number}; "
            "consumers switch to them within the reorg threshold"
        )

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until every block that was added is sealed.

        Raises:
            DeliveryError, OversizeError, …: a block failed and was not added again.
            TransportError: not done after ``timeout`` seconds.

        """
        with self._lock:
            if not self._lock.wait_for(lambda: not self._blocks or self._failures, timeout):
                raise TransportError(f"{len(self._blocks)} blocks are not sealed after {timeout:g} s; flush again")
            if self._failures:
                raise next(iter(self._failures.values()))

    def close(self) -> None:
        """Flush for a bounded time and release the connection. Blocks that are not sealed fail. May be called twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        with contextlib.suppress(CardinalError):  # told to whoever holds the futures
            self.flush(_CLOSE_SECONDS)
        self._sink.close()
        self._pinger.join(_CLOSE_SECONDS)
        with self._lock:
            left = [(block_hash, block) for block_hash, block in self._blocks.items() if not block.failed]
            self._blocks.clear()
        for block_hash, block in left:
            block.future.set_exception(
                DeliveryError(
                    f"the producer was closed before block 0x{block_hash.hex()} was sealed", block_hash=block_hash
                )
            )

    # --- inside --------------------------------------------------------------------------------------------

    def _wait_for_room(self, block_hash: bytes) -> None:
        """With the lock held: wait until one more block may be under way."""
        if block_hash in self._blocks:
            return  # it has its room; the queue knows whether it may go again
        self._lock.wait_for(lambda: len(self._blocks) < self._max_blocks or bool(self._failures) or self._stop.is_set())
        if self._stop.is_set():
            raise TransportError("this producer is closed; open another one")
        if self._failures and len(self._blocks) >= self._max_blocks:
            failed, error = next(iter(self._failures.items()))
            raise DeliveryError(
                f"{len(self._blocks)} blocks wait for block 0x{failed.hex()}, which failed ({error}): add it again",
                block_hash=failed,
            )

    def _content_done(self, block_hash: bytes, sent: Future[None]) -> None:
        if (error := sent.exception()) is not None:
            self._fail(block_hash, error)
            return
        with self._lock:
            self._line.extend(self._queue.acknowledged(block_hash))
        self._work()

    def _sub_batch_done(self, block_hash: bytes, block: _Block, batch_id: bytes, sent: Future[None]) -> None:
        if sent.exception() is None:
            with self._lock:
                if self._blocks.get(block_hash) is not block:
                    return  # the block was added again since, and its Batch waits to hear of this sub batch anew
                self._line.extend(self._queue.sub_batch_acknowledged(block_hash, batch_id))
            self._work()

    def _work(self) -> None:
        """Hand over the Batches of the line, unless another thread (or a caller of this one) is at it."""
        while True:
            with self._lock:
                if self._working or not self._line:
                    return
                block_hash = self._line.popleft()
                if not self._queue.hand_over(block_hash):
                    continue  # it, or a block below it, failed since it was freed; it comes again
                self._working = True
                block = self._blocks.get(block_hash)
            try:
                if block is not None:
                    self._sink.send((), block.batch).add_done_callback(partial(self._batch_done, block_hash))
            except CardinalError as error:
                self._fail(block_hash, error)
            finally:
                with self._lock:
                    self._working = False

    def _batch_done(self, block_hash: bytes, sent: Future[None]) -> None:
        if (error := sent.exception()) is not None:
            self._fail(block_hash, error)
            return
        with self._lock:
            block = self._blocks.pop(block_hash, None)
            self._line.extend(self._queue.sealed(block_hash))
            if block is not None:
                self._sealed_blocks += 1
                self._sealed_messages += block.messages
                self._sealed_bytes += block.size
            self._lock.notify_all()
        self._work()
        if block is not None:
            block.future.set_result(None)

    def _fail(self, block_hash: bytes, error: BaseException) -> None:
        with self._lock:
            block = self._blocks.get(block_hash)
            if block is None or block.failed:
                return
            block.failed = True
            self._line.extend(self._queue.failed(block_hash))
            if isinstance(error, CardinalError):
                self._failures[block_hash] = error
            self._lock.notify_all()
        block.future.set_exception(error)
        self._work()

    def _ping(self, seconds: float) -> None:
        """Say that we are alive, while nothing has failed."""
        who = ping_id(self._producer_id)
        while True:
            with self._lock:
                healthy = not self._failures
            if healthy:
                now = time.time_ns()
                key, value = encode(Ping(who, now // 1_000_000_000, now % 1_000_000_000))
                try:
                    self._sink.send((Routed(self._app.default_topic, key, value),), None)
                except TransportError:
                    return  # the sink is closed
            if self._stop.wait(seconds):
                return
