"""Producer: payloads in, sealed blocks on the topics.

Rules:

1. A block's messages go out at once, many blocks alongside each other; its Batch goes out when all of them are
   acknowledged and the parent's Batch was sent (:mod:`cardinal.protocols.streams.publishing.sealing`).
2. ``add`` waits while too many blocks or bytes are in flight. It never drops and never queues without bound.
3. A failed block is loud: its future fails, its descendants' Batches wait, and ``add`` of the same payload sends it
   again. While one has failed, ``add`` of others does not wait for capacity but raises, naming the failed block.
4. Nothing of a block is sent that the topics cannot carry as a whole.
5. Over a transport with transactions (``transactional=update``), what one call of ``add`` or ``reorg`` publishes is one
   transaction: readers see all of it or nothing. They follow each other, parents before children.
6. In ``standby`` a block waits until this producer's rank is due
   (:mod:`cardinal.protocols.streams.publishing.standby`), and its future ends as well when another producer has sealed
   it.

Threads: ``add``, ``reorg`` and ``send_sub_batch`` may be called from several threads.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, Literal, Self

from cardinal._concurrency import new_future
from cardinal.apps.base import REORG_THRESHOLD
from cardinal.config.settings import find_url
from cardinal.consuming.gc_pause import collector_waits
from cardinal.errors import CardinalError, ConfigurationError, LocalProtocolError
from cardinal.producing.deep_reorg import BranchDepth, channel, linked
from cardinal.producing.inflight import InFlight, ProducerStats, Publication, all_of, block, sending, together
from cardinal.producing.origin import settle_origin
from cardinal.producing.pings import Pinger, ping_id
from cardinal.producing.standby.peer_watch import PeerWatch, is_standby, refuse_foreign_clocks
from cardinal.protocols.streams.publishing.splitter import name_sub_batch, split_sub_batch
from cardinal.texts import Count
from cardinal.transports.registry import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from cardinal.config.url import TransportUrl
    from cardinal.producing.layout import Stream
    from cardinal.producing.standby.arrivals import ArrivalCounts
    from cardinal.protocols.streams.payload import Payload, SubBatch
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports.base import Sink

__all__ = ["Producer", "ProducerStats", "ping_id"]

_PING_SECONDS: Final = 30.0
_STANDBY_PING_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0
_MAX_BLOCKS: Final = 1024
_MAX_BYTES: Final = 256 << 20


class Producer:
    """Publishes payloads to a stream.

    Arguments:
        url: where to, see :mod:`cardinal.config.url`; or the name of a stream of the settings file.
        app: the application, as :func:`cardinal.apps.get` gives it.
        producer_id: this producer's name among those of the stream; stays the same over restarts.
        redundancy: ``all``: everything is sent, whatever other producers of the stream send. ``standby``: the producer
            with the lowest id of those that live sends at once, the others only what it leaves out.
        max_blocks: blocks in flight before ``add`` waits.
        max_bytes: bytes of their keys and values before ``add`` waits.
        ping_seconds: seconds between two pings; default 30, in ``standby`` 1.
        standby_step: seconds that each rank waits for the one before it.
        watch: follow the other producers, for :attr:`producer_count`; ``standby`` does anyway.
        reorg_channels: send a reorg deeper than the threshold through a channel. False, for streams with consumers of
            the Go implementation, which a channel stops with a panic: its blocks go out as any others. A consumer whose
            threshold is not larger than the depth then keeps the old branch, until it is started again from a block
            below.
        config: TOML file that names streams, see :mod:`cardinal.config.settings`; default: the one that
            ``CARDINAL_CONFIG`` names.

    Raises:
        ConfigurationError, UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_sink`.
        FencedError: over a transport with transactions, another producer with this id takes over at this moment.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: Stream,
        *,
        producer_id: str,
        redundancy: Literal["all", "standby"] = "all",
        max_blocks: int = _MAX_BLOCKS,
        max_bytes: int = _MAX_BYTES,
        ping_seconds: float | None = None,
        standby_step: float = 0.25,
        watch: bool = False,
        reorg_channels: bool = True,
        config: str | Path | None = None,
    ) -> None:
        url = find_url(url, config)
        standby = is_standby(redundancy, url)
        if ping_seconds is None:
            ping_seconds = _STANDBY_PING_SECONDS if standby else _PING_SECONDS
        if not producer_id or min(max_blocks, max_bytes) < 1 or min(ping_seconds, standby_step) <= 0:
            raise ConfigurationError("a producer needs an id, room for a block, and a time between pings")
        self._app = app
        self._producer_id = producer_id
        self._sink: Sink = open_sink(url, app, producer_id=producer_id)
        self._name = f"{app.default_topic} at {str(url).partition('?')[0]}"
        self._sending = sending(self._sink)
        self._in_flight = InFlight(self._sending, max_blocks, max_bytes)
        self._depth = BranchDepth(self._sink, getattr(app, "reorg_threshold", REORG_THRESHOLD))
        self._channels = reorg_channels
        self._naming = threading.Lock()
        """Several sub batches of a block may be named at once, and all of their paths stand in its one Batch."""
        self._watch: PeerWatch | None = None
        with contextlib.ExitStack() as opened:
            opened.callback(self._sink.close)
            if standby:
                refuse_foreign_clocks(self._sink)
            if standby or watch:
                self._watch = self._follow_peers(url, step=standby_step, alive=3 * ping_seconds, needed=standby)
            if self._watch is not None:
                opened.callback(self._watch.close)
            self._pinger = Pinger(
                self._sink, app.default_topic, producer_id, seconds=ping_seconds, may=lambda: self._in_flight.healthy
            )
            if self._watch is not None:
                self._watch.start(self._in_flight, self._pinger.is_anothers)
            opened.pop_all()
        self._standby = self._watch if standby else None
        if self._standby is not None:
            self._in_flight.turn = self._standby.turn
        self._pinger.start()

    def __repr__(self) -> str:
        return f"<Producer {self._producer_id!r} of {self._name}, {Count(self.stats.in_flight, 'block')} in flight>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> ProducerStats:
        """Counters of what was sealed since the start, and of what is in flight."""
        return self._in_flight.stats

    @property
    def producer_count(self) -> ProducerCount | None:
        """The producers of the stream that live, and which were first; None without ``watch``."""
        return None if self._watch is None else self._watch.producer_count

    @property
    def arrivals(self) -> ArrivalCounts | None:
        """Duplicates and divergences of Batches, and the lag of each producer; None without ``watch``."""
        return None if self._watch is None else self._watch.arrivals

    @property
    def ping_waits(self) -> float:
        """Seconds for which the last ping has not been acknowledged; 0 where it has."""
        return self._pinger.waits

    @property
    def transactional(self) -> bool:
        """True where what one call publishes is one transaction."""
        return self._sending.one_at_a_time

    def add(self, payload: Payload) -> Future[None]:
        """Publish a block, or send a failed one again. Its parent has been added before, or was published.

        Returns:
            A future that ends when the block's Batch is acknowledged (in ``standby`` also when another producer has
            sealed the block), and fails with :class:`~cardinal.errors.DeliveryError` where a message was not
            acknowledged: then add the payload again.

        Raises:
            SplitError: the payload contradicts itself or the application's topics; nothing was sent.
            OversizeError: a message is larger than its topic takes; nothing was sent.
            LocalProtocolError: this block is in flight already.
            DeliveryError: no capacity, because another block (``hash``) failed and waits to be added again.
            FencedError: another producer with the same transactional id took over.
            TransportError: the producer is closed.

        """
        # A block is thousands of objects that live until it is sent; cycle detection took a tenth of the time.
        with collector_waits():
            return self._publish(block(payload, self._app, self._sink), payload.number)

    def send_sub_batch(self, block_hash: bytes, batch_id: bytes, sub_batch: SubBatch) -> Future[None]:
        """Send the content of a sub batch that the block's payload announced with None.

        Returns:
            A future that ends when all messages of the sub batch are acknowledged; with transactions it has ended, and
            the block's own future speaks for them. Where it fails, send it again; the block's Batch waits for it.

        Raises:
            LocalProtocolError: the block is not in flight.
            SplitError: the block does not announce it, or its path is taken; or as :meth:`add`.
            OversizeError, TransportError: as :meth:`add`.

        """
        messages = split_sub_batch(block_hash, batch_id, sub_batch, self._app.topics, self._app.default_topic)
        publication = self._in_flight.get(block_hash)
        if publication is None:
            raise LocalProtocolError(f"block 0x{block_hash.hex()} is not in flight: add its payload first")
        size = self._sink.check(messages)
        with self._naming:
            if publication.closing is None:
                part = publication.parts[-1]
                named = name_sub_batch(part.batch, batch_id, sub_batch.path)
                self._sink.check((named,))
                part.batch = named
        part = publication.parts[-1]
        part.written.sends(size)
        if self.transactional:
            part.content += messages
            future = new_future()
            future.set_result(None)
        else:
            future = self._sink.send(messages, None, part.written)
        self._in_flight.grow(publication, len(messages), size)

        def acknowledged(sent: Future[None]) -> None:
            if sent.exception() is None:
                self._in_flight.sub_batch_sent(publication, batch_id)

        future.add_done_callback(acknowledged)
        return future

    def reorg(self, ancestor: BlockRef, payloads: Iterable[Payload]) -> Future[None]:
        """Publish a branch, from its first block above the common ancestor to one that is heavier than the old head.

        Within the reorg threshold its blocks are added one by one, or in one transaction. Deeper it goes through a
        channel of its own: a topic, announced on the default topic, that holds the whole branch (``schemas/SPEC.md``,
        section 2.6). Every producer sends such a channel for itself, also in ``standby``; consumers take the first that
        is complete. Waits until the channel is announced.

        Arguments:
            ancestor: the last block that both branches have.
            payloads: the blocks above it, oldest first, each the parent of the next.

        Returns:
            A future that ends when all of it is on the topics, or fails when a part of it has. Where it fails, call
            again with the same branch: what failed goes again, what is still on its way is waited for, and of a
            channel a new attempt begins.

        Raises:
            LocalProtocolError: no branch above the ancestor, or a sub batch without content; nothing was sent.
            ConfigurationError: the transport has no reorg channels.
            TopicError: the channel's topic cannot be created; and as :meth:`add`.

        """
        branch = linked(ancestor, payloads)
        number = branch[-1].number
        before = self._in_flight.get(branch[-1].hash)
        is_again = before is not None and before.closing is None  # sent as it was: its own blocks make it no deeper
        if self._channels and not is_again and self._depth.is_deep(ancestor):
            attempt = channel(self._sink, self._app, ancestor, branch)
            self._in_flight.admit(attempt)
            self._depth.added(number)
            self._in_flight.begin(attempt)
            return attempt.future
        blocks = [block(payload, self._app, self._sink) for payload in branch]
        if self.transactional:
            return self._publish(together(ancestor, blocks), number)
        return all_of(self._publish_each(blocks, branch))

    def settle_origin(self, proposal: str) -> str:
        """Settle the origin of a new stream's weights: the earliest proposal on the topics, else this one, sent now.

        Raises:
            UnreachableError: the proposal does not become readable; as :meth:`add`.

        """
        stamp = self._pinger.sent_ms
        return settle_origin(self._sink, self._app.default_topic, self._producer_id, proposal, stamp_ms=stamp)

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until every block that was added is sealed.

        Raises:
            DeliveryError, OversizeError, …: a block failed and was not added again.
            TransportError: not done after ``timeout`` seconds.

        """
        self._in_flight.flush(timeout)

    def close(self) -> None:
        """Flush for a bounded time and release the connection. Blocks that are not sealed fail. May be called twice."""
        if not self._pinger.stop():
            return
        with contextlib.suppress(CardinalError):  # the futures report it
            self._in_flight.flush(_CLOSE_SECONDS)
        self._in_flight.stop()
        if self._watch is not None:
            self._watch.close()
        self._pinger.end()
        self._sink.close()
        self._pinger.join(_CLOSE_SECONDS)
        self._in_flight.fail_all()

    # --- inside --------------------------------------------------------------------------------------------

    def _follow_peers(self, url: str | TransportUrl, *, step: float, alive: float, needed: bool) -> PeerWatch | None:
        """Follow the other producers; None where the stream cannot be read and nothing depends on it."""
        transactions = self._sink if self.transactional else None
        try:
            return PeerWatch(url, self._app, self._producer_id, step=step, alive=alive, transactions=transactions)
        except CardinalError:
            if needed:
                raise
            return None

    def _publish(self, publication: Publication, number: int) -> Future[None]:
        """Admit a publication, and begin it: at once, or when this producer's rank is due."""
        again = self._in_flight.admit(publication)
        self._depth.added(number)
        if self._standby is None or again:
            self._in_flight.begin(publication)
        else:
            self._standby.offer(publication)
        return publication.future

    def _publish_each(self, blocks: Sequence[Publication], branch: Sequence[Payload]) -> list[Future[None]]:
        """Publish every block that is not in flight; first those that failed, as others hold capacity and wait."""
        before = [self._in_flight.get(one.hash) for one in blocks]
        parts = sorted(zip(before, blocks, branch, strict=True), key=lambda part: part[0] is None)
        return [
            self._publish(one, payload.number) if old is None or old.failed else old.future
            for old, one, payload in parts
        ]
