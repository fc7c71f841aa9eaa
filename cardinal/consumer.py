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
import contextlib
import re
import threading
import time
from collections import deque
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cardinal import apps
from cardinal.consuming.healing import Heal, Healer, HealingFailed, Overdue
from cardinal.consuming.reading import Reader
from cardinal.consuming.starting import Beginning, at_number, at_time
from cardinal.errors import ConfigurationError, TopicError, UnreachableError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate, Incomplete
from cardinal.protocols.streams.finality import OnFinalityViolation
from cardinal.protocols.streams.follower import Follower, FollowerSettings, OnIncomplete
from cardinal.protocols.streams.messages import BATCH
from cardinal.protocols.streams.openblocks import Bounds
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import list_topics, parse_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from cardinal.apps import Application
    from cardinal.protocols.streams.block import Explanation
    from cardinal.protocols.streams.events import Event, Header
    from cardinal.protocols.streams.types import BlockRef, Finality, Partition, Record, Routed
    from cardinal.transports import TransportUrl

_FIND_SECONDS: Final = 0.25
_TOPICS_SECONDS: Final = 10.0
_CHAIN_ID: Final = re.compile(r"\d+$")
_BATCH_KEY: Final = bytes((BATCH,))
_SETTLE_SECONDS: Final = 5.0
_DOUBT_SECONDS: Final = 30.0
_LACKING: Final = frozenset({"open", "unknown"})
_BOUNDS: Final = Bounds()
_Choice = TypeVar("_Choice", bound=Enum)


def find_application(url: str | TransportUrl, name: str, *, wait: float = 0.0) -> Application:
    """The one stream of this application that is on the server.

    Arguments:
        url: the transport.
        name: the application's name, ``evm``.
        wait: seconds to wait for a stream to appear.

    Raises:
        TopicError: there is none.
        ConfigurationError: there are several; the sentence names their chain ids.

    """
    deadline = time.monotonic() + wait
    while True:
        names = list_topics(url)
        found: list[Application] = []
        ids: list[str] = []
        for topic in sorted(names):
            if match := _CHAIN_ID.search(topic):
                app = apps.get(name, chain_id=int(match.group()))
                if app.default_topic == topic and names.issuperset(app.all_topics):
                    found.append(app)
                    ids.append(match.group())
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigurationError(
                f"there are several {name} streams (chain ids {', '.join(ids)}): name one by its chain id",
                setting="chain_id",
            )
        if time.monotonic() >= deadline:
            raise TopicError(
                f"there is no {name} stream on {parse_url(url)} yet: start `cardinal produce` first",
                topic=apps.get(name, chain_id=1).default_topic,
            )
        time.sleep(_FIND_SECONDS)


