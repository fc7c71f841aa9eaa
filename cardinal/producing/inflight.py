"""Blocks in flight: from ``add`` to the acknowledgement of their Batch.

1. A :class:`Publication` is what is sealed as one: a block, a branch in one transaction, or a reorg channel. It is
   split and measured before anything of it is sent.
2. :class:`Plain` sends content at once, many publications alongside each other, and the Batch when the
   :class:`~cardinal.protocols.streams.publishing.sealing.SealQueue` frees it. :class:`Transactional` sends all of it
   when it is free, as one transaction after the other. Before each of these ``turn`` decides: others may have published
   it while it stood in line, and it is skipped or kept waiting.
3. Publications and bytes in flight are bounded; ``admit`` waits. One that is larger than the bound goes alone.
4. A failure is loud: the future fails, descendants wait, and a publication of the same hash may be begun again.

Threads: every method may be called from several. Acknowledgements come on threads of the transport. One thread at a
time works off the queue's line, so that Batches are sent in its order, parents before children.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cardinal._concurrency import new_future, report, settle
from cardinal.errors import CardinalError, DeliveryError, LocalProtocolError, TransportError
from cardinal.protocols.streams.publishing.sealing import SealQueue
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.publishing.standby import Verdict
from cardinal.protocols.streams.types import path_bytes
from cardinal.texts import Count
from cardinal.transports.written import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef, Routed
    from cardinal.transports.base import Sink


_SERVE_SECONDS: Final = 0.005


class ProducerStats(NamedTuple):
    """Counters of a producer.

    ``blocks``, ``messages`` and ``bytes`` count what was sealed; ``skipped`` the blocks that other producers sealed;
    ``in_flight``, ``queued_messages`` and ``queued_bytes`` what was added and is not sealed.
    """

    blocks: int
    messages: int
    bytes: int
    in_flight: int
    skipped: int = 0
    queued_messages: int = 0
    queued_bytes: int = 0


@dataclass(slots=True)
class Part:
    """One block of a publication: its messages, until they are sent, its Batch, and where the messages were written."""

    content: list[Routed]
    batch: Routed
    written: Written = field(default_factory=partial(Written, {}))


@dataclass(slots=True, eq=False)
class Publication:
    """Messages that are sealed as one.

    Attributes:
        hash: 32 bytes; of several blocks the last one's.
        parent: 32 bytes; of several blocks the ancestor's.
        parts: the blocks, parents first.
        messages, size: what it counts for; size in bytes.
        opening: messages that are acknowledged one after the other before anything else is sent.
        closing: the message that is sent when all the rest is acknowledged; None: the last part's Batch is that.
        announced: ids of sub batches whose content is still to be acknowledged, also before it is begun.
        future: ends when all of it is acknowledged.

    """

    hash: bytes
    parent: bytes
    parts: list[Part]
    messages: int
    size: int
    opening: tuple[Routed, ...] = ()
    closing: Routed | None = None
    announced: set[bytes] = field(default_factory=set)
    future: Future[None] = field(default_factory=new_future)
    failed: bool = False

    def take_content(self) -> list[Routed]:
        """The content of all parts, which is not held any more."""
        content = [message for part in self.parts for message in part.content]
        for part in self.parts:
            part.content = []
        return content


def block(payload: Payload, app: Stream, sink: Sink) -> Publication:
    """One block. SplitError, OversizeError, TopicError, TransportError: nothing was sent."""
    messages = split(payload, app.topics, app.default_topic)
    size = sink.check(messages)
    count = len(messages)
    batch = messages.pop()
    written = Written(values_of(payload, app.finality_paths or ()))
    written.sends(size - len(batch.key) - len(batch.value))
    announced = {one for one, content in payload.sub_batches.items() if content is None}
    return Publication(payload.hash, payload.parent, [Part(messages, batch, written)], count, size, announced=announced)


def values_of(payload: Payload, paths: Sequence[str]) -> dict[bytes, bytes]:
    """The values that a payload has at these paths."""
    found = ((path, payload.updates.get(path)) for path in paths)
    return {path_bytes(path): value for path, value in found if value is not None}


def together(ancestor: BlockRef, blocks: Sequence[Publication]) -> Publication:
    """A branch above its ancestor, for one transaction."""
    parts = [part for one in blocks for part in one.parts]
    messages, size = sum(one.messages for one in blocks), sum(one.size for one in blocks)
    return Publication(blocks[-1].hash, ancestor.hash, parts, messages, size)


class Sending(Protocol):
    """The way publications go out. Both steps raise CardinalError where nothing was sent; ``done`` is not called."""

    one_at_a_time: bool
    serve: Callable[[float], None] | None
    """Serves acknowledgements while a caller waits, for some seconds at most. None: the transport serves itself."""

    def start(self, publication: Publication, done: Done) -> None:
        """Send what need not wait for the queue."""

    def finish(self, publication: Publication, done: Done) -> None:
        """Send the rest, now that the queue has freed it."""


class Plain:
    """Content at once, the Batch when the queue has freed it."""

    one_at_a_time: bool = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.serve: Callable[[float], None] | None = sink.serve if sink.capabilities.polled else None

    def start(self, publication: Publication, done: Done) -> None:
        """Send the content of a block; of a channel all but the last message."""
        if not publication.opening:
            part = publication.parts[-1]
            self._sink.post(publication.take_content(), None, done, part.written)
            return
        announcement, *rest = publication.opening
        announced = self._sink.send((announcement,), None)
        # A reader of the announcement may open the channel at once: it is acknowledged before anything else is sent.
        if announced.exception() is None:
            sent = [self._sink.send(rest, None)]
            sent += [self._sink.send(part.content, part.batch) for part in publication.parts]
            announced = all_of(sent)
        report(announced, done)

    def finish(self, publication: Publication, done: Done) -> None:
        """Send the Batch of a block; of a channel the last message."""
        if publication.closing is None:
            part = publication.parts[-1]
            self._sink.post((), part.batch, done, part.written)
        else:
            self._sink.post((publication.closing,), None, done)


class Transactional:
    """Everything when the queue has freed it, as one transaction after the other."""

    one_at_a_time: bool = True
    serve: Callable[[float], None] | None = None  # a thread of the sink works transactions off

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def start(self, publication: Publication, done: Done) -> None:
        """Send nothing yet."""
        del publication
        done(None)

    def finish(self, publication: Publication, done: Done) -> None:
        """Send all of it."""
        content = [*publication.opening, *publication.take_content()]
        last = () if publication.closing is None else (publication.closing,)
        batches = [part.batch for part in publication.parts]
        report(self._sink.transact(content, batches, last, [part.written for part in publication.parts]), done)


def sending(sink: Sink) -> Sending:
    """The way that a sink sends."""
    return Transactional(sink) if sink.capabilities.transactional else Plain(sink)


def all_of(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that ends when all of these have, or with the first error: others may wait for the one that failed."""
    whole = new_future()
    lock = threading.Lock()
    left = len(futures)

    def ended(one: Future[None]) -> None:
        nonlocal left
        error = one.exception()
        with lock:
            left = 0 if error is not None and left > 0 else left - 1
            last = left == 0
        if last:
            settle(whole, error)

    for future in futures:
        future.add_done_callback(ended)
    return whole


