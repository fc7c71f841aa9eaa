"""A task's reading: exact ranges of offsets in, whole blocks out. Runs anywhere.

Rules:

1. What a block is made of was decided by the planner; a task feeds the same records, those of the block's own ranges
   sorted by position, to a reassembler of its own, and so gets the same block, whatever else is read beside it.
2. Where several Batches name a block, the first that the messages complete counts.
3. A read ends where every partition's position has passed its range, so that a gap or a control record at its end
   holds nothing up; a block that is not whole then is an error that names it.
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
from cardinal.transports.base import NamedLog, RowSource

from .offsets import planned_block, spanned, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

    from cardinal.protocols.streams.events import Header
    from cardinal.protocols.streams.types import Partition, Position, Row
    from cardinal.transports import Source

    from .offsets import NamedBatch, PlannedBlock, Ranges
    from .options import Stream
    from .tables import KeyRow

GROUP_BYTES: Final = 16 << 20

_GROUP_ROWS: Final = 4096
_SPARSE: Final = 4
"""A group's ranges may span so many times the records that its blocks need; beyond that another group begins."""

_SPARSE_SLACK: Final = 20_000
_POLL_RECORDS: Final = 2_000
_POLL_SECONDS: Final = 0.2
_STALL_SECONDS: Final = 120.0
_TRIES: Final = 5
_PAUSE: Final = 1.0

_SOURCES: Final[dict[tuple[str, str], tuple[tuple[str, ...], Source]]] = {}
"""The clients of this process that nobody uses now, one a stream, with their topics."""


def only_of(rows: Sequence[PlannedBlock], stream: Stream) -> list[PlannedBlock]:
    """The rows without the ranges of topics that hold nothing of what is followed."""
    left_out = set(stream.app.all_topics).difference(stream.topics)
    return [_within(planned, left_out) for planned in rows] if left_out else list(rows)


