"""Content of a height range on the topics: for a repair, which has numbers, and no times.

Rules:

1. All Batches that are retained are read, as a block may have been sent at any time. Those in the range are held, and
   some next to it; a stream has more than fit into memory.
2. A block is complete when its messages are counted there, sealed or not: topics lose content after the seal was
   written, by an operator's hand or where their retention differs. Those of a reorg channel are counted as well.
3. What has no Batch has no number. It is looked for around the times of the range's Batches, where these are not more
   than 50,000: everything that came then has to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from cardinal.producing.survey.batch_index import BatchIndex, batch_of
from cardinal.producing.survey.channels import read_channels
from cardinal.producing.survey.completeness import complete_among
from cardinal.protocols.streams.wire.messages import REORG
from cardinal.transports.read_range import read_all, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.types import Record
    from cardinal.protocols.streams.wire.messages import Batch
    from cardinal.transports.base import Source

_NEAR: Final = 32
_AROUND_MS: Final = 60_000
_LOOKED_AROUND: Final = 50_000
_REORG: Final = bytes((REORG,))


@dataclass(frozen=True, slots=True)
class HeightRange:
    """Blocks of a height range.

    Attributes:
        batches: those of the range, and some next to it, by hash.
        complete: hashes of the range's complete blocks.
        headless: hashes of blocks without a Batch that came when the range's did; None where the range is too wide.

    """

    batches: Mapping[bytes, Batch]
    complete: set[bytes]
    headless: set[bytes] | None


def height_range(
    source: Source, app: Stream, first: int, last: int, *, open_channel: Callable[[str], Source] | None = None
) -> HeightRange:
    """The blocks of these heights on the topics, the last one included; raises as :func:`~.frontier.survey`."""
    index, neighbours = BatchIndex(), _Neighbours(first, last)

    def take(record: Record) -> None:
        batch = batch_of(record)
        if batch is None:
            if record.key[:1] == _REORG:
                index.add(record)
        elif first <= batch.number <= last:
            index.add_batch(record, batch)
        else:
            neighbours.add(batch)

    _read_default(source, app, take)
    index.complete = complete_among(source, app, index.copies(sealed=True))
    if open_channel is not None:
        read_channels(open_channel, app, index, sealed=False)
    within = {block for block, batch in index.batches.items() if first <= batch.number <= last}
    times = sorted({at_ms for both in index.times.values() for at_ms in both})
    headless = _headless(source, app, times, index.batches) if len(index.times) <= _LOOKED_AROUND else None
    return HeightRange({**neighbours.batches, **index.batches}, index.complete & within, headless)


class _Neighbours:
    """The Batches next to a range, a bounded number on each side."""

    def __init__(self, first: int, last: int) -> None:
        self._middle = (first + last) / 2
        self._sides: dict[bool, dict[bytes, Batch]] = {False: {}, True: {}}

    @property
    def batches(self) -> dict[bytes, Batch]:
        """By hash."""
        return {**self._sides[False], **self._sides[True]}

    def add(self, batch: Batch) -> None:
        above = batch.number > self._middle
        side = self._sides[above]
        side[batch.hash] = batch
        if len(side) > 2 * _NEAR:
            nearest = nsmallest(_NEAR, side.values(), key=lambda one: abs(one.number - self._middle))
            self._sides[above] = {one.hash: one for one in nearest}


def _read_default(source: Source, app: Stream, take: Callable[[Record], None]) -> None:
    read_all(source, {tp: marks for tp, marks in source.watermarks().items() if tp[0] == app.default_topic}, take)


def _headless(source: Source, app: Stream, times: list[int], batches: Mapping[bytes, Batch]) -> set[bytes]:
    """Blocks with messages near these times, and without a Batch anywhere."""
    near = BatchIndex()

    def strike(record: Record) -> None:
        if (batch := batch_of(record)) is not None:
            headless.discard(batch.hash)

    for begin, end in _spans(times):
        read_range(source, source.offsets_for_time(max(0, begin)), source.offsets_for_time(end), near.add)
    headless = near.mentioned.keys() - near.batches.keys() - batches.keys()
    if headless:
        _read_default(source, app, strike)
    return headless


def _spans(times: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Spans of time to read, none twice; the times are sorted."""
    begin = end = None
    for time in times:
        if begin is not None and end is not None and time - _AROUND_MS > end:
            yield begin, end
            begin = None
        begin = time - _AROUND_MS if begin is None else begin
        end = time + _AROUND_MS
    if begin is not None and end is not None:
        yield begin, end
