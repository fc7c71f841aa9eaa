"""Partially published blocks: a Batch without the rest of its block, or some of the rest without the Batch.

Rules:

1. They are looked for around a moment: when a producer that was killed sent its last Batch, or when one that starts
   read the topics for the first time, as bytes that were in flight may come after it.
2. Around is ten seconds before and a minute after, and up to ten minutes each way where that is not more than so many
   records of a partition: one that was killed again soon has left a last Batch that is later than what it left first.
3. Where there is no moment, as no Batch is there, so many of the newest records are read.
4. A block is complete as well when its Batch came later: in ten minutes, or among the newest records of the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.producing.survey.batch_index import BatchIndex, batch_of
from cardinal.producing.survey.completeness import complete_among
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source

_BEFORE_MS: Final = 10_000
_AFTER_MS: Final = 60_000
_FAR_MS: Final = 600_000
_RECORDS: Final = 16_384
_NEWEST: Final = 2_048

_Range: TypeAlias = "tuple[dict[Partition, int], dict[Partition, int]]"
"""Offsets to read from, and to."""


@dataclass(frozen=True, slots=True)
class HalfPublished:
    """A block of which some messages are on the topics, and not all. Without its Batch its number is not known."""

    hash: bytes
    number: int | None
    messages: int


def place(one: HalfPublished) -> tuple[bool, int, bytes]:
    """Sort key: the lowest first, those without a number last."""
    return one.number is None, one.number or 0, one.hash


def half_around(
    source: Source,
    app: Stream,
    moments: Sequence[int | None],
    *,
    index: BatchIndex | None = None,
    among: Iterable[bytes] = (),
) -> tuple[dict[bytes, HalfPublished], set[bytes]]:
    """The blocks that are partially published around these moments, by their hashes, and those that are complete.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        moments: see the module; None where there is none.
        index: a scan whose Batches were judged already.
        among: hashes of blocks that were partially published before, and still are unless they are complete now.

    Raises:
        UnreachableError: the records do not arrive.

    """
    judged = BatchIndex() if index is None else index
    near = _read_around(source, app, moments, judged.complete, among)
    complete = judged.complete | near.complete
    complete |= complete_among(source, app, [one for one in near.copies() if one.batch.hash not in judged.batches])
    batches = {**near.batches, **judged.batches}
    half = {
        block: HalfPublished(block, batches[block].number if block in batches else None, near.mentioned.get(block, 0))
        for block in (batches.keys() | near.mentioned.keys()) - complete
    }
    return half, complete


def _read_around(
    source: Source, app: Stream, moments: Sequence[int | None], complete: set[bytes], before: Iterable[bytes]
) -> BatchIndex:
    near = BatchIndex(mentioned=dict.fromkeys(before, 0))
    ranges: list[_Range] = []

    def take_later(record: Record) -> None:
        batch = batch_of(record)
        if batch is not None and batch.hash in near.mentioned:
            near.add_batch(record, batch)

    for moment in moments:
        (starts, ends), later = _window(source, app, moment)
        if any(_covers(one, (starts, ends)) for one in ranges):
            continue  # a producer that starts again at once left a moment ago
        ranges.append((starts, ends))
        counted, near.mentioned = near.mentioned, {}
        read_range(source, starts, ends, near.add)
        # Where two moments are near each other, the same is read twice.
        near.mentioned = {one: max(counted.get(one, 0), near.mentioned.get(one, 0)) for one in counted | near.mentioned}
        if near.mentioned.keys() - near.complete - complete:
            for begin, end in later:
                read_range(source, begin, end, take_later)
    return near


def _covers(one: _Range, other: _Range) -> bool:
    return all(one[0][tp] <= start for tp, start in other[0].items()) and all(
        one[1][tp] >= end for tp, end in other[1].items()
    )


def _window(source: Source, app: Stream, moment_ms: int | None) -> tuple[_Range, list[_Range]]:
    """The range to read everything in, and those of the default topic to look for later Batches in."""
    marks = source.watermarks()
    high = {tp: end for tp, (_, end) in marks.items()}
    if moment_ms is None:
        return ({tp: max(low, end - _RECORDS) for tp, (low, end) in marks.items()}, high), []
    at, near, far, soon, late = (
        source.offsets_for_time(max(0, moment_ms + distance))
        for distance in (0, -_BEFORE_MS, -_FAR_MS, _AFTER_MS, _FAR_MS)
    )
    starts = {tp: min(near[tp], max(far[tp], at[tp] - _RECORDS)) for tp in marks}
    ends = {tp: min(high[tp], max(soon[tp], min(late[tp], at[tp] + _RECORDS))) for tp in marks}
    default = [tp for tp in marks if tp[0] == app.default_topic]
    until = {tp: min(high[tp], max(ends[tp], late[tp])) for tp in default}
    newest = {tp: max(until[tp], high[tp] - _NEWEST) for tp in default}
    return (starts, ends), [({tp: ends[tp] for tp in default}, until), (newest, high)]