def _within(planned: PlannedBlock, left_out: Container[str]) -> PlannedBlock:
    ranges = {where: span for where, span in planned.ranges.items() if where[0] not in left_out}
    whole = _length(planned.ranges)
    return planned._replace(ranges=ranges, size=planned.size * _length(ranges) // whole if whole else 0)


def grouped(rows: Sequence[PlannedBlock], group_bytes: int = GROUP_BYTES) -> list[list[PlannedBlock]]:
    """Rows in order, in groups of about so many bytes whose blocks lie near each other."""
    groups: list[list[PlannedBlock]] = []
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


def read_blocks(stream: Stream, rows: Sequence[PlannedBlock]) -> Iterator[tuple[KeyRow, Payload | None]]:
    """Every row with its block, in order; None where its content is not on the topics.

    Raises:
        MissingPayloadError: a block is not whole on the topics any more.
        CursorExpiredError: retention has removed records of it.
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


def located(stream: Stream, batch: NamedBatch) -> list[PlannedBlock]:
    """The rows of a batch that an earlier process planned, with their ranges.

    Raises:
        MissingPayloadError: a block is not whole on the topics any more.
        CursorExpiredError: retention has removed records of it.

    """
    names = {row.name for row in batch.rows if row.ref is None}
    seen: dict[bytes, bytes] = {}

    def pick(row: Row) -> bytes | None:
        block_hash = row[3][1:HASH_END]
        name = seen.get(block_hash) or seen.setdefault(block_hash, short(block_hash))
        return name if name in names and row[2] < batch.ranges[row[0], row[1]][1] else None

    headers: dict[bytes, HeaderOnly] = {}
    picked = read_patiently(stream, batch.ranges, partial(Picked, pick))
    log = "" if stream.consuming.get("skip") else picked.log  # as the planner's consumer has it
    for name, found in picked.records.items():
        rows = digested(only_of_log(found, log))
        if isinstance(whole := assembled(stream, rows, Contents.DIGESTS), HeaderOnly):
            headers[name] = whole
    planned: list[PlannedBlock] = []
    for row in batch.rows:
        block = headers.get(row.name) if row.ref is None else MissingPayload(*row.ref)
        if block is None:
            raise not_whole(None, row.name)
        planned.append(planned_block(block, row.seq, row.change, row.update_id, batch.lineage))
    return only_of(planned, stream)


def assembled(stream: Stream, found: Iterable[Row], contents: Contents) -> Header | None:
    """The block that these records make; None where it is not whole."""
    records = sorted(found, key=_position)
    batches = [record for record in records if record[3][0] == BATCH]
    for at in range(len(batches)):
        passed = batches[:at]  # a reassembler waits for what the first Batch counts; so the others are tried without it
        for event in stream.reassembler(contents).receive([record for record in records if record not in passed]):
            if isinstance(event, Completed):
                return event.payload
    return None


def not_whole(number: int | None, block_hash: bytes) -> MissingPayloadError:
    """The error for a block that was complete when it was planned."""
    return MissingPayloadError(
        f"block {'' if number is None else number} (0x{block_hash.hex()}) was complete when it was planned and is no "
        "more: the topics were made anew or retention has cut into them; start with a new checkpoint, with "
        "restartFrom=sink where there is a lake",
        number=-1 if number is None else number,
        block_hash=block_hash,
    )


def _position(record: Row) -> Position:
    return record[:3]


class Taker(Protocol):
    """Takes what one reading brings. ``log``: what names the log that is read."""

    log: str

    def take(self, rows: Sequence[Row]) -> None:
        """The next records; some may lie beyond the ranges."""
        ...


class Picked:
    """Records by what ``pick`` makes of them; those of which it makes None are left out. ``log``: the log's name."""

    def __init__(self, pick: Callable[[Row], bytes | None]) -> None:
        self.records: dict[bytes, list[Row]] = {}
        self.log = ""
        self._pick = pick

    def take(self, rows: Sequence[Row]) -> None:
        """The next records."""
        records, pick = self.records, self._pick
        for row in rows:
            if (name := pick(row)) is not None:
                records.setdefault(name, []).append(row)


_T = TypeVar("_T", bound=Taker)


def read_patiently(stream: Stream, span: Ranges, begin: Callable[[], _T]) -> _T:
    """Read, and read again where the broker went away in between; Spark's own retries would run a new worker.

    Arguments:
        stream: what is read.
        span: the range of every partition.
        begin: makes who takes the records, for each try.

    """
    if not span:
        return begin()
    topics = tuple(sorted({topic for topic, _ in span}))
    key = (stream.url, stream.spec)
    skip = frozenset(stream.consuming.get("skip", ()))
    for attempt in range(1, _TRIES + 1):
        try:
            source = _taken(key, topics) or stream.open(topics, pieces=True)
            taker = begin()
            taker.log = source.log_name if isinstance(source, NamedLog) else ""
            try:
                with collector_waits():  # a group is thousands of objects that live until its blocks are whole
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


def _taken(key: tuple[str, str], topics: tuple[str, ...]) -> Source | None:
    """The idle client of a stream, if it reads these topics; another one is closed."""
    held, source = _SOURCES.pop(key, ((), None))
    if source is not None and held != topics:
        source.close()
        return None
    return source


def _read(source: Source, span: Ranges, taker: Taker, skip: Collection[Position]) -> None:
    """The records in these ranges, and some beyond them."""
    source.assign({where: low for where, (low, _) in span.items()})
    poll = source.poll_rows if isinstance(source, RowSource) else source.poll
    done: set[Partition] = set()
    moved = time.monotonic()
    positions = source.positions()
    while left := {where: high - positions[where] for where, (_, high) in span.items() if positions[where] < high}:
        finished = span.keys() - left.keys()
        if finished != done:
            source.pause(finished)
            done = finished
        rows: Sequence[Row] = poll(min(_POLL_RECORDS, sum(left.values())), _POLL_SECONDS)
        taker.take([row for row in rows if row[:3] not in skip] if skip else rows)
        after = source.positions()
        if after != positions:
            moved = time.monotonic()
        elif time.monotonic() - moved > _STALL_SECONDS:
            raise MissingPayloadError(
                f"nothing arrived for {_STALL_SECONDS:.0f} s while reading whole blocks", number=-1, block_hash=b""
            )
        positions = after
    source.pause(set(span))
