"""Upstream of a server: one reader of some topics for all clients, and their watermarks.

Rules:

1. The reader fills the ring. Watermarks are queried alongside, on another thread: neither waits for the other.
2. The reader retries during an outage, whose start and end are logged once. The ring skips records that expired before
   they were read; clients that need them fail by their own positions.
3. Where the reader is beyond the end, or after other records than it has read (a recreated topic, a truncated log), the
   ring restarts and every reading of these topics fails: earlier offsets are no longer valid.
4. A deleted topic, or a refusal, ends the upstream. It waits for topics of a stream that do not exist yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from cardinal._concurrency import run_in_thread
from cardinal.consuming.watermarks import HidingPartitions
from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError, TransportError
from cardinal_relay.transport.protocol import Chunk, encode_chunks

from .ring import Ring
from .source_thread import SourceThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source
    from cardinal.transports.base import OpenTransaction


Watermarks = dict["Partition", tuple[int, int]]

POLL_BYTES: Final = 4 << 20
_RECORDS_MAX: Final = 10_000
_POLL_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 2.0
_SILENT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.5
_BATCH: Final = b"\x00"
"""First byte of a Batch's key."""

_log = logging.getLogger("cardinal.serve")


class Poller:
    """Poller of a source that bounds the bytes of a poll, where a source bounds only records.

    The first poll requests one record; every further one at most twice as many as the one before returned.

    Arguments:
        size: bytes of a poll, approximately.
        compress: compress chunks.

    """

    def __init__(self, size: int, *, compress: bool) -> None:
        self._size = size
        self._compress = compress
        self._limit = 1

    def poll(self, source: Source, timeout: float) -> tuple[list[Record], list[Chunk]]:
        """Records, and their chunks; empty after ``timeout`` seconds without any."""
        before = source.positions()
        records = source.poll(self._limit, timeout)
        if records:
            size = sum([len(record.key) + len(record.value) for record in records])
            fitting = self._size * len(records) // max(size, 1)
            self._limit = max(1, min(fitting, 2 * self._limit, _RECORDS_MAX))
        return records, encode_chunks(records, before, source.positions(), compress=self._compress)


class Reader(Protocol):
    """A client that reads an upstream; ``credit``: bytes that it may be sent."""

    credit: int

    def wake(self) -> None:
        """Notify the client of a change."""
        ...


