"""A stream's Batches without its content, as long as they name its ranges.

1. Only the default topic is read while every Batch of it names its block's ranges (:mod:`~.wire.ranges`) in this very
   log. A block is complete with its Batch then.
2. From the first Batch on that does not (of another implementation, of an earlier release, of a stream that was copied)
   the other topics are read too. They begin some minutes before the oldest such Batch that may come: by then it is
   known where each partition of the default topic stands.
3. A cursor resumes with the default topic alone where all Batches from its floor on name their ranges.
4. A range of which retention has cut off the beginning counts as if its block lacked messages.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from cardinal.consuming.lookup import Found, read_batches
from cardinal.errors import UnreachableError
from cardinal.protocols.streams.publishing.sealing import BEFORE_BATCH_MS
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.protocols.streams.wire.ranges import RANGES_HEADER, ranges_of
from cardinal.transports.read_range import finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal.consuming.watermarks import Watermarks
    from cardinal.protocols.streams.cursor import Cursor
    from cardinal.protocols.streams.types import Partition, Row


def only_of_log(rows: Iterable[Row], log: str) -> list[Row]:
    """The records without headers that name ranges of another log; of no log at all: without any."""
    return [row if _is_of(row, log) else _without_ranges(row) for row in rows]


def _is_of(row: Row, log: str) -> bool:
    if all(name != RANGES_HEADER for name, _ in row[6]):
        return True
    named = ranges_of(row[6])
    return named is not None and bool(log) and named.log == log


def _without_ranges(row: Row) -> Row:
    return (*row[:6], tuple(header for header in row[6] if header[0] != RANGES_HEADER))


class BatchesAlone:
    """Reading of the default topic, until it is widened to the application's ``topics``: these are hidden meanwhile."""

    def __init__(self, watermarks: Watermarks, topics: Iterable[str], default_topic: str) -> None:
        self._watermarks = watermarks
        self._source = watermarks.source
        watermarks.hidden = frozenset(topics) - {default_topic}
        self._since: int | None = None
        self._times: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}

    def resumed(self, cursor: Cursor) -> Cursor:
        """The cursor to resume from: without the partitions that are not read, or as it was, and all are read."""
        hidden = self._watermarks.hidden
        read_all = any(topic in hidden for topic, _ in cursor.next)
        if read_all and cursor.ring and not self._names_all(cursor):
            self._watermarks.hidden = frozenset()
            self._watermarks.query()
            return cursor
        following = {tp: at for tp, at in cursor.next.items() if tp[0] not in hidden}
        return replace(cursor, next=following, floor={tp: cursor.floor[tp] for tp in following})

    def checked(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with headers that name ranges where these count."""
        out: list[Row] = []
        times = self._times
        for row in rows:
            key = row[3]
            times[row[0], row[1]] = row[5]
            if len(key) == HASH_END and key[0] == BATCH and not self._counts(row):
                out.append(_without_ranges(row))
            else:
                out.append(row)
        return out

    @property
    def must_widen(self) -> bool:
        """True if the other topics are needed and not yet read."""
        return self._since is not None and bool(self._watermarks.hidden)

    @property
    def can_widen(self) -> bool:
        """True when every partition has delivered a record or is at its end: the start of the others is known."""
        unread = self._source.positions().keys() - self._times.keys()
        return unread <= self._source.at_end()

    @property
    def caught_up(self) -> bool:
        """True when the other topics are read up to their watermarks of when they were first needed."""
        if not self.must_widen and self._ends:
            positions = self._source.positions()
            if all(positions.get(tp, 0) >= end for tp, end in self._ends.items()):
                self._ends = {}
        return not self.must_widen and not self._ends

    def widen(self) -> bool:
        """Read the other topics too; False while the server does not answer. Nothing is paused after it."""
        with contextlib.suppress(UnreachableError):
            source, hidden = self._source, self._watermarks.hidden
            since = min(self._since or 0, *self._times.values())
            begin = source.offsets_for_time(max(0, since - BEFORE_BATCH_MS))
            ends = {tp: high for tp, (_, high) in source.watermarks().items() if tp[0] in hidden}
            source.assign(source.positions() | {tp: at for tp, at in begin.items() if tp[0] in hidden})
            self._watermarks.hidden, self._ends = frozenset(), ends
        return not self._watermarks.hidden

    def _counts(self, batch: Row) -> bool:
        """True if a Batch's ranges are of this log and retained; the first Batch without any is noted."""
        named = ranges_of(batch[6])
        if named is None or not named.log or named.log != self._source.capabilities.log:
            self._since = batch[5] if self._since is None else min(self._since, batch[5])
            return False
        starts = self._watermarks.starts
        return all(low >= starts.get(tp, 0) for tp, (low, _) in named.ranges.items())

    def _names_all(self, cursor: Cursor) -> bool:
        """True if all Batches between the floor of a cursor and its position name their ranges."""
        begin: dict[Partition, int] = {}
        end: dict[Partition, int] = {}
        for tp, (low, high) in self._watermarks.newest.items():
            floor, following = max(low, cursor.floor.get(tp, high)), min(high, cursor.next.get(tp, low))
            if floor < following:
                begin[tp], end[tp] = floor, following

        def unnamed(batch: Found) -> bool:
            self._counts(batch.record)
            return self._since is not None

        finish(self._source, read_batches(self._source, begin, end, unnamed))
        named, self._since = self._since is None, None
        self._times.clear()
        return named