class InFlight:
    """The publications of a producer that are not acknowledged yet; their number and bytes are bounded.

    ``turn`` decides on a hash just before it is sent, where one is sent at a time; its owner calls :meth:`proceed`
    when a decision may have changed.
    """

    def __init__(self, sending: Sending, max_blocks: int, max_bytes: int) -> None:
        self._sending = sending
        self._max_blocks = max_blocks
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = SealQueue()
        self._publications: dict[bytes, Publication] = {}
        self._bytes = 0
        self._failures: dict[bytes, CardinalError] = {}
        self._working = False
        self._closed = False
        self._reporting: set[int] = set()
        """Threads that report the end of a publication."""
        self._ended = ProducerStats(0, 0, 0, 0)
        self.turn: Callable[[bytes], Verdict] = lambda _: Verdict.SEND

    @property
    def stats(self) -> ProducerStats:
        """Counters of what was sealed or left to others, and of what is in flight."""
        with self._lock:
            return self._ended._replace(
                in_flight=sum(len(one.parts) for one in self._publications.values()),
                queued_messages=sum(one.messages for one in self._publications.values()),
                queued_bytes=self._bytes,
            )

    @property
    def healthy(self) -> bool:
        """True while nothing has failed, or all of it was begun again."""
        with self._lock:
            return not self._failures

    @property
    def in_line(self) -> bool:
        """True while a publication may be sent and was not yet."""
        with self._lock:
            return self._queue.next_free() is not None

    def admit(self, publication: Publication) -> bool:
        """Take a publication in, when there is capacity. True: one of its hash had failed; this one is begun at once.

        LocalProtocolError where one of its hash is in flight. DeliveryError where there is no capacity, because another
        one (``hash``) failed and waits to be begun again. TransportError when closed.
        """
        with self._lock:
            before = self._before(publication)
            if before is None:
                self._wait_for_capacity(publication.size)
                self._before(publication)  # another thread may have had the same thought
            self._publications[publication.hash] = publication
            self._bytes += publication.size - (before.size if before else 0)
            return before is not None

    def begin(self, publication: Publication) -> None:
        """Start sending one that was admitted.

        LocalProtocolError where it contradicts one of the same hash, or is its own ancestor; an error of the transport
        fails it.
        """
        with self._lock:
            try:
                self._queue.add(publication.hash, publication.parent, publication.announced)
            except LocalProtocolError:
                self._remove(publication)
                raise
            self._failures.pop(publication.hash, None)
        try:
            self._sending.start(publication, partial(self._started, publication))
        except CardinalError as error:
            self._fail(publication, error)
            raise

    def skip(self, publication: Publication) -> None:
        """Others have sealed one that was admitted."""
        with self._lock:
            removed = self._end(publication)
            if removed:
                self._ended = self._ended._replace(skipped=self._ended.skipped + len(publication.parts))
        if removed:
            self._report(publication, None)

    def get(self, block_hash: bytes) -> Publication | None:
        """The publication of this hash that is in flight, or failed and was not begun again."""
        with self._lock:
            return self._publications.get(block_hash)

    def grow(self, publication: Publication, messages: int, size: int) -> None:
        """More messages belong to a publication than it was admitted with."""
        with self._lock:
            publication.messages += messages
            publication.size += size
            self._bytes += size if self._publications.get(publication.hash) is publication else 0

    def sub_batch_sent(self, publication: Publication, batch_id: bytes) -> None:
        """The content of an announced sub batch is acknowledged, before its publication is begun or after."""
        with self._lock:
            if self._publications.get(publication.hash) is not publication:
                return  # it was begun again since, and its sub batch will be sent again
            publication.announced.discard(batch_id)
            self._queue.sub_batch_acknowledged(publication.hash, batch_id)
        self.proceed()

    def flush(self, timeout: float) -> None:
        """Wait until nothing is in flight; the error of what failed, or TransportError after ``timeout`` seconds."""
        with self._lock:
            if not self._wait_for(lambda: bool(not self._publications or self._failures), timeout):
                open_ = Count(len(self._publications), "block is", "blocks are")
                raise TransportError(f"{open_} not sealed after {timeout:g} s; flush again")
            if self._failures:
                raise next(iter(self._failures.values()))

    def proceed(self) -> None:
        """Send what the queue has freed, unless another thread (or a caller of this one) is at it."""
        while True:
            with self._lock:
                block_hash = None if self._working else self._queue.next_free()
                if block_hash is None:
                    return
                turn = self.turn(block_hash) if self._sending.one_at_a_time else Verdict.SEND
                if turn is Verdict.WAIT:
                    return
                self._queue.hand_over(block_hash)
                publication = self._publications.get(block_hash)
                if publication is None:
                    continue  # closed meanwhile
                self._working = turn is Verdict.SEND
            if turn is Verdict.SKIP:
                self.skip(publication)
                continue
            try:
                self._sending.finish(publication, partial(self._finished, publication))
            except CardinalError as error:
                self._rest()
                self._fail(publication, error)
            else:
                if not self._sending.one_at_a_time:
                    self._rest()

    def stop(self) -> None:
        """Admit nothing any more, and wake every waiter."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def fail_all(self) -> None:
        """Fail what is left."""
        with self._lock:
            left = [one for one in self._publications.values() if not one.failed]
            self._publications.clear()
            self._bytes = 0
        for one in left:
            closed = f"the producer was closed before block 0x{one.hash.hex()} was sealed"
            self._report(one, DeliveryError(closed, block_hash=one.hash))

    # --- inside --------------------------------------------------------------------------------------------

    def _before(self, publication: Publication) -> Publication | None:
        """The failed publication that this one replaces, if any."""
        before = self._publications.get(publication.hash)
        if before is not None and not before.failed:
            raise LocalProtocolError(f"block {publication.hash.hex()} is already being sent")
        return before

    def _wait_for_capacity(self, size: int) -> None:
        def free() -> bool:
            count = len(self._publications)
            return count < self._max_blocks and (not count or self._bytes + size <= self._max_bytes)

        # A callback of a future makes capacity by returning, and waits for none: what it adds goes beyond the bound,
        # by one for each publication that has ended.
        reports = threading.get_ident() in self._reporting
        self._wait_for(lambda: free() or bool(self._failures) or self._closed or reports, None)
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        if not free() and self._failures:
            failed, error = next(iter(self._failures.items()))
            waiting = Count(len(self._publications), "block waits", "blocks wait")
            raise DeliveryError(
                f"{waiting} for block 0x{failed.hex()}, which failed ({error}): add it again",
                block_hash=failed,
            )

    def _wait_for(self, come: Callable[[], bool], timeout: float | None) -> bool:
        """With the lock held: wait for ``timeout`` seconds at most; False when they are over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        serve = self._sending.serve
        while not come():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left < 0:
                return False
            if serve is None:
                self._changed.wait(left)
                continue
            self._lock.release()
            try:
                serve(_SERVE_SECONDS)
            finally:
                self._lock.acquire()
        return True

    def _remove(self, publication: Publication) -> bool:
        """With the lock held; False where it was removed before, as by a close."""
        if self._publications.get(publication.hash) is not publication:
            return False
        del self._publications[publication.hash]
        self._bytes -= publication.size
        self._changed.notify_all()
        return True

    def _started(self, publication: Publication, error: BaseException | None) -> None:
        if error is not None:
            self._fail(publication, error)
            return
        with self._lock:
            if self._publications.get(publication.hash) is publication:
                self._queue.acknowledged(publication.hash)
        self.proceed()

    def _rest(self) -> None:
        with self._lock:
            self._working = False

    def _end(self, publication: Publication) -> bool:
        """With the lock held: it is on the topics, sent by us or by others; False where it was removed before."""
        self._queue.sealed(publication.hash)
        return self._remove(publication)

    def _finished(self, publication: Publication, error: BaseException | None) -> None:
        if self._sending.one_at_a_time:
            self._rest()
        if error is not None:
            self._fail(publication, error)
            return
        with self._lock:
            removed = self._end(publication)
            if removed:
                blocks, messages, size, _, skipped, *_ = self._ended
                blocks, messages = blocks + len(publication.parts), messages + publication.messages
                self._ended = ProducerStats(blocks, messages, size + publication.size, 0, skipped)
        self.proceed()
        if removed:
            self._report(publication, None)

    def _fail(self, publication: Publication, error: BaseException) -> None:
        with self._lock:
            if self._publications.get(publication.hash) is not publication or publication.failed:
                return
            publication.failed = True
            self._queue.failed(publication.hash)
            if isinstance(error, CardinalError):
                self._failures[publication.hash] = error
            self._changed.notify_all()
        self._report(publication, error)
        self.proceed()

    def _report(self, publication: Publication, error: BaseException | None) -> None:
        thread = threading.get_ident()
        outermost = thread not in self._reporting
        self._reporting.add(thread)
        try:
            settle(publication.future, error)
        finally:
            if outermost:
                self._reporting.discard(thread)
