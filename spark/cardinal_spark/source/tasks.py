"""A task's reading: exact ranges of offsets in, whole blocks out. Runs anywhere, keeps nothing.

Rules:

1. What a block is made of was decided by the planner; a task feeds the same records, those of the block's own ranges
   sorted by position, to the same reassembler, this time with their values, and so gets the same block.
2. A read ends where every partition's position has passed its range, so that a gap or a control record at its end holds
   nothing up; a block that is not whole then is an error that names it.
3. A task holds the blocks of its group: about ``GROUP_BYTES``, or one block.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, CursorExpiredError, MissingPayloadError
from cardinal.protocols.streams.assembly.digests import Contents
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.wire.keys import HASH_END

from .tables import KeyRow

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition, Position, Record, Row
    from cardinal.transports import Source

    from .options import Stream
    from .state import PlannedBlock, PlanSettings

GROUP_BYTES: Final = 16 << 20

_GROUP_ROWS: Final = 4096
_SPARSE: Final = 4
"""A group's ranges may span so many times the records that its blocks need; beyond that another group begins."""

_SPARSE_SLACK: Final = 20_000
_POLL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.2
_STALL_SECONDS: Final = 120.0
_TRIES: Final = 5
_PAUSE: Final = 1.0

Ranges = Mapping["Partition", tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One row and the ranges in which its block lies."""

    row: KeyRow
    ranges: Ranges


def wanted(planned: PlannedBlock) -> Wanted:
    """What a task has to know of a planned row."""
    header = planned.block.header
    return Wanted(
        KeyRow(
            planned.seq,
            planned.change,
            planned.update_id,
            header.number,
            header.hash,
            planned.block.published_ms,
            planned.lineage,
            header.parent,
            header.weight,
        ),
        planned.block.ranges,
    )


def grouped(rows: Sequence[PlannedBlock], group_bytes: int = GROUP_BYTES) -> list[list[PlannedBlock]]:
    """Rows in order, in groups of about so many bytes whose blocks lie near each other."""
    groups: list[list[PlannedBlock]] = []
    size = needed = 0
    span: dict[Partition, tuple[int, int]] = {}
    for row in rows:
        widened = _widened(span, row.block.ranges)
        needed += _length(row.block.ranges)
        size += row.block.size
        sparse = _length(widened) > _SPARSE * needed + _SPARSE_SLACK
        if not groups or size > group_bytes or len(groups[-1]) >= _GROUP_ROWS or sparse:
            groups.append([])
            size, needed = row.block.size, _length(row.block.ranges)
            widened = dict(row.block.ranges)
        groups[-1].append(row)
        span = widened
    return groups


def _widened(span: Ranges, ranges: Ranges) -> dict[Partition, tuple[int, int]]:
    wide = dict(span)
    for where, (low, high) in ranges.items():
        known_low, known_high = wide.get(where, (low, high))
        wide[where] = (min(low, known_low), max(high, known_high))
    return wide


def _length(ranges: Ranges) -> int:
    return sum(high - low for low, high in ranges.values())


def read_blocks(stream: Stream, rows: Sequence[Wanted]) -> Iterator[tuple[KeyRow, Payload]]:
    """Every row with its block, in order.

    Raises:
        MissingPayloadError: a block is not whole on the topics any more.
        CursorExpiredError: retention has removed records of it.
        TransportError: the broker cannot be read.

    """
    span: dict[Partition, tuple[int, int]] = {}
    for row in rows:
        span = _widened(span, row.ranges)
    ranges = {row.row.hash: row.ranges for row in rows}
    records = _patiently(stream, span, ranges)
    blocks = assembled(stream.settings, records)
    for row in rows:
        payload = blocks.get(row.row.hash)
        if payload is None:
            raise MissingPayloadError(
                f"block {row.row.number} (0x{row.row.hash.hex()}) was complete when it was planned and is no more: the "
                "topics were changed, or retention has cut into them while the batch ran",
                number=row.row.number,
                block_hash=row.row.hash,
            )
        yield row.row, payload


def assembled(settings: PlanSettings, records: Mapping[bytes, Iterable[Record]]) -> dict[bytes, Payload]:
    """The blocks that are whole in these records, each block's by its hash."""
    reassembler = settings.reassembler(Contents.VALUES)
    blocks: dict[bytes, Payload] = {}
    for found in records.values():
        for event in reassembler.receive(sorted(found, key=_position)):
            if isinstance(event, Completed) and isinstance(event.payload, Payload):
                blocks[event.payload.hash] = event.payload
    return blocks


def _position(record: Row) -> Position:
    return record[:3]


def _patiently(stream: Stream, span: Ranges, wanted_: Mapping[bytes, Ranges]) -> dict[bytes, list[Record]]:
    """Read, and read again where the broker went away in between; Spark's own retries would run a new worker."""
    for attempt in range(1, _TRIES + 1):
        try:
            source = stream.open()
            try:
                return _read(source, span, wanted_)
            finally:
                source.close()
        except CursorExpiredError:
            raise
        except CardinalError as error:
            if not error.retriable or attempt == _TRIES:
                raise
            time.sleep(_PAUSE)
    raise AssertionError(attempt)


def _read(source: Source, span: Ranges, wanted_: Mapping[bytes, Ranges]) -> dict[bytes, list[Record]]:
    source.assign({where: low for where, (low, _) in span.items()})
    records: dict[bytes, list[Record]] = {block_hash: [] for block_hash in wanted_}
    done: set[Partition] = set()
    moved = time.monotonic()
    positions = source.positions()
    while any(positions[where] < high for where, (_, high) in span.items()):
        finished = {where for where, (_, high) in span.items() if positions[where] >= high}
        if finished != done:
            source.pause(finished)
            done = finished
        polled = source.poll(_POLL_RECORDS, _POLL_SECONDS)
        for record in polled:
            ranges = wanted_.get(record.key[1:HASH_END])
            if ranges is None:
                continue
            low, high = ranges.get((record.topic, record.partition), (0, 0))
            if low <= record.offset < high:
                records[record.key[1:HASH_END]].append(record)
        after = source.positions()
        if after != positions:
            moved = time.monotonic()
        elif time.monotonic() - moved > _STALL_SECONDS:
            raise MissingPayloadError(
                f"nothing arrived for {_STALL_SECONDS:.0f} s while reading whole blocks", number=-1, block_hash=b""
            )
        positions = after
    return records
