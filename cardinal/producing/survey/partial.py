"""Partially published blocks: a Batch without the rest of its block, or some of the rest without the Batch.

They are searched around a moment: when a producer that was killed sent its last Batch, or when one that starts read
the topics for the first time, as bytes that were in flight may come after it. Around is ten seconds before and a minute
after, and up to ten minutes each way where that is within a bound of records of a partition: one that was killed
again soon has left a last Batch that is later than what it left first. Where there is no moment, as no Batch exists,
that many of the newest records are read. A block is complete as well when its Batch came later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.producing.survey.batch_index import BatchIndex, batch_of
from cardinal.producing.survey.completeness import complete_among
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source

_BEFORE_MS: Final = 10_000
_AFTER_MS: Final = 60_000
_FAR_MS: Final = 600_000
_RECORDS: Final = 16_384

_Range: TypeAlias = "tuple[dict[Partition, int], dict[Partition, int]]"
"""Offsets to read from, and to."""


@dataclass(frozen=True, slots=True)
class PartialBlock:
    """A block of which some messages are on the topics, and not all. Without its Batch its number is not known."""

    hash: bytes
    number: int | None
    messages: int


def place(one: PartialBlock) -> tuple[bool, int, bytes]:
    """Sort key: the lowest first, those without a number last."""
    return one.number is None, one.number or 0, one.hash


def partial_around(
    source: Source,
    app: Stream,
    moments: Iterable[int],
    *,
    index: BatchIndex | None = None,
    among: Iterable[bytes] = (),
) -> tuple[dict[bytes, PartialBlock], set[bytes]]:
    """The blocks that are partially published around these moments, by their hashes, and those that are complete.

    The source reads all topics of the application; it is reassigned. ``index``: a scan whose Batches were judged
    already. ``among``: blocks that were partially published before, and still are unless they are complete now.
    """
    judged = BatchIndex() if index is None else index
    near = _read_around(source, app, moments, judged.complete, among)
    complete = judged.complete | near.complete
    complete |= complete_among(source, app, [one for one in near.copies() if one.batch.hash not in judged.batches])
    batches = {**near.batches, **judged.batches}
    incomplete = {
        block: PartialBlock(block, batches[block].number if block in batches else None, near.mentioned.get(block, 0))
        for block in (batches.keys() | near.mentioned.keys()) - complete
    }
    return incomplete, complete


def _read_around(
    source: Source, app: Stream, moments: Iterable[int], complete: set[bytes], before: Iterable[bytes]
) -> BatchIndex:
    """Everything around these moments; of what is not complete the Batches that came later."""
    near = BatchIndex(mentioned=dict.fromkeys(before, 0))
    marks = source.watermarks()
    ranges = _ranges(source, marks, sorted(moments))
    for starts, ends in ranges:
        read_range(source, starts, ends, near.add)

    def take_later(record: Record) -> None:
        batch = batch_of(record)
        if batch is not None and batch.hash in near.mentioned:
            near.add_batch(record, batch)

    if near.mentioned.keys() - near.complete - complete:
        since = {tp: ends[tp] for _, ends in ranges[:1] for tp in ends if tp[0] == app.default_topic}
        read_range(source, since, {tp: marks[tp][1] for tp in since}, take_later)
    return near


def _ranges(source: Source, marks: Mapping[Partition, tuple[int, int]], moments: Sequence[int]) -> list[_Range]:
    """Offset ranges to read, without overlap; a producer that restarts at once stopped a moment ago."""
    if not moments:
        return [({tp: max(low, end - _RECORDS) for tp, (low, end) in marks.items()}, _highs(marks))]
    ranges: list[_Range] = []
    for moment in moments:
        starts, ends = _window(source, _highs(marks), moment)
        if ranges and any(at < ranges[-1][1][tp] for tp, at in starts.items()):
            first, last = ranges.pop()
            starts = {tp: min(at, first[tp]) for tp, at in starts.items()}
            ends = {tp: max(at, last[tp]) for tp, at in ends.items()}
        ranges.append((starts, ends))
    return ranges


def _highs(marks: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
    return {tp: high for tp, (_, high) in marks.items()}


def _window(source: Source, highs: Mapping[Partition, int], moment_ms: int) -> _Range:
    at, near, far, soon, late = (
        source.offsets_for_time(max(0, moment_ms + distance))
        for distance in (0, -_BEFORE_MS, -_FAR_MS, _AFTER_MS, _FAR_MS)
    )
    starts = {tp: min(near[tp], max(far[tp], at[tp] - _RECORDS)) for tp in highs}
    ends = {tp: min(high, max(soon[tp], min(late[tp], at[tp] + _RECORDS))) for tp, high in highs.items()}
    return starts, ends
