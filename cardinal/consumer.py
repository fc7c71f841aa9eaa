"""The consuming SDK: a stream's complete blocks, in chain order, as updates.

Example::

    for update in Consumer("kafka://localhost:9092", app="evm"):
        for block in update.removed: undo(block)  # a reorg: newest first
        for block in update.added: apply(block)  # oldest first
        save(str(update.cursor))  # in the transaction that saves the data

Always handle ``removed``: a chain may be replaced at any update. To read only what is there and then stop::

    with Consumer(url, "evm", tracked="logs", until="end") as consumer:  # or the number of a block
        for update in consumer: ...

Rules:

1. An update is delivered when all of its blocks are complete. A reorg is one update.
2. A consumer that resumes from an update's cursor continues with the following update, and ``seq`` continues.
3. A backlog is delivered as few large updates: reorgs that were over when it was read do not appear in it.
4. Memory is bounded: partitions that run ahead are paused, and blocks that stay incomplete are bounded.
5. Everything that is not an update (divergences, rejected records, incomplete blocks, pings, …) goes to ``on_event``.
6. That the server is unreachable, and that it is back, goes to the logger ``cardinal.consumer``.

A consumer belongs to one thread at a time. :meth:`Consumer.close` and the properties may be used from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Self, Unpack

from cardinal.apps import DEFAULT
from cardinal.config.settings import find_url
from cardinal.consuming.healing import Healer
from cardinal.consuming.health import Health
from cardinal.consuming.loop import Loop
from cardinal.consuming.options import (
    ConsumerKeywords,
    ConsumerOptions,
    application_of,
    block_hash_of,
    changed,
    cursor_of,
    finality_paths,
    find_application,
)
from cardinal.consuming.reader import Reader
from cardinal.consuming.reports import log_report
from cardinal.consuming.start_position import Beginning, at_number, at_time
from cardinal.consuming.topics import wanted_topics
from cardinal.errors import ConfigurationError, TransportError
from cardinal.protocols.streams.assembly.digests import digested
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.following.follower import Follower, FollowerSettings
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from types import TracebackType

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate, Explanation
    from cardinal.protocols.streams.types import BlockRef, FinalityViolated, Partition, Routed
    from cardinal.transports import TransportUrl
    from cardinal.transports.base import OpenTransaction

__all__ = ["Consumer", "ConsumerOptions", "find_application"]

_log = logging.getLogger("cardinal.consumer")
_DEFAULTS: Final = ConsumerOptions()
_END_SECONDS: Final = 10.0
"""``until="end"``, where something of the backlog waits for messages or parents, or a reorg channel does not end.

