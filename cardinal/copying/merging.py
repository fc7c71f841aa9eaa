"""Merge of many partitions into one order, in which a Batch comes after the rest of its block.

Partitions are read beside each other, so a block's Batch may be read long before the block's other messages. A copy of
the stream that is one sequence, or that is sent on, needs the order in which a producer may have sent them.

Rules:

1. The order within each partition is kept.
2. A record is given when nothing that was written before it can be unread. For a Batch that means: its partition's
   watermark was above it, then watermarks were taken anew, and every partition has been read up to these, or so far
   that the records are later than the Batch by more than clocks of brokers differ (``skew_ms``): the Batch's block was
   acknowledged before the Batch was written, hence before the second look.
3. Among what may be given, the earliest by time goes first; a Batch waits for the messages of its own block and
   producer that are already here, because the times of different brokers differ a little. Where waiting would stop
   everything, it waits no longer: then these are copies that the producer sent again after the Batch.

Pure: records, positions and watermarks go in, records come out.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG, SUB_BATCH_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams.types import Partition, Record

_Part: TypeAlias = tuple[bytes, bytes | None]
"""A block's hash and a producer's id."""

_SKEW_MS: Final = 250
_FAR: Final = 1 << 63
_RECORD_BYTES: Final = 500
"""What a record takes beside the bytes of its key and value, with two short headers, as measured."""

_BATCH: Final = bytes((BATCH,))
_CONTENT: Final = range(SUB_BATCH_HEADER, BATCH_DELETE_MSG + 1)


class Merge:
    """Partitions to one order. ``size`` is about the bytes of memory that wait here."""

    def __init__(self, skew_ms: int = _SKEW_MS) -> None:
        self._skew = skew_ms
        self._queues: dict[Partition, deque[Record]] = {}
        self._here: Counter[_Part] = Counter()
        self._first: Mapping[Partition, int] = {}
        self._second: Mapping[Partition, int] = {}
        self._awaited: frozenset[Partition] = frozenset()
        self.size = 0

    @property
    def waiting(self) -> frozenset[Partition]:
        """The partitions of which records wait here."""
        return frozenset(where for where, queue in self._queues.items() if queue)

    @property
    def ahead(self) -> frozenset[Partition]:
        """The partitions of which enough waits here: nothing waits for more of these."""
        # A Batch that waits for messages of its block may be the first for long: what the last look waited for counts.
        first = min((queue[0].timestamp_ms for queue in self._queues.values() if queue), default=0)
        ahead = (w for w, queue in self._queues.items() if queue and queue[-1].timestamp_ms > first + self._skew)
        return frozenset(ahead) - self._awaited

    def add(self, records: Iterable[Record]) -> None:
        """Records as they were read, in order within each partition."""
        for record in records:
            self._queues.setdefault((record.topic, record.partition), deque()).append(record)
            self.size += _size(record)
            if record.key[:1] and record.key[0] in _CONTENT:
                self._here[_part(record)] += 1

    def watermarks(self, ends: Mapping[Partition, int]) -> None:
        """The end of every partition, taken now. One that has none any more is gone: what waits of it is the rest."""
        gone = dict.fromkeys(self.waiting - ends.keys(), _FAR)
        self._first, self._second = {**self._second, **gone}, ends

    def take(self, positions: Mapping[Partition, int]) -> list[Record]:
        """What may be given.

        Arguments:
            positions: the next offset to be read of every partition, after everything that was added.

        """
        unread = {where for where, end in self._second.items() if positions.get(where, end) < end}
        heads = [self._head(where) for where, queue in self._queues.items() if queue]
        heapq.heapify(heads)
        held: list[tuple[int, bool, Partition]] = []
        given: list[Record] = []
        self._awaited = frozenset()
        if any(not self._queues.get(where) for where in unread):
            return given  # what comes there may be earlier than anything here
        while heads or held:
            forced = not heads
            where = (held if forced else heads)[0][2]
            record = self._queues[where][0]
            self._awaited = self._waits_for(record, unread)
            if self._awaited or record.offset >= self._first.get(where, 0):
                break  # its time has not come; nor has that of later ones
            head = heapq.heappop(held if forced else heads)
            part = _part(record)
            if head[1] and not forced and self._here.get(part):
                heapq.heappush(held, head)
                continue
            given.append(self._pop(where))
            if self._queues[where]:
                heapq.heappush(heads, self._head(where))
            elif where in unread:
                break
            if held and (forced or not self._here.get(part)):
                for one in held:
                    heapq.heappush(heads, one)
                held.clear()
        return given

    def _waits_for(self, record: Record, unread: Iterable[Partition]) -> frozenset[Partition]:
        """Where what is unread may be earlier than this Batch, whatever the clocks; nowhere for other messages."""
        if record.key[:1] != _BATCH:
            return frozenset()
        latest = record.timestamp_ms + self._skew
        return frozenset(where for where in unread if self._queues[where][-1].timestamp_ms <= latest)

    def _head(self, where: Partition) -> tuple[int, bool, Partition]:
        record = self._queues[where][0]
        return record.timestamp_ms, record.key[:1] == _BATCH, where

    def _pop(self, where: Partition) -> Record:
        record = self._queues[where].popleft()
        self.size -= _size(record)
        if record.key[:1] and record.key[0] in _CONTENT:
            part = _part(record)
            self._here[part] -= 1
            if not self._here[part]:
                del self._here[part]
        return record


def _size(record: Record) -> int:
    return len(record.key) + len(record.value) + _RECORD_BYTES


def _part(record: Record) -> _Part:
    """The block and the producer of a record."""
    for name, value in record.headers:
        if name == PRODUCER_HEADER:
            return record.key[1:HASH_END], value
    return record.key[1:HASH_END], None
