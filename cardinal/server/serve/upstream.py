"""Upstream of a server: one reader of some topics for all clients, and a second source for questions.

Rules:

1. The reader fills the ring; watermarks and times come from a source of their own, so that neither waits for the other.
2. An upstream that goes away is waited for: its outage and its return are logged once each. What retention removes
   before it was read is skipped in the ring; clients that need it fail by their own positions.
3. Where the reader is beyond the end, or above other records than it has read (a recreated topic, a truncated log), the
   ring restarts and every reading of these topics fails: earlier offsets mean nothing any more.
4. A topic that is deleted, or a refusal, ends the upstream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError, TransportError
from cardinal.transports.websocket.protocol import Chunk, encode_chunks

from .ring import Ring
from .threads import BatchSize, Shared, SourceThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source

    from .subscription import Subscription

Marks = dict["Partition", tuple[int, int]]

POLL_BYTES: Final = 4 << 20
_POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.5
_BATCH: Final = b"\x00"
"""First byte of a Batch's key."""

_log = logging.getLogger("cardinal.serve")


class Upstream:
    """See the module. Made and used on the event loop.

    Arguments:
        topics: the topics that it reads.
        make: opens a source of some topics; called on other threads.
        ring_bytes: bytes of recent records to keep.
        from_start: begin with what is retained instead of at the end.
        compress: whether chunks are compressed.

    Attributes:
        ring: recent records.
        subscriptions: of the clients that read it.
        error: why it has ended; None while it has not.
        waits_for: a sentence while it is not being read, empty otherwise.
        records, errors: read, and failed, since the beginning.
        resets: how often records were lost (rule 3).
        head_ms: time of the newest Batch; 0 before the first.

    """

    def __init__(
        self,
        topics: Iterable[str],
        make: Callable[[tuple[str, ...]], Source],
        *,
        ring_bytes: int,
        from_start: bool = False,
        compress: bool = True,
    ) -> None:
        self.topics = frozenset(topics)
        self.ring = Ring(ring_bytes)
        self.subscriptions: set[Subscription] = set()
        self.error: CardinalError | None = None
        self.waits_for = "the stream has not been opened yet"
        self.records = self.errors = self.resets = self.head_ms = 0
        self.compress = compress
        self.make = make
        self._from_start = from_start
        self._down_since: float | None = None
        self._reader = SourceThread(lambda: make(tuple(sorted(self.topics))), "cardinal-serve-read")
        self._questions = SourceThread(lambda: make(tuple(sorted(self.topics))), "cardinal-serve-questions")
        self._looked = float("-inf")
        self._watermarks = Shared(self._query_watermarks)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin at the first positions. Raises what :func:`cardinal.transports.open_source` does."""

        def begin(source: Source) -> dict[Partition, int]:
            marks = source.watermarks()
            positions = {tp: low if self._from_start else high for tp, (low, high) in marks.items()}
            source.assign(positions)
            return positions

        self.ring.restart(await self._reader.call(begin))

    def start(self, *, opened: bool) -> None:
        """Read in the background; ``opened``: whether :meth:`open` has succeeded."""
        self._task = asyncio.create_task(self._run(opened=opened))

    def close(self) -> list[Future[None]]:
        """End the reading, and close both sources after their calls in flight; the futures end then."""
        if self._task is not None:
            self._task.cancel()
        return [self._reader.close(), self._questions.close()]

    async def watermarks(self) -> Marks:
        """First and next offset of every partition, requested after this call. CardinalError: the source's."""
        marks = await self._watermarks.get()
        # A client never learns an end below what it was sent.
        return {tp: (low, max(high, self.ring.ends.get(tp, high))) for tp, (low, high) in marks.items()}

    async def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older."""
        return await self._questions.call(lambda source: source.offsets_for_time(timestamp_ms))

    # --- inside --------------------------------------------------------------------------------------------------

    async def _query_watermarks(self) -> Marks:
        return await self._questions.call(self._look)

    def _look(self, source: Source) -> Marks:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            source.partitions()
        return source.watermarks()

    async def _run(self, *, opened: bool) -> None:
        try:
            await self._read(opened=opened)
        except CardinalError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - the outermost loop of a reader
            _log.exception("reading the stream has failed")
            self.error = TransportError(f"the stream cannot be read: {type(error).__name__}; see the log")
        self.waits_for = str(self.error)
        self._wake()

    async def _read(self, *, opened: bool) -> None:
        """Read until cancelled. CardinalError: what does not heal by itself."""
        batch = BatchSize(POLL_BYTES)
        looked, had = time.monotonic(), 0
        expired: CursorExpiredError | None = None
        if opened:
            self._up()
        while True:
            try:
                if not opened:
                    await self.open()
                    opened = True
                    self._up()
                elif expired is not None:
                    await self._restart(expired)
                    expired = None
                await self._poll(batch)
                if time.monotonic() - looked > _LOOK_SECONDS:
                    looked = time.monotonic()
                    # A source whose server is away just delivers nothing; a question to it fails.
                    await self._look_for_partitions(ask=self.records == had)
                    had = self.records
                    self._up()
            except CursorExpiredError as error:
                expired = error
            except (TopicError, RefusedError) as error:
                if opened or self._from_start or isinstance(error, RefusedError):
                    raise
                await self._down(error)
            except TransportError as error:
                await self._down(error)

    def _up(self) -> None:
        if self._down_since is not None:
            _log.warning("the stream is read again after %.1f s", time.monotonic() - self._down_since)
            self._down_since = None
        self.waits_for = ""

    async def _down(self, error: CardinalError) -> None:
        self.errors += 1
        self.waits_for = str(error)
        if self._down_since is None:
            self._down_since = time.monotonic()
            _log.warning("the stream cannot be read, retrying: %s", error)
        await asyncio.sleep(_RETRY_SECONDS)

    async def _poll(self, batch: BatchSize) -> None:
        def poll(source: Source) -> tuple[list[Record], list[Chunk]]:
            before = source.positions()
            records = source.poll(batch.records, _POLL_SECONDS)
            return records, encode_chunks(records, before, source.positions(), compress=self.compress)

        records, chunks = await self._reader.call(poll)
        if chunks:
            batch.update(len(records), sum(len(record.key) + len(record.value) for record in records))
            self.ring.append(chunks)
            self.records += len(records)
            self.head_ms = max((one.timestamp_ms for one in records if one.key[:1] == _BATCH), default=self.head_ms)
            self._wake()

    async def _look_for_partitions(self, *, ask: bool) -> None:
        def look(source: Source) -> dict[Partition, int]:
            positions = source.positions()
            added = set(source.partitions()) - positions.keys()
            marks = source.watermarks() if added or ask else {}
            lows = {tp: marks[tp][0] for tp in added}
            if lows:
                source.assign(positions | lows)
            return lows

        if lows := await self._reader.call(look):
            self.ring.extend(lows)
            self._wake()

    async def _restart(self, error: CursorExpiredError) -> None:
        """Continue at the ends, where the reader cannot continue where it stands."""

        def restart(source: Source) -> tuple[dict[Partition, int], Mapping[Partition, tuple[int, int]]]:
            marks = source.watermarks()
            lost = _lost(source.positions(), marks, error)
            source.assign({tp: high for tp, (_, high) in marks.items()})
            return source.positions(), lost

        positions, lost = await self._reader.call(restart)
        self.ring.restart(positions)
        if lost:
            self.resets += 1
            _log.warning("the stream was recreated or has lost records, its readers start again: %s", error)
            for subscription in self.subscriptions:
                subscription.expire(lost)
        else:
            _log.warning("records expired before they were read, and are skipped: %s", error)
        self._wake()

    def _wake(self) -> None:
        for subscription in self.subscriptions:
            subscription.wake()


def _lost(
    positions: Mapping[Partition, int], marks: Marks, error: CursorExpiredError
) -> Mapping[Partition, tuple[int, int]]:
    """Position of the reader and end of each partition that lost more than what retention removes."""
    at_fault = {tp: at for tp, (at, _) in error.missing.items() if tp not in marks or at >= marks[tp][0]}
    if error.missing and not at_fault:
        return {}
    # A topic that was recreated is so in all of its partitions, and the error names one.
    beyond = {tp: at for tp, at in positions.items() if tp in marks and at > marks[tp][1]}
    found = {tp: (at, min(at, marks[tp][1] if tp in marks else 0)) for tp, at in (at_fault | beyond).items()}
    return found or {tp: (at, at) for tp, at in positions.items()}