A start in doubt takes 5 seconds."""
_OVERTAKEN_SECONDS: Final = 30.0
"""A heavier chain has waited for a parent for so long: the consumer is not ready."""


class Consumer:
    """Reads a stream and delivers its chain, update by update.

    Arguments:
        url: where to read, see :mod:`cardinal.config.url`; or the name of a stream in the settings file.
        app: the application or its name.
        start: where to begin. A cursor or its text resumes after the update that it came with. Otherwise: ``earliest``
            (the default) begins with the oldest block from which the retained chain is complete to its head, so
            complete blocks below a gap are left out; the number of a block begins with that block and delivers a
            :class:`~cardinal.MissingPayload` for each gap; ``latest`` begins with what comes from now on; a time begins
            with the blocks that were published from then on.
        chain_id: which chain, where ``app`` is a name. Default: the cursor's, else the only one on the server. Name it:
            another chain may appear there.
        options: see :class:`ConsumerOptions`.
        keywords: the fields of :class:`ConsumerOptions`, each under its own name. They override ``options``.

    Raises:
        ConfigurationError: a URL, application or option cannot work.
        TypeError: there is no option of this name.
        CursorError: the cursor is invalid, belongs to another stream, or needs records that have expired.
        UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_source`.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: str | Application = DEFAULT,
        *,
        start: str | Cursor | int | datetime | None = "earliest",
        chain_id: int | None = None,
        options: ConsumerOptions = _DEFAULTS,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        options = changed(options, keywords)
        cursor = cursor_of(start)
        start = "earliest" if start is None else start
        if isinstance(start, int) and isinstance(options.until, int) and start > options.until:
            raise ConfigurationError(f"until={options.until} lies below start={start}", setting="until")
        url = find_url(url, options.config)
        self.app = application_of(url, app, chain_id, options.topics_timeout, cursor)
        # At the tail the first blocks are incomplete: their first messages are below it.
        at_tail = start == "latest" if cursor is None else not cursor.ring
        settings = replace(options.follower_settings(self.app), patient=not at_tail)
        self._options = options
        self._fetched: ChainUpdate | None = None
        self._until = settings.until
        self._last = self._end_at(None if cursor is None else cursor.head)
        """The block with which the iteration ended."""
        self._idle_since = time.monotonic()
        self._closed = threading.Event()
        self._reading = threading.RLock()  # a handler of events may supply messages
        tracked = None if options.tracked is None else settings.tracked or ()
        self._reader = Reader(
            url,
            self.app,
            wait=options.topics_timeout,
            topics=wanted_topics(self.app, tracked, () if cursor is None else {topic for topic, _ in cursor.next}),
            skip=options.skip,
            whole=options.policy != "first",
            room=settings.bounds.open_blocks // (len(settings.producers) or 1),
            threshold=settings.reorg_threshold,
            without=None if options.content == "values" else partial(digested, keep=finality_paths(self.app)),
            batches_alone=options.content == "ranges" and not options.skip,
        )
        try:
            follower = self._begin(settings, start if cursor is None else cursor)
        except BaseException:
            self._reader.close()
            raise
        self._health = Health(self._reader.watermarks, self._reader.positions())
        self._healer = None if options.heal is None else Healer(options.heal)
        on_event = log_report if options.on_event is None else options.on_event
        self._loop = Loop(follower, self._reader, on_event, self._healer)
        self._overtaken_since: float | None = None
        self._name = f"{self.app.chain} at {str(url).partition('?')[0]}"
        self._unreachable_since: float | None = None

    def _begin(self, settings: FollowerSettings, start: str | Cursor | int | datetime) -> Follower:
        reader = self._reader
        reader.watermarks.query()
        if isinstance(start, Cursor):
            follower = Follower(settings, start if reader.alone is None else reader.alone.resumed(start))
            # Channels that the cursor was reading are looked at first: their records count for what can be resumed.
            reader.channels.resume(follower.channels, start.floor)
            begin: Mapping[Partition, int] = follower.begin_at(reader.marks())
        else:
            beginning = self._beginning(start)
            below, weight = beginning.below, beginning.weight
            follower = Follower(replace(settings, start=below, start_weight=weight, start_delivered=False))
            begin = beginning.positions
            follower.begin_at(reader.marks())
        reader.main.assign({tp: at for tp, at in begin.items() if tp in reader.watermarks.newest})
        return follower

    def _beginning(self, start: str | int | datetime) -> Beginning:
        reader = self._reader
        if isinstance(start, datetime):
            return at_time(reader.main, self.app, start)
        if isinstance(start, int):
            with contextlib.closing(reader.searching()) as searching:
                beginning = at_number(searching, self.app, start, self.app.reorg_threshold)
            reader.watermarks.query()  # a block that was found lies below them
            return beginning
        at_end = start == "latest"
        return Beginning({tp: high if at_end else low for tp, (low, high) in reader.watermarks.newest.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)  # another thread may be reading, and is waited for

    def __repr__(self) -> str:
        head = "before its first block" if self.head is None else f"block {self.head.number} 0x{self.head.hash.hex()}"
        state = "closed" if self._closed.is_set() else "ready" if self.ready else "not ready"
        return f"<Consumer of {self._name}, {head}, {state}>"

    def __iter__(self) -> Iterator[ChainUpdate]:
        """Updates as they become complete, until the consumer is closed or an option ends the iteration."""
        self._request()
        while self._is_iterating():
            if self._loop.ready:
                yield self._fetch()
                self._request()
            else:
                self._step()

    def __aiter__(self) -> AsyncIterator[ChainUpdate]:
        """The same without blocking the event loop: records are read on another thread."""
        self._request()
        return self

    async def __anext__(self) -> ChainUpdate:
        """The next update for an event loop. A call that is cancelled loses nothing: the next one continues."""
        if self._fetched is not None:
            self._request()
        while self._is_iterating():
            if self._loop.ready:
                return self._fetch()
            await asyncio.to_thread(self._step)
        raise StopAsyncIteration

    def explain(self, block_hash: bytes | str) -> Explanation:
        """The state of a block, and what it waits for.

        Arguments:
            block_hash: 32 bytes, or their hex text with or without ``0x``.

        Raises:
            ConfigurationError: it is no block hash.

        """
        if isinstance(block_hash, str):
            with contextlib.suppress(ValueError):  # refused below
                block_hash = bytes.fromhex(block_hash.removeprefix("0x"))
        return self._loop.follower.explain(block_hash_of(block_hash, "block_hash"))

    def supply(self, messages: Iterable[Routed]) -> None:
        """Supply messages that an incomplete block lacks. They count where no topic has a copy.

        Raises:
            ConfigurationError: with ``content="ranges"``, whose readers find only what is on topics.

        """
        if self._options.content != "values":
            raise ConfigurationError("content='ranges' delivers content of topics alone", setting="content")
        with self._reading:
            self._loop.supply(messages)

    @property
    def awaited(self) -> list[Explanation]:
        """Blocks that the chain waits for, lowest first: missing parents, and open blocks above the head."""
        with self._reading:
            return self._loop.follower.awaited()

    @property
    def caught_up(self) -> bool:
        """Everything that was there at opening has been read, and no evicted block is being re-read."""
        follower, alone = self._loop.follower, self._reader.alone
        reads_all = alone is None or alone.caught_up
        return reads_all and follower.caught_up and not follower.resuming and not follower.rewinding

    @property
    def ready(self) -> bool:
        """The answer to a health check: the consumer follows the stream.

        True while the server answers, the reading does not lag by more than some seconds, everything that was there at
        opening has been delivered (no complete block above the head waits for its parent), no evicted block is being
        re-read, nothing is withheld, no heavier chain has waited for a parent for half a minute, and not more blocks
        lack a quorum than a reorg may be deep (none before the first update). An update counts as delivered when the
        next one is requested. False once the consumer is closed.
        """
        return (
            not self._closed.is_set()
            and self.connected
            and not self._health.lags
            and self._has_delivered_all
            and self._fetched is None
            and self.withheld is None
            and not self._is_overtaken
            and self.without_quorum <= (0 if self.head is None else self.app.reorg_threshold)
        )

    @property
    def connected(self) -> bool:
        """The server answers. False some seconds after the server became unreachable, true when it is back."""
        return self._health.connected

    @property
    def last_read_at(self) -> float:
        """Time of the last records, or of the last request that the server answered, by ``time.monotonic()``.

        At least every few seconds while somebody iterates; ``time.monotonic() - consumer.last_read_at`` is its age.
        """
        return self._health.last_read_at

    @property
    def lag(self) -> int:
        """Records on the topics that are not read yet, or were read with updates that are not handled yet.

        Records behind an open transaction, which no reader sees yet, are among them. The ends of the topics are those
        of the last answer, see :meth:`refresh_lag`.
        """
        return self._health.lag

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest record of :attr:`lag`, as far as known: some seconds less than it is; 0 without lag."""
        return self._health.lag_seconds

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions of other programs that have been open for some seconds, and hide records from every reader.

        It queries the server where there are some, and may take some seconds.
        """
        stuck = self._reader.watermarks.hiding.for_long()
        if self._closed.is_set() or not stuck:
            return []
        with contextlib.suppress(TransportError):
            return [one for one in self._reader.main.open_transactions() if one.tp in stuck]
        return []

    def refresh_lag(self, seconds: float = 1.0) -> None:
        """Query the ends of the topics where the last answer is some seconds old, also while an update is handled.

        Arguments:
            seconds: the wait for the answer, at most.

        """
        if not self._closed.is_set():
            self._health.refresh(seconds)

    @property
    def withheld(self) -> FinalityViolated | None:
        """The reorg below a finalized block that is withheld; None where none is."""
        halts = self._options.on_finality_violation == "halt"
        return self._loop.follower.orderer.violation if halts else None

    @property
    def without_quorum(self) -> int:
        """The complete blocks of one producer, of the one with the most, on which too few others agree.

        Above the reorg threshold the consumer is not ready: another producer does not publish what it should.
        """
        reassembler = self._loop.follower.reassembler
        return reassembler.undecided if isinstance(reassembler, QuorumReassembler) else 0

    @property
    def open_blocks(self) -> int:
        """Number of blocks whose messages have not all been read."""
        with self._reading:
            return len(self._loop.follower.reassembler.open_blocks())

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are held: of open blocks, and of recent ones that are compared with further copies."""
        with self._reading:
            return self._loop.follower.reassembler.held_bytes

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read."""
        return self._reader.positions()

    @property
    def head(self) -> BlockRef | None:
        """The newest block in chain order: the cursor's, or the newest update's; None before the first."""
        return self._last or self._loop.follower.head

    def close(self) -> None:
        """End the iteration and release the connection. May be called twice, and from another thread."""
        self._closed.set()
        if self._healer is not None:
            self._healer.close()
        with self._reading:  # the client is not closed while another thread reads
            self._reader.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _request(self) -> None:
        """Request the next update: the one before it, also of an iteration that was left, is delivered."""
        before, self._fetched, self._idle_since = self._fetched, None, time.monotonic()
        if self._has_delivered_all:
            self._health.delivered()
        elif before is not None and not self._loop.ready:  # the updates of one step have the same floor
            self._health.delivered_below(before.cursor.floor)

    def _fetch(self) -> ChainUpdate:
        self._fetched = update = self._loop.ready.popleft()
        self._last = self._end_at(update.added[-1].ref if update.added else None)
        return update

    def _end_at(self, head: BlockRef | None) -> BlockRef | None:
        """A head with which the iteration ends; None for any other."""
        return head if self._until is not None and head is not None and head.number >= self._until else None

    def _is_iterating(self) -> bool:
        """True while neither a call nor an option ends the iteration."""
        return not self._closed.is_set() and self._last is None and (bool(self._loop.ready) or not self._is_over())

    def _step(self) -> None:
        """Read once, unless the consumer was closed meanwhile."""
        with self._reading:
            if self._closed.is_set():
                return
            before = self._reader.positions()
            reads_behind = not self.caught_up
            self._loop.step()
            self._look_ahead()
            positions = self._reader.positions()
            if reads_behind and positions != before:
                self._idle_since = time.monotonic()
            self._health.look(positions)
            if self._has_delivered_all:
                self._health.delivered()
            self._log_connection()

    def _look_ahead(self) -> None:
        """Take note of a heavier chain that waits for a parent."""
        if not (self.caught_up and self._loop.follower.orderer.is_overtaken):
            self._overtaken_since = None
        elif self._overtaken_since is None:
            self._overtaken_since = time.monotonic()

    @property
    def _is_overtaken(self) -> bool:
        since = self._overtaken_since
        return since is not None and time.monotonic() - since > _OVERTAKEN_SECONDS

    def _log_connection(self) -> None:
        """Log that the server became unreachable or is back."""
        if self.connected == (self._unreachable_since is None):
            return
        if self._unreachable_since is None:
            self._unreachable_since = self._health.last_read_at
            _log.warning("%s does not answer: waiting for it", self._name)
        else:
            seconds, self._unreachable_since = time.monotonic() - self._unreachable_since, None
            behind = Count(self.lag, "record")
            _log.info("%s answers again after %.0f s: %s behind", self._name, seconds, behind)

    @property
    def _has_delivered_all(self) -> bool:
        follower = self._loop.follower
        return self.caught_up and not follower.about_to_begin and not follower.leaves_blocks and self._loop.delivered

    def _is_over(self) -> bool:
        idle = time.monotonic() - self._idle_since
        if self._options.until == "end" and self.caught_up:
            quorum, withheld = self.without_quorum, self.withheld
            if self._has_delivered_all and not (self._loop.follower.channels or quorum or withheld):
                return True
            if idle > _END_SECONDS:
                waits = str(withheld or "") or "; ".join(map(str, (*self.open_transactions(), *self.awaited[:3])))
                waits = waits or (
                    f"{Count(quorum, 'block has', 'blocks have')} no quorum" if quorum else "a reorg that has not ended"
                )
                _log.warning("%s ends before everything that was there is delivered: %s", self._name, waits)
                return True
            return False
        return self._options.idle_timeout is not None and idle > self._options.idle_timeout
