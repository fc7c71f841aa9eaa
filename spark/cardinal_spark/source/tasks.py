"""Reading of a task: exact ranges of offsets in, complete blocks out. Runs anywhere.

Rules:

1. The planner decided which records a block is made of; a task feeds the same records, those of the block's own ranges
   sorted by position, to a reassembler of its own, and so gets the same block, for any other records read with them.
2. Where several Batches name a block, the first that the messages complete counts.
3. A read ends where every partition's position has passed its range, so that a gap or a control record at its end
   delays nothing; a block that is not complete then is an error that names it.
4. A task holds the blocks of its group: about ``GROUP_BYTES``, or one block. A worker keeps its client for the next.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from cardinal.consuming.batches_alone import only_of_log
from cardinal.consuming.gc_pause import collector_waits
from cardinal.errors import CardinalError, CursorExpiredError, MissingPayloadError
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly, digested
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import MissingPayload, Payload
from cardinal.protocols.streams.types import short
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH

from .offsets import planned_row, spanned, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from cardinal.protocols.streams.events import BlockHeader
    from cardinal.protocols.streams.types import Partition, Position, Row
    from cardinal.transports import Source

    from .offsets import NamedBatch, PlannedRow, Ranges
    from .options import StreamSpec
    from .tables import KeyRow

GROUP_BYTES: Final = 16 << 20

_GROUP_ROWS: Final = 4096
_SPARSE: Final = 4
"""Ratio of the records that a group's ranges span to those that its blocks need, at which another group begins."""

_SPARSE_SLACK: Final = 20_000
_POLL_RECORDS: Final = 2_000
_POLL_SECONDS: Final = 0.2
_STALL_SECONDS: Final = 120.0
_TRIES: Final = 5
_PAUSE: Final = 1.0

_SOURCES: Final[dict[tuple[str, str], tuple[tuple[str, ...], Source]]] = {}
"""The idle clients of this process, one per stream, with their topics."""


def only_of(rows: Sequence[PlannedRow], stream: StreamSpec) -> list[PlannedRow]:
    """The rows without the ranges of topics that hold no followed part of a block."""
    left_out = set(stream.app.all_topics).difference(stream.topics)
    return [_within(planned, left_out) for planned in rows] if left_out else list(rows)


