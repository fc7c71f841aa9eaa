"""The consuming SDK: a stream's complete blocks, in chain order, as updates.

Example::

    for update in Consumer("kafka://localhost:9092", app="evm"):
        for block in update.removed: undo(block)
        for block in update.added: apply(block)
        save(str(update.cursor))  # in the transaction that saves the data

Rules:

1. An update is given when all of its blocks are complete; a reorg is one update.
2. Resumed from an update's cursor, the next update is the one that follows it, and ``seq`` goes on.
3. Memory is bounded: partitions that run ahead are paused, and what stays open is bounded by the reassembler.
4. What is not an update (divergences, rejected records, quarantined blocks, pings, …) goes to ``on_event``.

A consumer belongs to one thread at a time; :meth:`Consumer.close` may be called from any.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

from cardinal.consuming.async_iter import Updates
from cardinal.consuming.checks import at_least, check_hashes, check_positions, check_several, choice, cursor_of
from cardinal.consuming.finding import application_of, find_application
from cardinal.consuming.healing import Heal, Healer
from cardinal.consuming.loop import Driver
from cardinal.consuming.options import room_again, room_of, settings_of
from cardinal.consuming.pruning import wanted_topics
from cardinal.consuming.reader import Reader
from cardinal.consuming.start_position import Beginning, at_number, at_time
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.following.follower import Follower, FollowerSettings, OnIncomplete
from cardinal.protocols.streams.ordering.finality import OnFinalityViolation
from cardinal.transports.settings import find_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from cardinal.apps import Application
    from cardinal.consuming.healing import HealingFailed
    from cardinal.protocols.streams.assembly.block import Explanation
    from cardinal.protocols.streams.events import ChainUpdate, Event
    from cardinal.protocols.streams.types import BlockRef, Partition, Position, Routed
    from cardinal.transports import TransportUrl

__all__ = ["Consumer", "find_application"]

_TOPICS_SECONDS: Final = 10.0
_BOUNDS: Final = Bounds()


class Consumer:
    """Delivers a stream's chain.

    Arguments:
        url: where from, see :mod:`cardinal.transports.url`; or the name of a stream of the settings.
        app: the application or its name.
        start: a cursor or its text; or where to begin without one: None or ``start`` (everything that is kept),
            ``tail`` (what comes from now on), the number of the first block to deliver, or the time from which on
            blocks were published.
        chain_id: which chain, where ``app`` is a name; default: the only one that is there.
        on_event: told of everything that is not an update, before the updates that came about later. It may call
            :meth:`supply`. What it raises ends the iteration; another iteration goes on with what comes next.
        tracked: expressions over a Batch's entries; only blocks' content under these is waited for, and only the topics
            that can hold it are read. Default: what the application declares, and whatever travels inside Batches.
        whitelist: number to the only hash that may stand there; a chain through another block there is never taken.
        blacklist: hashes of blocks that are never accepted, nor what descends from them.
        policy: ``first``, or ``quorum:k``: k of ``producers`` must have sent the same block. Anybody who may write to
            a topic may write a producer's id: it proves something only where the broker's access rules bind
            principals to topics.
        producers: the ids of the producers that count for a quorum.
        on_incomplete: ``skip`` (a block that provably cannot be had is passed over, as a
            :class:`~cardinal.MissingPayload`) or ``halt`` (the stream waits for somebody to supply it). With a quorum,
            ``skip`` passes over a block on which too few agree when everything on the topics is read a threshold of
            blocks later, though a producer that lags farther might still decide it. ``halt`` waits for that producer.
        on_finality_violation: ``halt`` (a switch below a finalized block is withheld) or ``follow``.
        max_open_bytes: what blocks that are not complete may hold in memory; beyond it they are dropped, reported, and
            read again when their Batch comes or complete blocks wait for them.
        heal: asked for the messages that an overdue block lacks, on a thread of its own; a node or an archive may
            have them. No block is given up while it is asked, so it must end in time.
        skip: topic, partition and offset of records to pass over as if they were not there: what a broken producer
            wrote and the stream should go on without. Each is told as :class:`~.events.Rejected`.
        config: the TOML file that names streams, see :mod:`cardinal.transports.settings`; default: the one that
            ``CARDINAL_CONFIG`` names.
        topics_timeout: seconds to wait for the stream's topics to exist.
        idle_timeout: seconds without an update after which iteration ends, counted from the last record read while
            what was there at opening is still being read: a slow machine cuts nothing off. None: never.

    Raises:
        ConfigurationError: a URL, application or option that cannot work.
        CursorError: the cursor is none, is of another stream, or needs records that are gone.
        UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_source`.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: str | Application = "evm",
        *,
        start: str | Cursor | int | datetime | None = "start",
        chain_id: int | None = None,
        on_event: Callable[[Event | HealingFailed], None] | None = None,
        tracked: Sequence[str] | None = None,
        whitelist: Mapping[int, bytes] | None = None,
        blacklist: Collection[bytes] = (),
        policy: str = "first",
        producers: Sequence[str] = (),
        on_incomplete: str = OnIncomplete.SKIP.value,
        on_finality_violation: str = OnFinalityViolation.HALT.value,
        max_open_bytes: int = _BOUNDS.open_bytes,
        heal: Heal | None = None,
        skip: Collection[Position] = (),
        config: str | Path | None = None,
        topics_timeout: float = _TOPICS_SECONDS,
        idle_timeout: float | None = None,
    ) -> None:
        cursor = cursor_of(start)
        start = "start" if start is None else start
        check_hashes(whitelist or {}, blacklist)
        check_positions(skip)
        at_least(1, max_open_bytes, "max_open_bytes")
        at_least(0, topics_timeout, "topics_timeout")
        at_least(0, 0 if idle_timeout is None else idle_timeout, "idle_timeout")
        check_several(tracked=tracked, producers=producers)
        url = find_url(url, config)
        self.app = application_of(url, app, chain_id, topics_timeout)
        settings = replace(
            settings_of(self.app, tracked),
            patient=start != "tail",  # there the first blocks are cut in their middle, and never whole
            whitelist=dict(whitelist or {}),
            blacklist=frozenset(blacklist),
            bounds=replace(_BOUNDS, open_bytes=max_open_bytes),
            policy=policy,
            producers=tuple(producers),
            on_incomplete=choice(OnIncomplete, on_incomplete, "on_incomplete"),
            on_finality_violation=choice(OnFinalityViolation, on_finality_violation, "on_finality_violation"),
        )
        self._idle_timeout = idle_timeout
        self._read_behind = 0.0
        self._withholds = settings.on_finality_violation is OnFinalityViolation.HALT
        self._given = False
        self._closed = threading.Event()
        self._reading = threading.RLock()  # a handler of events may supply messages
        read = set() if cursor is None else {topic for topic, _ in cursor.next}
        topics = wanted_topics(self.app, tracked, read)
        self._reader = Reader(
            url,
            self.app,
            wait=topics_timeout,
            topics=topics,
            skip=skip,
            whole=policy != "first",
            again=room_again(settings),
            room=room_of(settings),
            threshold=settings.reorg_threshold,
        )
        try:
            follower, ends = self._begin(settings, start if cursor is None else cursor)
        except BaseException:
            self._reader.close()
            raise
        self._healer = None if heal is None else Healer(heal, follower.explain)
        self._driver = Driver(follower, self._reader, ends, on_event, self._healer)

    def _begin(
        self, settings: FollowerSettings, start: str | Cursor | int | datetime
    ) -> tuple[Follower, dict[Partition, int]]:
        main = self._reader.main
        if isinstance(start, Cursor):
            follower = Follower(settings, start)
            # Channels that the cursor was reading are looked at first: their records count for what can be resumed.
            self._reader.resume(follower.channels(), start.floor)
            marks = self._reader.marks()
            begin = follower.begin_at(marks)
            main.assign({where: begin[where] for where in main.partitions()})
        else:
            beginning = self._beginning(start)
            follower = Follower(replace(settings, start=beginning.below, start_weight=beginning.weight))
            marks = self._reader.marks()
            main.assign(beginning.positions)
        return follower, {where: high for where, (_, high) in marks.items()}

    def _beginning(self, start: str | int | datetime) -> Beginning:
        main = self._reader.main
        if isinstance(start, datetime):
            return at_time(main, self.app, start)
        if isinstance(start, int):
            return at_number(main, self.app, start, self.app.reorg_threshold)
        return Beginning({where: high if start == "tail" else low for where, (low, high) in main.watermarks().items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChainUpdate]:
        """Updates as they become complete, until the consumer is closed or idle for too long."""
        last = time.monotonic()
        self._given = False  # an iteration that was left for this one asks for the next update, too
        while not self._closed.is_set():
            if self._driver.ready:
                self._given = True
                yield self._driver.ready.popleft()
                self._given = False
                last = time.monotonic()
            elif self._idle_since(last):
                return
            else:
                self._step()

    def __aiter__(self) -> AsyncIterator[ChainUpdate]:
        """The same, without holding up the event loop: records are read on another thread."""
        return Updates(self._following, time.monotonic)

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, or why it is not delivered."""
        return self._driver.follower.explain(block_hash)

    def supply(self, messages: Iterable[Routed]) -> None:
        """Give messages that an incomplete block lacks; they count where no topic brought a copy."""
        with self._reading:
            self._driver.supply(messages)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at opening has been read."""
        return self._driver.follower.caught_up and not self._driver.follower.resuming

    @property
    def ready(self) -> bool:
        """Whether everything that was there at opening has been delivered, and nothing is withheld.

        An update counts as delivered when the next one is asked for. Not delivered is a block that was there whole,
        stands above the head, and waits for its parent.
        """
        return (
            self.caught_up
            and not self._driver.follower.about_to_begin
            and not self._driver.follower.opening.leaves_blocks
            and self._driver.delivered
            and not self._given
            and not (self._withholds and self._driver.follower.orderer.violation is not None)
        )

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read."""
        return self._reader.positions()

    @property
    def head(self) -> BlockRef | None:
        """The newest block read in chain order: of the cursor, or of the newest update; None before the first."""
        return self._driver.follower.orderer.head

    def close(self) -> None:
        """End the iteration and release the connection. May be called twice, and from another thread."""
        self._closed.set()
        if self._healer is not None:
            self._healer.close()
        with self._reading:  # a client that is reading must not be closed under its hands
            self._reader.close()

    # --- inside --------------------------------------------------------------------------------------------

    async def _following(self, since: float) -> ChainUpdate | None:
        """The update after the one that was done with at this time; None where iteration ends."""
        self._given = False  # an iteration that was left for this one asks for the next update, too
        while not self._closed.is_set():
            if self._driver.ready:
                self._given = True
                return self._driver.ready.popleft()
            if self._idle_since(since):
                break
            await asyncio.to_thread(self._step)
        return None

    def _step(self) -> None:
        """Read once, unless the consumer was closed meanwhile."""
        with self._reading:
            if self._closed.is_set():
                return
            behind = None if self._idle_timeout is None or self.caught_up else self._reader.positions()
            self._driver.step()
            if self._reader.reads_again_now or (behind is not None and behind != self._reader.positions()):
                self._read_behind = time.monotonic()

    def _idle_since(self, last: float) -> bool:
        """Whether nothing has come for too long since the last update."""
        return self._idle_timeout is not None and time.monotonic() - max(last, self._read_behind) > self._idle_timeout
