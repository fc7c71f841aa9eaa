"""Reader of a log: the records of a topic of one partition, in offset order, for the event loop.

Claims and markers are read with it. Rules:

1. The caller requests the next records and is given them when they come: what is read and not requested is bounded by
   the client's queue.
2. An unreachable broker is waited for. A topic that was deleted, and a refusal, are errors.
3. An offset that the log does not have is a value, :class:`OutOfRange`: what it means is for the replica to decide.
4. Committed records only, and no heartbeats.

The client blocks, so every step runs on a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cardinal._concurrency import run_in_thread
from cardinal.errors import CursorExpiredError, UnreachableError
from cardinal.server.produce.conditions import Conditions
from cardinal.transports.kafka import KafkaSource
from cardinal_ingest.cluster.topics import cluster_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Partition, Record

_Answer = TypeVar("_Answer")

_THREAD: Final = "cardinal-ingest-reading"
_POLL_SECONDS: Final = 0.5
"""A reader that is closed waits for so long for the poll that its thread is in."""

_LOOK_SECONDS: Final = 1.0
"""Between two looks for a topic that may have been deleted, while nothing comes."""

_TOGETHER: Final = 256
_SEARCH_SECONDS: Final = 0.02
_WINDOW: Final = 64
"""Offsets from the end in which a newest record is searched first."""

_WIDER: Final = 8
_SILENCE_SECONDS: Final = 10.0


class LogRecord(NamedTuple):
    """A record of a log."""

    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The lowest retained offset of a log, and the one after its last record."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """An offset that a log does not have: it was trimmed above it, or ends below it."""

    offset: int
    bounds: LogBounds


class LogReader:
    """Reader of a topic of one partition.

    Arguments:
        url: the stream's.
        topic: exists.

    Every method but ``close`` raises:
        TopicError: the topic does not exist, or was deleted.
        RefusedError: the broker does not permit it.

    """

    def __init__(self, url: str | TransportUrl, topic: str) -> None:
        self._settings = cluster_settings(url)
        self._topic = topic
        self._tp = (topic, 0)
        self._source: KafkaSource | None = None
        self._conditions = Conditions()
        self._lock = threading.Lock()
        self._look = 0.0
        self._reading: Future[tuple[LogRecord, ...] | OutOfRange] | None = None

    async def open(self, offset: int) -> LogBounds | OutOfRange:
        """Read from an offset on; the log's bounds as they are now."""
        self._reading = None
        return await self._step(partial(self._open, offset))

    async def open_at_last(self) -> LogRecord | None:
        """Read from behind the newest record on; that record, or None where there is none."""
        self._reading = None
        return await self._step(self._open_at_last)

    async def read(self) -> tuple[LogRecord, ...] | OutOfRange:
        """The next records, one or more, when there are any. One that is cancelled loses none."""
        while not (found := await self._conditions.answer(self._next)):
            pass
        return found

    async def close(self) -> None:
        """Release the connection. May be called twice; a ``read`` that waits is cancelled before."""
        await asyncio.to_thread(self._close)

    # --- on a thread ---------------------------------------------------------------------------------------

    async def _step(self, step: Callable[[], _Answer]) -> _Answer:
        return await self._conditions.answer(lambda: asyncio.wrap_future(self._begin(step)))

    async def _next(self) -> tuple[LogRecord, ...] | OutOfRange:
        if self._reading is None:
            self._reading = self._begin(self._read)
        try:
            found = await asyncio.wrap_future(self._reading)
        except asyncio.CancelledError:
            raise  # the next call takes what comes of it
        except BaseException:
            self._reading = None
            raise
        self._reading = None
        return found

    def _begin(self, step: Callable[[], _Answer]) -> Future[_Answer]:
        def one_at_a_time() -> _Answer:
            with self._lock:
                return step()

        return run_in_thread(one_at_a_time, _THREAD)

    def _open(self, offset: int) -> LogBounds | OutOfRange:
        source = self._connected()
        bounds = self._bounds()
        try:
            source.assign({self._tp: offset})
        except CursorExpiredError:
            return OutOfRange(offset, self._bounds())
        return bounds

    def _open_at_last(self) -> LogRecord | None:
        source = self._connected()
        end = self._bounds().end
        found = newest(source, lambda record: bool(record.key)).get(self._tp)
        source.assign({self._tp: end if found is None else found.offset + 1})
        return None if found is None else _record(found)

    def _read(self) -> tuple[LogRecord, ...] | OutOfRange:
        source = self._connected()
        try:
            found = tuple(_record(one) for one in source.poll(_TOGETHER, _POLL_SECONDS) if one.key)
        except CursorExpiredError:
            return OutOfRange(source.positions()[self._tp], self._bounds())
        if not found and time.monotonic() >= self._look:
            self._look = time.monotonic() + _LOOK_SECONDS
            source.partitions()  # raises where the topic was deleted, of which polls may report nothing
        return found

    def _bounds(self) -> LogBounds:
        return LogBounds(*self._connected().watermarks()[self._tp])

    def _connected(self) -> KafkaSource:
        if self._source is None:
            self._source = KafkaSource(self._settings, [self._topic])
        return self._source

    def _close(self) -> None:
        with self._lock:
            if self._source is not None:
                self._source.close()


def newest(source: KafkaSource, wanted: Callable[[Record], bool]) -> dict[Partition, Record]:
    """The newest committed record of each partition that is wanted; partitions without one are left out.

    It is searched from the end, in windows that grow: aborted records, markers of transactions and compaction leave any
    number of offsets empty.

    Raises:
        CursorExpiredError: retention has removed records meanwhile.
        UnreachableError: nothing came for a while.

    """
    marks = left = source.watermarks()
    found: dict[Partition, Record] = {}
    for width in (_WINDOW * _WIDER**step for step in itertools.count()):
        left = {tp: (low, high) for tp, (low, high) in left.items() if tp not in found and low < high}
        if not left:
            break
        source.assign({tp: max(low, high - width) for tp, (low, high) in left.items()})
        for record in _up_to(source, {tp: high for tp, (_, high) in left.items()}):
            if wanted(record) and record.offset < marks[record[:2]][1]:
                found[record[:2]] = record
        left = {tp: (low, max(low, high - width)) for tp, (low, high) in left.items()}
    return found


def _up_to(source: KafkaSource, ends: Mapping[Partition, int]) -> Iterator[Record]:
    """The records below these offsets, and some above."""
    deadline = time.monotonic() + _SILENCE_SECONDS
    while any(at < ends[tp] for tp, at in source.positions().items()):
        records = source.poll(_TOGETHER, _SEARCH_SECONDS)
        if records:
            deadline = time.monotonic() + _SILENCE_SECONDS
        elif time.monotonic() > deadline:
            topic = next(iter(ends))[0]
            raise UnreachableError(
                f"the newest records of {topic} did not arrive within {_SILENCE_SECONDS:.0f} s: the broker is "
                "unreachable, or the line is too slow; try again",
                address=topic,
            )
        yield from records


def _record(record: Record) -> LogRecord:
    return LogRecord(record.offset, record.key, record.value)
