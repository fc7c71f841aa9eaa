"""Start positions of a consumer without a cursor: at a time, or at a block's number.

A block's number is found on the default topic alone: Batches are there nearly in the order of their numbers, so
their position is found by binary search (:mod:`.lookup`), and the chain up to the block is walked by parent hash.
Positions on the other topics are found by time: a producer sends a block's Batch right after the rest of the block. So
are those on the default topic where blocks may have sub batches, which are announced there before the Batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardinal.consuming.lookup import Found, batches_from, marks_of_batches, out_of_order, read_batches
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.publishing.sealing import BEFORE_BATCH_MS
from cardinal.protocols.streams.types import BlockRef
from cardinal.transports.read_range import finish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics


@dataclass(frozen=True, slots=True)
class Beginning:
    """First offset of every partition; ``below`` is the last block not to deliver, where that is known."""

    positions: Mapping[Partition, int]
    below: BlockRef | None = None
    weight: int | None = None


def at_time(source: Source, app: Topics, moment: datetime) -> Beginning:
    """Begin with the blocks whose Batches were written from this moment on.

    ConfigurationError for one without a time zone.
    """
    if moment.tzinfo is None:
        raise ConfigurationError("a start time needs its time zone: write datetime(…, tzinfo=UTC)", setting="start")
    return Beginning(_around(source, app, int(moment.timestamp() * 1000)))


def at_number(source: Source, app: Topics, number: int, threshold: int) -> Beginning:
    """Begin with the block of this number on the heaviest chain that the topics hold above it.

    ``threshold``: blocks above it within which that chain is chosen. The source is reassigned. ConfigurationError
    where the stream does not hold the block; the sentence says what it holds. UnreachableError where the records do not
    arrive.
    """
    window = _by_search(source, app, number, threshold) or _by_scan(source, app, number, threshold)
    block = window.block()
    below = window.known.get(block.parent)
    positions = source.offsets_for_time(max(0, window.since - BEFORE_BATCH_MS))
    if getattr(app, "sub_batches", None) == ():
        positions |= window.places
    weight = None if below is None else below.weight
    return Beginning(positions, BlockRef(number - 1, block.parent), weight)


class _Window:
    """The Batches from one below a number up to a threshold above it, as they are read.

    Attributes:
        known: these, by hash.
        places: where those of this number and higher ones begin, in every partition of the default topic.
        since: when the first of them was written.
        highest, above: the highest number of all, and the lowest that is too high to belong here.

    """

    def __init__(self, source: Source, app: Topics, number: int, threshold: int) -> None:
        self._number, self.last = number, number + threshold
        self.known: dict[bytes, Found] = {}
        self.marks = marks_of_batches(source, app)
        self.ends = {tp: high for tp, (_, high) in self.marks.items()}
        self.places = dict(self.ends)
        self.since = 0
        self.highest: int | None = None
        self.above: int | None = None

    def take(self, batch: Found) -> bool:
        """One more; whether it is too high to belong here."""
        number, record = batch.number, batch.record
        if number >= self._number:
            tp = (record.topic, record.partition)
            self.places[tp] = min(self.places.get(tp, record.offset), record.offset)
            self.since = min(self.since or record.timestamp_ms, record.timestamp_ms)
        if self._number - 1 <= number <= self.last:
            self.known[batch.hash] = batch
        if number > self.last:
            self.above = number if self.above is None else min(self.above, number)
        self.highest = number if self.highest is None else max(self.highest, number)
        return number > self.last

    def block(self) -> Found:
        """The block of this number on the heaviest chain; raises as :func:`at_number`."""
        number, known = self._number, self.known
        tips = [batch for batch in known.values() if batch.number >= number]
        if not tips and self.above is not None:
            raise ConfigurationError(
                f"the stream does not hold block {number}: the next one that it holds is {self.above}; start there, or "
                "at 'earliest'",
                setting="start",
            )
        if not tips:
            raise ConfigurationError(
                f"the stream is empty, so it does not hold block {number} yet: wait for its first block, or start at "
                "'earliest'"
                if self.highest is None
                else f"the stream does not hold block {number} yet (its highest is {self.highest}): start at a lower "
                "one, or at 'latest'",
                setting="start",
                retriable=True,
            )
        block = max(tips, key=lambda batch: (batch.weight, batch.number))
        while block.number > number and block.parent in known:
            block = known[block.parent]
        if block.number != number:
            raise ConfigurationError(
                f"the stream's chain cannot be followed down to block {number}: it is held from block {block.number} "
                f"on; start at {block.number} or later",
                setting="start",
            )
        return block


def _by_search(source: Source, app: Topics, number: int, threshold: int) -> _Window | None:
    """Window at the number's position by binary search; None where it is not there, or Batches are out of order.

    Batches of several partitions, and of producers that follow one another, are out of order by a few blocks: the
    search begins lower by that much.
    """
    window = _Window(source, app, number, threshold)
    little = out_of_order(threshold, len(window.marks))
    begin = finish(source, batches_from(source, window.marks, number - little))
    finish(source, read_batches(source, begin, window.ends, window.take))
    if (window.above or 0) > window.last + 1 or (window.highest or 0) > window.last + little:
        return None
    try:
        window.block()
    except ConfigurationError:
        return None
    return window


def _by_scan(source: Source, app: Topics, number: int, threshold: int) -> _Window:
    """The same of all that the default topic holds: a repair or a second producer may have written it among others."""
    window = _Window(source, app, number, threshold)
    begin = {tp: low for tp, (low, _) in window.marks.items()}
    finish(source, read_batches(source, begin, window.ends, lambda batch: window.take(batch) and False))
    return window


def _around(source: Source, app: Topics, moment_ms: int) -> dict[Partition, int]:
    """The default topic from this moment on, the others from a little earlier."""
    later = source.offsets_for_time(max(0, moment_ms))
    earlier = source.offsets_for_time(max(0, moment_ms - BEFORE_BATCH_MS))
    return {tp: offset if tp[0] == app.default_topic else earlier[tp] for tp, offset in later.items()}