def _within(planned: PlannedRow, left_out: Container[str]) -> PlannedRow:
    ranges = {tp: span for tp, span in planned.ranges.items() if tp[0] not in left_out}
    records = _length(planned.ranges)
    return planned._replace(ranges=ranges, size=planned.size * _length(ranges) // records if records else 0)


def grouped(rows: Sequence[PlannedRow], group_bytes: int = GROUP_BYTES) -> list[list[PlannedRow]]:
    """Rows in order, in groups of about ``group_bytes`` whose blocks are near each other on the topics."""
    groups: list[list[PlannedRow]] = []
    size = needed = 0
    span: dict[Partition, tuple[int, int]] = {}
    for row in rows:
        widened = dict(span)
        widen(widened, row.ranges)
        needed += _length(row.ranges)
        size += row.size
        sparse = _length(widened) > _SPARSE * needed + _SPARSE_SLACK
        if not groups or size > group_bytes or len(groups[-1]) >= _GROUP_ROWS or sparse:
            groups.append([])
            size, needed = row.size, _length(row.ranges)
            widened = dict(row.ranges)
        groups[-1].append(row)
        span = widened
    return groups


def _length(ranges: Ranges) -> int:
    return sum(high - low for low, high in ranges.values())


def read_blocks(stream: StreamSpec, rows: Sequence[PlannedRow]) -> Iterator[tuple[KeyRow, Payload | None]]:
    """Every row with its block, in order; None where its content is not on the topics.

    Raises:
        MissingPayloadError: a block is no longer complete on the topics.
        CursorExpiredError: records of it have expired.
        TransportError: the broker cannot be read.

    """
    ranges = {planned.row.hash: planned.ranges for planned in rows if planned.ranges}

    def pick(row: Row) -> bytes | None:
        block_hash = row[3][1:HASH_END]
        low, high = ranges.get(block_hash, {}).get((row[0], row[1]), (0, 0))
        return block_hash if low <= row[2] < high else None

    found = read_patiently(stream, spanned(rows), partial(Picked, pick)).records
    blocks = {block_hash: assembled(stream, found.get(block_hash, ()), Contents.VALUES) for block_hash in ranges}
    for planned in rows:
        payload = blocks.get(planned.row.hash)
        if planned.ranges and payload is None:
            raise not_whole(planned.row.number, planned.row.hash)
        yield planned.row, payload if isinstance(payload, Payload) else None


def located(stream: StreamSpec, batch: NamedBatch) -> list[PlannedRow]:
    """The rows of a batch that an earlier process planned, with their ranges.

    Raises:
        MissingPayloadError: a block is no longer complete on the topics.
        CursorExpiredError: records of it have expired.

    """
    names = {row.name for row in batch.rows if row.ref is None}
    seen: dict[bytes, bytes] = {}

    def pick(row: Row) -> bytes | None:
        block_hash = row[3][1:HASH_END]
        name = seen.get(block_hash) or seen.setdefault(block_hash, short(block_hash))
        return name if name in names and row[2] < batch.ranges[row[0], row[1]][1] else None

    headers: dict[bytes, HeaderOnly] = {}
    picked = read_patiently(stream, batch.ranges, partial(Picked, pick))
    log = "" if stream.consuming.get("skip") else picked.log  # as in the planner's consumer
    for name, found in picked.records.items():
        rows = digested(only_of_log(found, log))
        if isinstance(block := assembled(stream, rows, Contents.DIGESTS), HeaderOnly):
            headers[name] = block
    planned: list[PlannedRow] = []
    for row in batch.rows:
        located_block = headers.get(row.name) if row.ref is None else MissingPayload(*row.ref)
        if located_block is None:
            raise not_whole(None, row.name)
        planned.append(planned_row(located_block, row.seq, row.change, row.update_id, batch.lineage))
    return only_of(planned, stream)


def assembled(stream: StreamSpec, found: Iterable[Row], contents: Contents) -> BlockHeader | None:
    """The block assembled of these records; None where it is not complete."""
    records = sorted(found, key=_position)
    batches = [record for record in records if record[3][0] == BATCH]
    for at in range(len(batches)):
        left_out = batches[:at]  # a reassembler waits for the first Batch's messages, so the others are tried alone
        for event in stream.reassembler(contents).receive([record for record in records if record not in left_out]):
            if isinstance(event, Completed):
                return event.payload
    return None


def not_whole(number: int | None, block_hash: bytes) -> MissingPayloadError:
    """The error for a block that was complete when it was planned."""
    return MissingPayloadError(
        f"block {'' if number is None else number} (0x{block_hash.hex()}) was complete when it was planned and is no "
        "longer: the topics were recreated or records have expired; start with a new checkpoint, and with "
        "restartFrom=sink if there is a lake",
        number=-1 if number is None else number,
        block_hash=block_hash,
    )


def _position(record: Row) -> Position:
    return record[:3]


class Taker(Protocol):
    """Receiver of the records of one read. ``log``: the name of the log that is read."""

    log: str

    def take(self, rows: Sequence[Row]) -> None:
        """Receive the next records; some may be beyond the ranges."""
        ...


class Picked:
    """Records by the result of ``pick``; those for which it returns None are left out. ``log``: the log's name."""

    def __init__(self, pick: Callable[[Row], bytes | None]) -> None:
        self.records: dict[bytes, list[Row]] = {}
        self.log = ""
        self._pick = pick

    def take(self, rows: Sequence[Row]) -> None:
        """Take the next records."""
        records, pick = self.records, self._pick
        for row in rows:
            if (name := pick(row)) is not None:
                records.setdefault(name, []).append(row)


_T = TypeVar("_T", bound=Taker)


def read_patiently(stream: StreamSpec, span: Ranges, begin: Callable[[], _T]) -> _T:
    """Read, and retry if the broker became unreachable meanwhile; Spark's own retries would run a new worker.

    Arguments:
        stream: the stream to read.
        span: the range of every partition.
        begin: makes the receiver of the records, for each attempt.

    """
    if not span:
        return begin()
    topics = tuple(sorted({topic for topic, _ in span}))
    key = (stream.url, stream.spec)
    skip = frozenset(stream.consuming.get("skip", ()))
    for attempt in range(1, _TRIES + 1):
        try:
            source = _idle_client(key, topics) or stream.open(topics, pieces=True)
            taker = begin()
            taker.log = source.capabilities.log
            try:
                with collector_waits():  # a group is thousands of objects that live until its blocks are complete
                    _read(source, span, taker, skip)
            except BaseException:
                source.close()
                raise
        except CursorExpiredError:
            raise
        except CardinalError as error:
            if not error.retriable or attempt == _TRIES:
                raise
            time.sleep(_PAUSE)
        else:
            _SOURCES[key] = topics, source
            return taker
    raise AssertionError(attempt)


def _idle_client(key: tuple[str, str], topics: tuple[str, ...]) -> Source | None:
    """The idle client of a stream, if it reads these topics; another one is closed."""
    held, source = _SOURCES.pop(key, ((), None))
    if source is not None and held != topics:
        source.close()
        return None
    return source


def _read(source: Source, span: Ranges, taker: Taker, skip: Collection[Position]) -> None:
    """The records in these ranges, and some beyond them."""
    source.assign({tp: low for tp, (low, _) in span.items()})
    done: set[Partition] = set()
    moved = time.monotonic()
    positions = source.positions()
    while left := {tp: high - positions[tp] for tp, (_, high) in span.items() if positions[tp] < high}:
        finished = span.keys() - left.keys()
        if finished != done:
            source.pause(finished)
            done = finished
        rows: Sequence[Row] = source.poll_rows(min(_POLL_RECORDS, sum(left.values())), _POLL_SECONDS)
        taker.take([row for row in rows if row[:3] not in skip] if skip else rows)
        after = source.positions()
        if after != positions:
            moved = time.monotonic()
        elif time.monotonic() - moved > _STALL_SECONDS:
            raise MissingPayloadError(
                f"no record arrived for {_STALL_SECONDS:.0f} s: check the broker, and restart the query",
                number=-1,
                block_hash=b"",
            )
        positions = after
    source.pause(set(span))