class Upstream:
    """Upstream of some topics. Created and used on the event loop, except :attr:`waits_for`.

    Arguments:
        topics: the topics that it reads.
        make: opens a source of some topics; called on other threads.
        ring_bytes: bytes of recent records to retain.
        from_start: begin with the earliest record instead of at the end; topics that do not exist are an error.
        compress: compress chunks.

    Attributes:
        ring: recent records.
        clients: the attached clients.
        error: the error that ended it; None while it runs.
        records, errors: counts of read records and of failures since the start.
        resets: number of resets (rule 3).
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
        self.clients: set[Reader] = set()
        self.error: CardinalError | None = None
        self.records = self.errors = self.resets = self.head_ms = 0
        self.compress = compress
        self.make = make
        self._from_start = from_start
        self._trouble: CardinalError | None = None
        self._down_since = self._answered = 0.0
        self._source: Source | None = None
        self._opening = asyncio.Lock()
        self._thread = SourceThread(lambda: make(tuple(sorted(self.topics))), "cardinal-serve-read")
        self._query_lock = asyncio.Lock()
        self._next_query: asyncio.Task[Watermarks] | None = None
        self._reset_ends: dict[Partition, int] = {}
        self._hiding = HidingPartitions()
        self._open_transactions: list[OpenTransaction] = []
        self._task = asyncio.create_task(self._run())

    async def open(self) -> Source:
        """Set the first positions, unless they are set. Raises errors of opening the source."""

        def begin(source: Source) -> tuple[Source, dict[Partition, int]]:
            watermarks = source.watermarks()
            positions = {tp: low if self._from_start else high for tp, (low, high) in watermarks.items()}
            source.assign(positions)
            return source, positions

        async with self._opening:
            if self.error is not None:
                raise self.error.with_traceback(None)
            if self._source is None:
                source, positions = await self._thread.call(begin)
                self.ring.restart(positions)
                self._source = source
                self._up()
            return self._source

    @property
    def waits_for(self) -> str:
        """A sentence while it is not being read, empty otherwise. May be called on any thread."""
        if error := self.error or self._trouble:
            return str(error)
        if not self._answered:
            return "the stream has not been opened yet"
        silent = time.monotonic() - self._answered
        if silent > _SILENT_SECONDS:
            return f"the stream has not answered for {silent:.0f} s"
        return "; ".join(map(str, self._open_transactions))

    def close(self) -> Future[None]:
        """End the reading, and close the source after its call in flight; the future ends then."""
        self._task.cancel()
        return self._thread.close()

    async def watermarks(self) -> Watermarks:
        """First and next offset of every partition, queried after this call. CardinalError: the source's."""
        if self._next_query is None:
            self._next_query = asyncio.create_task(self._query_watermarks())
            self._next_query.add_done_callback(_ignore_error)  # the waiting clients may have left
        watermarks = await asyncio.shield(self._next_query)
        # A client never receives an end below its position.
        return {tp: (low, max(high, self.ring.ends.get(tp, high))) for tp, (low, high) in watermarks.items()}

    async def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older."""
        source = await self.open()
        return await asyncio.wrap_future(
            run_in_thread(lambda: source.offsets_for_time(timestamp_ms), "cardinal-serve-query")
        )

    def lost(self, positions: Mapping[Partition, int], resets: int) -> CursorExpiredError | None:
        """The error of a reading that began after so many resets; None if there was none since (rule 3)."""
        if resets == self.resets:
            return None
        missing = {tp: (at, min(at, self._reset_ends.get(tp, 0))) for tp, at in positions.items()}
        return CursorExpiredError("the stream was recreated", missing=missing)

    # --- inside --------------------------------------------------------------------------------------------------

    async def _query_watermarks(self) -> Watermarks:
        """Run one query at a time, for all clients that wait when it begins."""
        async with self._query_lock:
            self._next_query = None  # who comes from now on is answered by the next one
            source = await self.open()
            watermarks = await asyncio.wrap_future(run_in_thread(source.watermarks, "cardinal-serve-query"))
            self._up()
            return watermarks

    async def _run(self) -> None:
        try:
            await self._open_when_there()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                group.create_task(self._find_partitions())
        except* CardinalError as group:
            self.error = next(error for error in group.exceptions if isinstance(error, CardinalError))
        except* Exception as group:  # noqa: BLE001 - the outermost loop of a reader
            _log.exception("reading the stream has failed")
            reason = type(group.exceptions[0]).__name__
            self.error = TransportError(f"the stream cannot be read: {reason}; see the log")
        self._wake()

    async def _open_when_there(self) -> None:
        while self._source is None:
            try:
                await self.open()
            except TransportError as error:
                if isinstance(error, RefusedError) or (self._from_start and isinstance(error, TopicError)):
                    raise
                self._down(error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        """Read until cancelled. CardinalError: a fault that retrying does not heal."""
        poller = Poller(POLL_BYTES, compress=self.compress)
        while True:
            try:
                try:
                    records, chunks = await self._thread.call(lambda source: poller.poll(source, _POLL_SECONDS))
                except CursorExpiredError as error:
                    await self._restart(error)
                    continue
            except (TopicError, RefusedError):
                raise
            except TransportError as error:
                self._down(error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if chunks:
                self.ring.append(chunks)
                self.records += len(records)
                times = [record.timestamp_ms for record in records if record.key[:1] == _BATCH]
                self.head_ms = max(times, default=self.head_ms)
                self._up()
                self._wake()

    async def _find_partitions(self) -> None:
        """Query new partitions periodically, which also detects an outage.

        A source whose server is unreachable only delivers nothing; a query fails or times out.
        """
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            source = await self.open()
            try:
                await asyncio.wrap_future(run_in_thread(source.partitions, "cardinal-serve-query"))
                ends = await asyncio.wrap_future(run_in_thread(source.uncommitted_ends, "cardinal-serve-query"))
                watermarks = await self.watermarks()
                self._hiding.note(watermarks, ends)
                await self._find_transactions(source)
                added = {tp: low for tp, (low, _) in watermarks.items() if tp not in self.ring.ends}
                if added:
                    await self._thread.call(_extend(added))
                    self.ring.extend(added)
                    self._wake()
            except (TopicError, RefusedError):
                raise
            except TransportError as error:
                self._down(error)
            except CursorExpiredError:
                pass  # the reader raises it as well

    async def _find_transactions(self, source: Source) -> None:
        """Look up the transactions that hide records from every client."""
        stuck = self._hiding.for_long()
        found: Sequence[OpenTransaction] = ()
        if stuck:
            found = await asyncio.wrap_future(run_in_thread(source.open_transactions, "cardinal-serve-query"))
        self._open_transactions = [one for one in found if one.tp in stuck]

    def _up(self) -> None:
        self._answered, self._trouble = time.monotonic(), None
        if self._down_since:
            fields = {"kind": "up", "seconds": round(self._answered - self._down_since, 3)}
            _log.info("the stream is read again after %(seconds).1f s", fields)
            self._down_since = 0.0

    def _down(self, error: CardinalError) -> None:
        self.errors += 1
        self._trouble = error
        if not self._down_since:
            self._down_since = time.monotonic()
            _log.warning("the stream cannot be read, retrying: %(error)s", {"kind": "down", "error": error})

    async def _restart(self, error: CursorExpiredError) -> None:
        """Continue at the ends, where the reader cannot continue at its position."""

        def restart(source: Source) -> tuple[Watermarks, dict[Partition, int]]:
            watermarks = source.watermarks()
            source.assign({tp: high for tp, (_, high) in watermarks.items()})
            return watermarks, source.positions()

        watermarks, positions = await self._thread.call(restart)
        self.ring.restart(positions)
        lows = {tp: low for tp, (low, _) in watermarks.items()}
        if error.missing and all(at < lows.get(tp, 0) for tp, (at, _) in error.missing.items()):
            fields = {"kind": "expired", "error": error}
            _log.warning("records expired before they were read, and are skipped: %(error)s", fields)
        else:
            self.resets += 1
            self._reset_ends = positions
            fields = {"kind": "recreated", "error": error}
            _log.warning("the stream was recreated or has lost records, its readers restart: %(error)s", fields)
        self._wake()

    def _wake(self) -> None:
        for client in self.clients:
            client.wake()


def _ignore_error(query: asyncio.Task[Watermarks]) -> None:
    if not query.cancelled():
        query.exception()


def _extend(added: dict[Partition, int]) -> Callable[[Source], None]:
    return lambda source: source.assign(source.positions() | added)
