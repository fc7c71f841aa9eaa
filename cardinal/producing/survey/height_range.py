"""What the topics hold of a range of blocks: for a repair, which knows the numbers, and nothing of when they came.

Rules:

1. All Batches that are kept are looked at, as a block may have been sent at any time. Those in the range are held, and
   some next to it; a stream has more than fit into memory.
2. A block is complete as it is for a producer that starts (:mod:`.frontier`), through a reorg's channel as well.
3. What has no Batch has no number. It is looked for around the times of the range's Batches, where these are not more
   than 50,000: everything that came then has to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.producing.survey.batch_index import Found, batch_of
from cardinal.producing.survey.channels import read_channels
from cardinal.producing.survey.completeness import whole_among
from cardinal.producing.survey.read_range import read_range
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.protocols.streams.wire.messages import Batch
    from cardinal.transports.base import Source

_NEAR: Final = 32
_AROUND_MS: Final = 60_000
_LOOKED_AROUND: Final = 50_000
_BATCH: Final = bytes((BATCH,))


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found.

    Attributes:
        batches: those of the range, and some next to it, by hash.
        complete: hashes of the range's complete blocks.
        headless: hashes of blocks without a Batch that came when the range's did; None where that was not looked for.

    """

    batches: Mapping[bytes, Batch]
    complete: set[bytes]
    headless: set[bytes] | None


def complete_blocks(
    source: Source, app: Stream, first: int, last: int, *, open_channel: Callable[[str], Source] | None = None
) -> Kept:
    """What is on the topics of these heights.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        first: the lowest block number.
        last: the highest, included.
        open_channel: opens the topic of a reorg's channel; without it none is read.

    Raises:
        UnreachableError: the records do not arrive.

    """
    found, near = Found(0), _Near(first, last)

    def take(record: Record) -> None:
        if record.key[:1] != _BATCH or ((batch := batch_of(record)) is not None and near.inside(batch)):
            found.add(record)

    _read_default(source, app, take)
    if open_channel is not None:
        read_channels(open_channel, app, found)
    found.complete |= whole_among(source, app, found.unsealed())
    within = {block for block, batch in found.batches.items() if first <= batch.number <= last}
    times = sorted(found.times.values())
    headless = _headless(source, app, times, found.batches) if len(times) <= _LOOKED_AROUND else None
    return Kept({**near.batches, **found.batches}, found.complete & within, headless)


class _Near:
    """The Batches next to a range, so many on each side."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._below: dict[bytes, Batch] = {}
        self._above: dict[bytes, Batch] = {}

    @property
    def batches(self) -> dict[bytes, Batch]:
        """By hash."""
        return {**self._below, **self._above}

    def inside(self, batch: Batch) -> bool:
        """Whether a Batch is in the range; one that is next to it is held."""
        if batch.number < self._first:
            self._below[batch.hash] = batch
            if len(self._below) > 2 * _NEAR:
                nearest = sorted(self._below.values(), key=lambda one: -one.number)[:_NEAR]
                self._below = {one.hash: one for one in nearest}
        elif batch.number > self._last:
            self._above[batch.hash] = batch
            if len(self._above) > 2 * _NEAR:
                nearest = sorted(self._above.values(), key=lambda one: one.number)[:_NEAR]
                self._above = {one.hash: one for one in nearest}
        return self._first <= batch.number <= self._last


def _read_default(source: Source, app: Stream, take: Callable[[Record], None]) -> None:
    marks = {where: ends for where, ends in source.watermarks().items() if where[0] == app.default_topic}
    starts: dict[Partition, int] = {where: low for where, (low, _) in marks.items()}
    read_range(source, starts, {where: high for where, (_, high) in marks.items()}, take)


def _headless(source: Source, app: Stream, times: list[int], batches: Mapping[bytes, Batch]) -> set[bytes]:
    """What is spoken of near these times, and has no Batch anywhere."""
    spoken: set[bytes] = set()

    def take(record: Record) -> None:
        if len(record.key) >= HASH_END and BATCH < record.key[0] <= BATCH_DELETE_MSG:
            spoken.add(record.key[1:HASH_END])

    def strike(record: Record) -> None:
        if record.key[:1] == _BATCH and batch_of(record) is not None:
            spoken.discard(record.key[1:])

    for begin, end in _spans(times):
        read_range(source, source.offsets_for_time(max(0, begin)), source.offsets_for_time(end), take)
    spoken -= batches.keys()
    if spoken:
        _read_default(source, app, strike)
    return spoken


def _spans(times: Iterable[int]) -> Iterator[tuple[int, int]]:
    """From when to when to read, none twice; the times are sorted."""
    begin = end = None
    for time in times:
        if begin is not None and end is not None and time - _AROUND_MS > end:
            yield begin, end
            begin = None
        begin = time - _AROUND_MS if begin is None else begin
        end = time + _AROUND_MS
    if begin is not None and end is not None:
        yield begin, end