class Consumer:
    """Delivers a stream's chain.

    Arguments:
        url: where from, see :mod:`cardinal.transports.url`.
        app: the application or its name.
        start: a cursor or its text; or where to begin without one: ``start`` (everything that is kept), ``tail``
            (what comes from now on), the number of the first block to deliver, or the time from which on blocks were
            published.
        chain_id: which chain, where ``app`` is a name; default: the only one that is there.
        on_event: told of everything that is not an update.
        tracked: expressions over a Batch's entries; only blocks' content under these is waited for. Default: what
            the application declares, and whatever travels inside Batches.
        whitelist: number to the only hash that may stand there.
        policy: ``first``, or ``quorum:k``: k of ``producers`` must have sent the same block. Anybody who may write to
            a topic may write a producer's id: it proves something only where the broker's access rules bind
            principals to topics.
        producers: the ids of the producers that count for a quorum.
        on_incomplete: ``skip`` (a block that provably cannot be had is passed over, as a
            :class:`~cardinal.MissingPayload`) or ``halt`` (the stream waits for somebody to supply it).
        on_finality_violation: ``halt`` (a switch below a finalized block is withheld) or ``follow``.
        max_open_bytes: what blocks that are not complete may hold in memory; beyond it they are dropped, reported, and
            read again when their Batch comes.
        heal: asked for the messages that an overdue block lacks, on a thread of its own; a node or an archive may
            have them. No block is given up while it is asked, so it must end in time.
        topics_timeout: seconds to wait for the stream's topics to exist.
        idle_timeout: seconds without an update after which iteration ends; None: never.

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
        start: str | Cursor | int | datetime = "start",
        chain_id: int | None = None,
        on_event: Callable[[Event | HealingFailed], None] | None = None,
        tracked: Sequence[str] | None = None,
        whitelist: Mapping[int, bytes] | None = None,
        policy: str = "first",
        producers: Sequence[str] = (),
        on_incomplete: str = OnIncomplete.SKIP.value,
        on_finality_violation: str = OnFinalityViolation.HALT.value,
        max_open_bytes: int = _BOUNDS.open_bytes,
        heal: Heal | None = None,
        topics_timeout: float = _TOPICS_SECONDS,
        idle_timeout: float | None = None,
    ) -> None:
        cursor = start if isinstance(start, Cursor) else None
        if isinstance(start, str) and start not in ("start", "tail"):
            cursor = Cursor.parse(start)
        self.app = _application(url, app, chain_id, topics_timeout)
        settings = replace(
            _settings(self.app, tracked),
            patient=start != "tail",  # there the first blocks are cut in their middle, and never whole
            whitelist=dict(whitelist or {}),
            bounds=replace(_BOUNDS, open_bytes=max_open_bytes),
            policy=policy,
            producers=tuple(producers),
            on_incomplete=_choice(OnIncomplete, on_incomplete, "on_incomplete"),
            on_finality_violation=_choice(OnFinalityViolation, on_finality_violation, "on_finality_violation"),
        )
        self._on_event = on_event
        self._healer = None if heal is None else Healer(heal)
        self._idle_timeout = idle_timeout
        self._overdue = Overdue()
        self._heard = self._doubted = time.monotonic()
        self._ready: deque[ChainUpdate] = deque()
        self._given = False
        self._batch_seen = False
        self._closed = threading.Event()
        self._reading = threading.RLock()  # a handler of events may supply messages
        self._reader = Reader(url, self.app, wait=topics_timeout)
        try:
            self._follower = self._begin(settings, start if cursor is None else cursor)
        except BaseException:
            self._reader.close()
            raise

    def _begin(self, settings: FollowerSettings, start: str | Cursor | int | datetime) -> Follower:
        main = self._reader.main
        if isinstance(start, Cursor):
            follower = Follower(settings, start)
            # Channels that the cursor was reading are looked at first: their records count for what can be resumed.
            self._reader.follow(follower.channels(), start.floor)
            marks = self._reader.marks()
            begin = follower.begin_at(marks)
            main.assign({where: begin[where] for where in main.partitions()})
        else:
            beginning = self._beginning(start)
            follower = Follower(replace(settings, start=beginning.below, start_weight=beginning.weight))
            marks = self._reader.marks()
            main.assign(beginning.positions)
        self._ends = {where: high for where, (_, high) in marks.items()}
        return follower

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
        while not self._closed.is_set():
            if self._ready:
                self._given = True
                yield self._ready.popleft()
                self._given = False
                last = time.monotonic()
            elif self._idle_timeout is not None and time.monotonic() - last > self._idle_timeout:
                return
            else:
                self._step()

    async def __aiter__(self) -> AsyncIterator[ChainUpdate]:
        """The same, without holding up the event loop: records are read on another thread."""
        last = time.monotonic()
        while not self._closed.is_set():
            if self._ready:
                self._given = True
                yield self._ready.popleft()
                self._given = False
                last = time.monotonic()
            elif self._idle_timeout is not None and time.monotonic() - last > self._idle_timeout:
                return
            else:
                await asyncio.to_thread(self._step)

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, or why it is not delivered."""
        return self._follower.explain(block_hash)

    def supply(self, messages: Iterable[Routed]) -> None:
        """Give messages that an incomplete block lacks; they count where no topic brought a copy."""
        with self._reading:
            self._take(self._follower.supply(messages))

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at opening has been read."""
        return self._follower.caught_up and not self._follower.resuming

    @property
    def ready(self) -> bool:
        """Whether everything that was there at opening has been delivered, and nothing is withheld.

        An update counts as delivered when the next one is asked for.
        """
        return self.caught_up and not self._ready and not self._given and self._follower.orderer.violation is None

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read."""
        return self._reader.positions()

    @property
    def head(self) -> BlockRef | None:
        """The newest block read in chain order: of the cursor, or of the newest update; None before the first."""
        return self._follower.orderer.head

    def close(self) -> None:
        """End the iteration and release the connection. May be called twice, and from another thread."""
        self._closed.set()
        if self._healer is not None:
            self._healer.close()
        with self._reading:  # a client that is reading must not be closed under its hands
            self._reader.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Read once, and sort what came of it."""
        follower, reader = self._follower, self._reader
        with self._reading:
            if self._closed.is_set():
                return
            records = reader.poll()
            if records and not self._batch_seen:
                self._look_for_a_batch(records)
            fresh = self._fresh_ends()
            positions = reader.positions()
            self._take(follower.receive(records))
            if again := reader.poll_again():
                self._take(follower.receive(again))
            if self._healer is not None:
                for healed in self._healer.results():
                    self._take([healed] if isinstance(healed, HealingFailed) else follower.supply(healed))
            for block_hash in self._overdue.progress(positions, fresh):
                self._report(block_hash)
            if self._healer is not None and self._healer.busy:
                fresh = None  # what would prove that a block is lost
            self._take(follower.progress(positions, fresh if follower.caught_up else self._ends))
            self._wait_for_what_is_missing(records)
            reader.follow(follower.channels(), {})
            if (number := follower.wants_history) is not None:
                self._take(follower.recall(reader.older_batches(number)))

    def _take(self, out: Iterable[ChainUpdate | Event | HealingFailed]) -> None:
        for item in out:
            if isinstance(item, ChainUpdate):
                self._ready.append(item)
                continue
            if isinstance(item, Incomplete):
                self._lacks(item)
            elif self._on_event is not None:
                self._on_event(item)

    def _wait_for_what_is_missing(self, records: Sequence[Record]) -> None:
        """Begin in doubt when nothing has come for a while, or too much has."""
        now = time.monotonic()
        if records:
            self._heard = now
        if not self._follower.in_doubt:
            self._doubted = now
        elif now - self._heard > _SETTLE_SECONDS or now - self._doubted > _DOUBT_SECONDS:
            self._follower.settle()

    def _fresh_ends(self) -> dict[Partition, int] | None:
        """New watermarks where they would prove something; a step or two later, where the source is asked beside us."""
        if self._overdue.wants_ends or (self._follower.caught_up and self._follower.wants_ends):
            with contextlib.suppress(UnreachableError):  # asked again at the next step
                return self._reader.later_ends()
        else:
            self._reader.forget_ends()
        return None

    def _lacks(self, event: Incomplete) -> None:
        """Read a block again that was dropped; wait for what may still come of another one."""
        lacking = event.explanation
        if lacking.state in _LACKING:
            self._overdue.add(lacking.block)
            return
        if lacking.state == "dropped" and (places := self._follower.reread(lacking.block)):
            self._reader.read_again(lacking.block, places)
        if self._on_event is not None:
            self._on_event(event)

    def _report(self, block_hash: bytes) -> None:
        """A block lacks what is not on the topics: say so, and ask whoever may have it."""
        lacking = self._follower.explain(block_hash)
        if lacking.state in _LACKING:
            if self._healer is not None:
                self._healer.ask(lacking)
            if self._on_event is not None:
                self._on_event(Incomplete(lacking))

    def _look_for_a_batch(self, records: Sequence[Record]) -> None:
        """Where the first block begins the stream, look again how far the stream goes.

        On a stream that was empty at opening everything was read at once, so "caught up" said nothing about which
        block is the lowest; once a Batch is there, what was there beside it decides.
        """
        if any(record.key[:1] == _BATCH_KEY for record in records):
            with contextlib.suppress(UnreachableError):  # then the next Batch will ask again
                self._ends = self._reader.ends()
                self._batch_seen = True
                self._follower.not_caught_up()


def _application(url: str | TransportUrl, app: str | Application, chain_id: int | None, wait: float) -> Application:
    if not isinstance(app, str):
        return app
    return find_application(url, app, wait=wait) if chain_id is None else apps.get(app, chain_id=chain_id)


def _settings(app: Application, tracked: Sequence[str] | None) -> FollowerSettings:
    def finality(block: Header) -> Finality | None:
        return app.finality(block) if isinstance(block, Payload) else None

    return FollowerSettings(
        app=app.name,
        chain=app.chain,
        # An application without counted prefixes has everything inside its Batches.
        tracked=(tuple(app.prefixes) or None) if tracked is None else tuple(tracked),
        inline=tracked is None,
        prefixes=tuple(app.prefixes),
        reorg_threshold=app.reorg_threshold,
        finality_of=finality,
        volatile=tuple(app.volatile_paths),
        default_topic=app.default_topic,
    )


def _choice(kind: type[_Choice], value: str, setting: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(member.value) for member in kind)
        raise ConfigurationError(f"{setting} must be {names}, not {value!r}", setting=setting) from None
