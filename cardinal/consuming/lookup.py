"""Batches on the default topic, looked up by number: for a start at a number, and for reorgs deeper than is remembered.

Batches are nearly in the order of their numbers, so the position of a number is found by binary search. It is a
generator (:mod:`cardinal.transports.read_range`); :class:`AncestorLookup` advances one by a poll at a time.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError, DecodeError, UnreachableError
from cardinal.protocols.streams.ordering.history import Parents
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.read_range import Search, search_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.consuming.skiplist import Skipping
    from cardinal.consuming.watermarks import Marks
    from cardinal.protocols.streams.types import BlockRef, Partition, Record
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics

_POLL_RECORDS: Final = 1_000
_NEAR: Final = 64
"""Offsets: below this distance reading is quicker than a binary search."""
_APART: Final = 16
"""Blocks for each partition of the Batches within which one is sure to come in every partition."""
_ENDED: Final = object()
_AWAY_SECONDS: Final = 1.0
"""Until an unreachable server is queried again."""


@dataclass(frozen=True, slots=True)
class Found:
    """A Batch on its topic."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    record: Record


def batch_of(record: Record) -> Found | None:
    """The Batch that a record holds; None where it is none."""
    if len(record.key) != HASH_END or record.key[0] != BATCH:
        return None
    try:
        fields = avro.read_batch(record.value)
    except DecodeError:
        return None
    return Found(fields.number, record.key[1:], fields.parent, fields.weight, record)


def marks_of_batches(source: Source, app: Topics) -> dict[Partition, tuple[int, int]]:
    """Start and end of every partition of the default topic."""
    return {tp: marks for tp, marks in source.watermarks().items() if tp[0] == app.default_topic}


def out_of_order(threshold: int, partitions: int) -> int:
    """Blocks by which Batches of several partitions, and of producers that follow one another, are out of order."""
    return threshold + _APART * partitions


def batches_from(source: Source, marks: Marks, number: int) -> Search[dict[Partition, int]]:
    """For every partition an offset below which no Batch of this number or a higher one is, by binary search.

    Exact where Batches are in the order of their numbers, and too low by little where a reorg or a repair has mixed
    them.
    """
    low = {tp: first for tp, (first, _) in marks.items()}
    high = {tp: end for tp, (_, end) in marks.items()}
    while wide := [tp for tp in low if high[tp] - low[tp] > _NEAR]:
        middle = {tp: (low[tp] + high[tp]) // 2 for tp in wide}
        first: dict[Partition, int] = {}
        yield from read_batches(source, middle, high, partial(_note_first, first))
        for tp in wide:
            if first.get(tp, number) < number:
                low[tp] = middle[tp]
            else:
                high[tp] = middle[tp]
    return low


def _note_first(first: dict[Partition, int], batch: Found) -> bool:
    """Note the number of a partition's first Batch."""
    first.setdefault((batch.record.topic, batch.record.partition), batch.number)
    return True


def read_batches(
    source: Source, begin: Mapping[Partition, int], end: Mapping[Partition, int], take: Callable[[Found], bool]
) -> Search[dict[Partition, int]]:
    """Call ``take`` with every Batch of these ranges, until it returns that it is enough of the Batch's partition.

    Returns the offset up to which every partition was read.
    """

    def take_batch(record: Record) -> bool:
        return (batch := batch_of(record)) is not None and take(batch)

    return search_range(source, begin, end, take_batch)


class AncestorLookup:
    """Hashes and parents of the chain below the blocks that a consumer remembers, looked up a poll at a time.

    A reorg through a channel may reach that deep. Batches from the wanted number up to well above the lowest remembered
    block are read first; where these do not connect, the rest of the topic once. Retention that was faster ends a
    look-up: the next poll begins another one. ``open_source`` opens the default topic for each.
    """

    def __init__(self, open_source: Callable[[], Source], app: Topics, threshold: int, skipping: Skipping) -> None:
        self._open = open_source
        self._app = app
        self._threshold = threshold
        self._skipping = skipping
        self._source: Source | None = None
        self._search: Search[None] | None = None
        self._range: tuple[int, BlockRef] | None = None
        self._away_until = 0.0
        self.parents = Parents()

    def poll(self, number: int, lowest: BlockRef, timeout: float) -> Mapping[bytes, bytes] | None:
        """Advance the look-up of the chain from the lowest remembered block down to a number; another one ends.

        Returns hash to parent hash of what was found; None: not yet, or the server is unreachable. Raises as opening
        and assigning a source does.
        """
        if time.monotonic() < self._away_until:
            return None
        if self._range is not None and not (self._range[0] == number and lowest.number <= self._range[1].number):
            self.close()
        with contextlib.suppress(CursorExpiredError), contextlib.ExitStack() as failed:
            failed.callback(self.close)
            try:
                if self._advance(number, lowest, timeout):
                    return self.parents.links
                failed.pop_all()
            except UnreachableError:
                self._away_until = time.monotonic() + _AWAY_SECONDS
        return None

    def close(self) -> None:
        """End the look-up and release its connection. May be called twice."""
        source, self._source, self._search, self._range = self._source, None, None, None
        if source is not None:
            source.close()

    def _advance(self, number: int, lowest: BlockRef, timeout: float) -> bool:
        """Open, or poll once; True at the end."""
        if self._search is None or self._source is None:
            self._source = source = self._open()
            self._range, self.parents = (number, lowest), Parents()
            self._search = self._find(source, marks_of_batches(source, self._app), number, lowest)
            return next(self._search, _ENDED) is _ENDED
        records: list[Record] = []
        with contextlib.suppress(UnreachableError):
            records = self._source.poll(_POLL_RECORDS, timeout)
        try:
            self._search.send(self._skipping.others(records))
        except StopIteration:
            return True
        return False

    def _find(self, source: Source, marks: Marks, number: int, lowest: BlockRef) -> Search[None]:
        start, end = ({tp: pair[side] for tp, pair in marks.items()} for side in (0, 1))
        apart = out_of_order(self._threshold, len(marks))

        def take(last: float, batch: Found) -> bool:
            if number < batch.number <= lowest.number:
                self.parents.add(batch.hash, batch.parent)
            return batch.number > last

        begin = yield from batches_from(source, marks, number - apart)
        read = yield from read_batches(source, begin, end, partial(take, lowest.number + apart))
        # Batches above, as a repair writes them, then those below.
        for first, behind in ((read, end), (start, begin)):
            if self.parents.lead(lowest, number):
                return
            yield from read_batches(source, first, behind, partial(take, math.inf))
