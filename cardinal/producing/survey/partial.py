"""What is half published: there is a Batch without the rest of its block, or some of the rest without the Batch.

Rules:

1. It is looked for around a moment: when a producer that was killed sent its last Batch, or when one that starts looked
   for the first time, as bytes that were on their way may come after it.
2. Around is ten seconds before and a minute after, and up to ten minutes each way where that is not more than so many
   records of a partition: one that was killed again soon has left a last Batch that is later than what it left first.
3. Where there is no moment, as no Batch is there, so many of the newest records are looked at.
4. A block is complete as well when its Batch came later: in ten minutes, or among the newest records of the topic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.producing.survey.batch_index import Found
from cardinal.producing.survey.completeness import whole_among
from cardinal.producing.survey.read_range import read_range
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG

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
_BATCH: Final = bytes((BATCH,))

_Range: TypeAlias = "tuple[dict[Partition, int], dict[Partition, int]]"
"""Where to read from, and to."""


@dataclass(frozen=True, slots=True)
class HalfPublished:
    """A block of which something is on the topics, and not all. Without its Batch its number is not known."""

    hash: bytes
    number: int | None
    messages: int


def place(one: HalfPublished) -> tuple[bool, int, bytes]:
    """Where it stands among others: the lowest first, those without a number last."""
    return one.number is None, one.number or 0, one.hash


@dataclass(slots=True)
class _Heard:
    """The Batches around some moments, and how many other messages there are of each block (``spoken``)."""

    spoken: dict[bytes, int]
    near: Found = field(default_factory=lambda: Found(0))
    counted: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, record: Record) -> None:
        if len(record.key) >= HASH_END and record.key[0] <= BATCH_DELETE_MSG:
            if record.key[0] == BATCH:
                self.near.add(record)
            else:
                self.counted[record.key[1:HASH_END]] += 1

    def end(self) -> None:
        """What is around one moment was read; where two are near each other, the same is read twice."""
        for block, count in self.counted.items():
            self.spoken[block] = max(count, self.spoken.get(block, 0))
        self.counted.clear()

    def take_later(self, record: Record) -> None:
        if record.key[:1] == _BATCH and record.key[1:] in self.spoken:
            self.near.add(record)


def half_around(
    source: Source,
    app: Stream,
    moments: Sequence[int | None],
    *,
    found: Found | None = None,
    among: Iterable[bytes] = (),
) -> tuple[dict[bytes, HalfPublished], set[bytes]]:
    """The blocks that are half published around these moments, by their hashes, and those that are complete.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        moments: see the module; None where there is none.
        found: what was found and judged already.
        among: hashes of blocks that were half published before, and still are unless they are found complete.

    Raises:
        UnreachableError: the records do not arrive.

    """
    found = Found(0) if found is None else found
    heard = _read_around(source, app, moments, found.complete, among)
    near, spoken = heard.near, heard.spoken
    complete = found.complete | near.complete
    complete |= whole_among(source, app, [one for one in near.unsealed() if one.batch.hash not in found.batches])
    batches = {**near.batches, **found.batches}
    half = {
        block: HalfPublished(block, batches[block].number if block in batches else None, spoken.get(block, 0))
        for block in (batches.keys() | spoken.keys()) - complete
    }
    return half, complete


def _read_around(
    source: Source, app: Stream, moments: Sequence[int | None], complete: set[bytes], before: Iterable[bytes]
) -> _Heard:
    heard = _Heard(dict.fromkeys(before, 0))
    ranges: list[_Range] = []
    for moment in moments:
        (starts, ends), later = _window(source, app, moment)
        if any(_covers(one, (starts, ends)) for one in ranges):
            continue  # a producer that starts again at once left a moment ago
        ranges.append((starts, ends))
        read_range(source, starts, ends, heard.take)
        heard.end()
        if heard.spoken.keys() - heard.near.complete - complete:
            for begin, end in later:
                read_range(source, begin, end, heard.take_later)
    return heard


def _covers(one: _Range, other: _Range) -> bool:
    return all(one[0][where] <= start for where, start in other[0].items()) and all(
        one[1][where] >= end for where, end in other[1].items()
    )


def _window(source: Source, app: Stream, moment_ms: int | None) -> tuple[_Range, list[_Range]]:
    """Where to read everything from and to, and the ranges of the default topic to look for later Batches in."""
    marks = source.watermarks()
    high = {where: end for where, (_, end) in marks.items()}
    if moment_ms is None:
        return ({where: max(low, end - _RECORDS) for where, (low, end) in marks.items()}, high), []
    at, near, far, soon, late = (
        source.offsets_for_time(max(0, moment_ms + distance))
        for distance in (0, -_BEFORE_MS, -_FAR_MS, _AFTER_MS, _FAR_MS)
    )
    starts = {where: min(near[where], max(far[where], at[where] - _RECORDS)) for where in marks}
    ends = {where: min(high[where], max(soon[where], min(late[where], at[where] + _RECORDS))) for where in marks}
    default = [where for where in marks if where[0] == app.default_topic]
    until = {where: min(high[where], max(ends[where], late[where])) for where in default}
    newest = {where: max(until[where], high[where] - _NEWEST) for where in default}
    return (starts, ends), [({where: ends[where] for where in default}, until), (newest, high)]
