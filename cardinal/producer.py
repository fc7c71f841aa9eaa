"""The producing SDK: payloads in, sealed blocks on the topics.

Rules:

1. A block's messages go out at once, many blocks beside each other; its Batch goes out when all of them are
   acknowledged and the parent's Batch has been handed over (:mod:`cardinal.protocols.streams.publishing.sealing`).
2. ``add`` waits while too many blocks or bytes are under way. It never drops and never queues without bound.
3. A failed block is loud: its future fails, its descendants' Batches wait, and ``add`` of the same payload sends it
   again. While one has failed, ``add`` of others does not wait for room but says which block has to go again.
4. Nothing of a block is sent that the topics cannot carry as a whole.
5. Over a transport with transactions (``transactional=update``), what one call of ``add`` or ``reorg`` publishes is one
   transaction: readers see all of it or nothing. They follow each other, parents before children.
6. In ``standby`` a block waits until it is this producer's turn
   (:mod:`cardinal.protocols.streams.publishing.standby`), and its
   future ends as well when another producer has sealed it.

Threads: ``add``, ``reorg`` and ``send_sub_batch`` may be called from several threads.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.errors import CardinalError, ConfigurationError
from cardinal.producing.deep_reorg import Channel, linked, well_or_failed
from cardinal.producing.heads import Heads
from cardinal.producing.inflight import UnderWay
from cardinal.producing.making import Maker
from cardinal.producing.pings import Pinger, ping_id
from cardinal.producing.standby.checks import is_standby, refuse_foreign_clocks
from cardinal.producing.standby.peer_watch import Tail
from cardinal.producing.unit import ProducerStats, ended
from cardinal.protocols.streams.publishing.splitter import name_sub_batch, split_sub_batch
from cardinal.transports.base import TransactionalSink
from cardinal.transports.posting import PostingSink, size_of
from cardinal.transports.settings import find_url
from cardinal.transports.url import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from cardinal.producing.layout import Stream
    from cardinal.producing.unit import Unit
    from cardinal.protocols.streams.payload import Payload, SubBatch
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports.base import Sink
    from cardinal.transports.url import TransportUrl

__all__ = ["Producer", "ProducerStats", "ping_id"]

_PING_SECONDS: Final = 30.0
_STANDBY_PING_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 10.0
_MAX_BLOCKS: Final = 1024
_MAX_BYTES: Final = 256 << 20


class Producer:
    """Publishes payloads to a stream.

    Arguments:
        url: where to, see :mod:`cardinal.transports.url`; or the name of a stream of the settings file.
        app: the application, as :func:`cardinal.apps.get` gives it.
        producer_id: this producer's name among those of the stream; stays the same over restarts.
        redundancy: ``all``: everything is sent, whatever other producers of the stream send. ``standby``: the producer
            with the lowest id of those that live sends at once, the others only what it leaves out.
        max_blocks: blocks under way before ``add`` waits.
        max_bytes: bytes of their keys and values before ``add`` waits.
        ping_seconds: how often the producer says that it is alive; default 30, in ``standby`` 1.
        standby_step: seconds that each rank waits for the one before it.
        watch: whether to follow what the other producers do, for :attr:`producer_count`; ``standby`` does anyway.
        config: TOML file that names streams, see :mod:`cardinal.transports.settings`; default: the one that
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
        redundancy: str = "all",
        max_blocks: int = _MAX_BLOCKS,
        max_bytes: int = _MAX_BYTES,
        ping_seconds: float | None = None,
        standby_step: float = 0.25,
        watch: bool = False,
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
        self._heads = Heads(self._sink, getattr(app, "reorg_threshold", REORG_THRESHOLD))
        self._transactions = self._sink if isinstance(self._sink, TransactionalSink) else None
        self._maker = Maker(self._sink, app)
        self._naming = threading.Lock()
        """Several sub batches of a block may be named at once, and all of their paths stand in its one Batch."""
        # One transaction after the other is worked off by a thread of the sink's: there is nothing to serve.
        serve = self._sink.serve if isinstance(self._sink, PostingSink) and self._transactions is None else None
        self._under_way = UnderWay(max_blocks, max_bytes, one_at_a_time=self._transactions is not None, serve=serve)
        self._tail: Tail | None = None
        try:
            if standby:
                refuse_foreign_clocks(self._sink)
            if standby or watch:
                self._tail = self._listen(url, step=standby_step, alive=3 * ping_seconds, needed=standby)
            self._pinger = Pinger(
                self._sink, app.default_topic, producer_id, seconds=ping_seconds, may=lambda: self._under_way.healthy
            )
            if self._tail is not None:
                self._tail.start(self._under_way, self._pinger.is_anothers)
        except BaseException:
            if self._tail is not None:
                self._tail.close()
            self._sink.close()
            raise
        self._standby = self._tail if standby else None
        if self._standby is not None:
            self._under_way.turn = self._standby.turn
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
        return self._under_way.stats

    @property
    def producer_count(self) -> ProducerCount | None:
        """Which producers of the stream live, and who was first by how much; None where nobody watches (``watch``)."""
        return None if self._tail is None else self._tail.producer_count

    @property
    def transactional(self) -> bool:
        """Whether what one call publishes is one transaction."""
        return self._transactions is not None

    def add(self, payload: Payload) -> Future[None]:
        """Publish a block, or send a failed one again. Its parent has been added before, or was published.

        Returns:
            A future that ends when the block's Batch is acknowledged (in ``standby`` also when another producer has
            sealed the block), and fails with :class:`~cardinal.errors.DeliveryError` where a message was not
            acknowledged: then add the payload again.

        Raises:
            SplitError: the payload contradicts itself or the application's topics; nothing was sent.
            OversizeError: a message is larger than its topic takes; nothing was sent.
            LocalProtocolError: this block is under way already.
            DeliveryError: there is no room, because another block (``hash``) failed and waits to be added again.
            FencedError: another producer with the same transactional id took over.
            TransportError: the producer is closed.

        """
        return self._publish(self._maker.block(payload), payload.number)

    def send_sub_batch(self, block_hash: bytes, batch_id: bytes, sub_batch: SubBatch) -> Future[None]:
        """Send the content of a sub batch that the block's payload announced with None.

        Returns:
            A future that ends when all messages of the sub batch are acknowledged; with transactions it has ended, and
            the block's own future speaks for them. Where it fails, send it again; the block's Batch waits for it.

        Raises:
            LocalProtocolError: the block is not under way.
            SplitError: the block does not announce it, or its path is taken; or as :meth:`add`.
            OversizeError, TransportError: as :meth:`add`.

        """
        messages = split_sub_batch(block_hash, batch_id, sub_batch, self._app.topics, self._app.default_topic)
        unit = self._under_way.find(block_hash)
        self._sink.check(messages)
        with self._naming:
            if unit.batch is not None:
                named = name_sub_batch(unit.batch, batch_id, sub_batch.path)
                self._sink.check((named,))
                unit.batch = named
        if self._transactions is None:
            future = self._sink.send(messages, None)
        else:
            unit.content += messages
            future = ended()
        self._under_way.grow(unit, len(messages), size_of(messages))

        def acknowledged(sent: Future[None]) -> None:
            if sent.exception() is None:
                self._under_way.sub_batch_sent(unit, batch_id)

        future.add_done_callback(acknowledged)
        return future

    def reorg(self, ancestor: BlockRef, payloads: Iterable[Payload]) -> Future[None]:
        """Publish a branch, from its first block above the common ancestor to one that is heavier than the old head.

        Within the reorg threshold its blocks are added one by one, or in one transaction. Deeper it goes through a
        channel of its own: a topic, announced on the default topic, that holds the whole branch (specification, Reorg
        Handling). Every producer sends such a channel for itself, also in ``standby``; consumers take the first that is
        complete. Waits until the channel is announced.

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
        tip = branch[-1]
        if self._heads.deep(ancestor, tip.hash):
            channel = Channel(self._sink, self._app, ancestor, branch)
            self._under_way.enter(channel.unit)
            self._heads.added(tip.number)
            self._under_way.begin(channel.unit)
            return channel.unit.future
        units = [self._maker.block(payload) for payload in branch]
        self._heads.goes(tip.hash, tip.number)
        if self._transactions is None:
            whole = well_or_failed(self._publish_each(units, branch))
        else:
            whole = self._publish(self._maker.together(ancestor, units), tip.number)
        whole.add_done_callback(partial(self._heads.ended, tip.hash))
        return whole

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until every block that was added is sealed.

        Raises:
            DeliveryError, OversizeError, …: a block failed and was not added again.
            TransportError: not done after ``timeout`` seconds.

        """
        self._under_way.flush(timeout)

    def close(self) -> None:
        """Flush for a bounded time and release the connection. Blocks that are not sealed fail. May be called twice."""
        if not self._pinger.stop():
            return
        with contextlib.suppress(CardinalError):  # told to whoever holds the futures
            self._under_way.flush(_CLOSE_SECONDS)
        self._under_way.stop()
        if self._tail is not None:
            self._tail.close()
        self._sink.close()
        self._pinger.join(_CLOSE_SECONDS)
        self._under_way.fail_all()

    # --- inside --------------------------------------------------------------------------------------------

    def _listen(self, url: str | TransportUrl, *, step: float, alive: float, needed: bool) -> Tail | None:
        """An ear on the stream; None where it cannot be read and nothing depends on it."""
        try:
            return Tail(url, self._app, self._producer_id, step=step, alive=alive, transactions=self._transactions)
        except CardinalError:
            if needed:
                raise
            return None

    def _publish(self, unit: Unit, number: int) -> Future[None]:
        """Let a unit in, and begin it: at once, or when it is this producer's turn."""
        again = self._under_way.enter(unit)
        self._heads.added(number)
        if self._standby is None or again:
            self._under_way.begin(unit)
        else:
            self._standby.offer(unit)
        return unit.future

    def _publish_each(self, units: Sequence[Unit], branch: Sequence[Payload]) -> list[Future[None]]:
        """Every block of a branch that is not on its way; first those that failed, as others hold room and wait."""
        known = [self._under_way.known(unit.hash) for unit in units]
        parts = sorted(zip(known, units, branch, strict=True), key=lambda part: part[0] is None)
        return [
            self._publish(unit, payload.number) if before is None or before.failed else before.future
            for before, unit, payload in parts
        ]
