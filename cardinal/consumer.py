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
from typing import TYPE_CHECKING, Final, Self

from cardinal import apps
from cardinal.errors import ConfigurationError, TopicError, UnreachableError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.protocols.streams.follower import Follower, FollowerSettings
from cardinal.protocols.streams.messages import BATCH
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import list_topics, open_source, parse_url
from cardinal.transports.pace import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from types import TracebackType

    from cardinal.apps import Application
    from cardinal.protocols.streams.block import Explanation
    from cardinal.protocols.streams.events import Event, Header
    from cardinal.protocols.streams.types import BlockRef, Finality, Record
    from cardinal.transports import TransportUrl

_POLL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.2
_PACE_SECONDS: Final = 0.1
_FIND_SECONDS: Final = 0.25
_TOPICS_SECONDS: Final = 10.0
_CHAIN_ID: Final = re.compile(r"\d+$")
_BATCH_KEY: Final = bytes((BATCH,))


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
        start: ``start`` (everything that is kept), ``tail`` (what comes from now on), or a cursor or its text.
        chain_id: which chain, where ``app`` is a name; default: the only one that is there.
        on_event: told of everything that is not an update.
        tracked: expressions over a Batch's entries; only blocks' content under these is waited for. Default: what
            the application declares.
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
        start: str | Cursor = "start",
        chain_id: int | None = None,
        on_event: Callable[[Event], None] | None = None,
        tracked: Sequence[str] | None = None,
        topics_timeout: float = _TOPICS_SECONDS,
        idle_timeout: float | None = None,
    ) -> None:
        cursor = start if isinstance(start, Cursor) else None
        if isinstance(start, str) and start not in ("start", "tail"):
            cursor = Cursor.parse(start)
        self.app = _application(url, app, chain_id, topics_timeout)
        self._follower = Follower(_settings(self.app, tracked), cursor)
        self._on_event = on_event
        self._idle_timeout = idle_timeout
        self._ready: deque[ChainUpdate] = deque()
        self._pace = Pace()
        self._paced = 0.0
        self._batch_seen = False
        self._closed = threading.Event()
        self._reading = threading.Lock()
        self._source = open_source(url, self.app, wait=topics_timeout)
        try:
            marks = self._source.watermarks()
            self._ends = {where: high for where, (_, high) in marks.items()}
            lows = {where: low for where, (low, _) in marks.items()}
            if cursor is not None:
                # Partitions that were added since the cursor was made are read from their beginning.
                self._source.assign({**lows, **cursor.floor})
            else:
                self._source.assign(self._ends if start == "tail" else lows)
        except BaseException:
            self._source.close()
            raise

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
                yield self._ready.popleft()
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
                yield self._ready.popleft()
                last = time.monotonic()
            elif self._idle_timeout is not None and time.monotonic() - last > self._idle_timeout:
                return
            else:
                await asyncio.to_thread(self._step)

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, or why it is not delivered."""
        return self._follower.explain(block_hash)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at opening has been read."""
        return self._follower.caught_up and not self._follower.resuming

    @property
    def head(self) -> BlockRef | None:
        """The newest block read in chain order: of the cursor, or of the newest update; None before the first."""
        return self._follower.orderer.head

    def close(self) -> None:
        """End the iteration and release the connection. May be called twice, and from another thread."""
        self._closed.set()
        with self._reading:  # a client that is reading must not be closed under its hands
            self._source.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Read once, and sort what came of it."""
        with self._reading:
            if self._closed.is_set():
                return
            records = self._source.poll(_POLL_RECORDS, _POLL_SECONDS)
            if records and not self._batch_seen:
                self._look_for_a_batch(records)
            if records or self._pace.paused:
                self._keep_in_step(records)
            positions = self._source.positions()
        out = self._follower.receive(records)
        out += self._follower.progress(positions, None if self._follower.caught_up else self._ends)
        for item in out:
            if isinstance(item, ChainUpdate):
                self._ready.append(item)
            elif self._on_event is not None:
                self._on_event(item)

    def _look_for_a_batch(self, records: Sequence[Record]) -> None:
        """Where the first block begins the stream, look again how far the stream goes.

        On a stream that was empty at opening everything was read at once, so "caught up" said nothing about which
        block is the lowest; once a Batch is there, what was there beside it decides.
        """
        if any(record.key[:1] == _BATCH_KEY for record in records):
            with contextlib.suppress(UnreachableError):  # then the next Batch will ask again
                self._ends = {where: high for where, (_, high) in self._source.watermarks().items()}
                self._batch_seen = True
                self._follower.not_caught_up()

    def _keep_in_step(self, records: Sequence[Record]) -> None:
        self._pace.seen(records)
        now = time.monotonic()
        if now - self._paced < _PACE_SECONDS:
            return
        self._paced = now
        try:
            marks = self._source.watermarks()
        except UnreachableError:
            return  # the server is away: reading goes on by itself when it is back
        before = self._pace.paused
        paused = self._pace.ahead(self._source.positions(), marks)
        if paused != before:
            self._source.pause(paused)


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
        prefixes=tuple(app.prefixes),
        reorg_threshold=app.reorg_threshold,
        finality_of=finality,
    )
