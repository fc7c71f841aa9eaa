"""Completeness of blocks, by counting their messages on all topics.

A reassembler holds a bounded number of open blocks. So blocks are counted in windows, some at a time, and the
reassembler gets the records of these alone: partitions are read far apart from each other, and everything that is
written there at the same time would evict the blocks that are searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.publishing.sealing import BEFORE_BATCH_MS
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_MSG
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.batch_index import BatchCopy
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.base import Source

_MARGINS_MS: Final = (5_000, 60_000, BEFORE_BATCH_MS)
"""Distances around its Batch at which the rest of a block is searched, each for what is incomplete by then: a producer
nearly always sends the one right after the other, and ten minutes of everything are much to read for a block."""

_RECORDS: Final = 65_536
"""Of a partition, before the first Batch and after the last: on a busy stream ten minutes are millions."""

_BLOCKS: Final = 8_192
_MESSAGES: Final = 500_000
"""Of one window: less than a reassembler holds."""

_AT_ONCE: Final = 1_000

_VALUE: Final = bytes((BATCH_MSG,))


def complete_among(source: Source, app: Stream, copies: Iterable[BatchCopy]) -> set[bytes]:
    """The hashes of the blocks that are complete around a copy of their Batch.

    The source reads all topics of the application; it is reassigned. UnreachableError where the records do not
    arrive.
    """
    left = sorted(copies, key=lambda one: one.at_ms)
    complete: set[bytes] = set()
    for margin in _MARGINS_MS:
        for window in _windows(left, margin):
            complete |= _complete_within(source, app, window, margin)
        left = [one for one in left if one.batch.hash not in complete]
    return complete


def _windows(copies: Iterable[BatchCopy], margin: int) -> Iterator[list[BatchCopy]]:
    """Neighbours in time, as many as may be open at once."""
    window: list[BatchCopy] = []
    messages = 0
    for one in copies:
        size = sum(max(1, update.count) for update in one.batch.updates.values())
        apart = bool(window) and one.at_ms - window[-1].at_ms > 2 * margin
        if window and (apart or len(window) == _BLOCKS or messages + size > _MESSAGES):
            yield window
            window, messages = [], 0
        window.append(one)
        messages += size
    if window:
        yield window


def _complete_within(source: Source, app: Stream, window: list[BatchCopy], margin: int) -> set[bytes]:
    marks = source.watermarks()
    first, last = window[0].at_ms, window[-1].at_ms
    near, far = source.offsets_for_time(first), source.offsets_for_time(max(0, first - margin))
    soon, late = source.offsets_for_time(last), source.offsets_for_time(last + margin)
    starts = {tp: max(at, near.get(tp, at) - _RECORDS) for tp, at in far.items()}
    ends = {tp: min(at, soon.get(tp, at) + _RECORDS) for tp, at in late.items()}
    reassembler = Reassembler(tuple(app.topics) or None, prefixes=tuple(app.topics))
    open_ = {one.batch.hash for one in window}
    complete: set[bytes] = set()
    held: list[Record] = []

    def flush() -> None:
        done = {event.payload.hash for event in reassembler.receive(held) if isinstance(event, Completed)}
        complete.update(done)
        open_.difference_update(done)
        held.clear()

    def take(record: Record) -> None:
        if record.key[1:HASH_END] in open_:
            held.append(_bare(record))
            if len(held) == _AT_ONCE:
                flush()

    read_range(source, starts, {tp: min(ends.get(tp, high), high) for tp, (_, high) in marks.items()}, take)
    flush()
    return complete


def _bare(record: Record) -> Record:
    """A record without the value of a path: only its presence counts, and many blocks may be open."""
    return record._replace(value=b"") if record.key[:1] == _VALUE else record
