"""Merge of many partitions into one order, in which a Batch comes after the rest of its block.

Partitions are read in parallel, so a block's Batch may be read long before the block's other messages. A copy of
the stream that is one sequence, or that is forwarded, needs the order in which a producer may have sent them.

1. The order within each partition is kept, and the earliest record by time comes first of those that may be delivered.
2. A Batch may be delivered when its partition's watermark was above it, then watermarks were taken again, and every
   partition has been read up to these, or so far that the records are later than the Batch by more than clocks of
   brokers differ (``skew_ms``): the Batch's block was acknowledged before the Batch was written, hence before these.
3. A Batch waits for the messages of its own block and producer that are already held. Where waiting would stop
   everything, it waits no longer: then these are copies that the producer resent after the Batch.
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
"""Bytes of a record in addition to its key and value, with two short headers, as measured."""

_BATCH: Final = bytes((BATCH,))
_CONTENT: Final = range(SUB_BATCH_HEADER, BATCH_DELETE_MSG + 1)


class Merge:
    """Partitions to one order. ``size``: approximate bytes of the records held."""

    def __init__(self, skew_ms: int = _SKEW_MS) -> None:
        self._skew = skew_ms
        self._queues: dict[Partition, deque[Record]] = {}
        self._held_content: Counter[_Part] = Counter()
        self._previous_watermarks: Mapping[Partition, int] = {}
        self._watermarks: Mapping[Partition, int] = {}
        self._awaited: frozenset[Partition] = frozenset()
        self.size = 0

    @property
    def waiting(self) -> frozenset[Partition]:
        """The partitions of which records are held."""
        return frozenset(tp for tp, queue in self._queues.items() if queue)

    @property
    def ahead(self) -> frozenset[Partition]:
        """The partitions that are read far enough: no record waits for more of these."""
        # A Batch that waits for messages of its block may be the first for long: the last `take` decides.
        first = min((queue[0].timestamp_ms for queue in self._queues.values() if queue), default=0)
        ahead = (w for w, queue in self._queues.items() if queue and queue[-1].timestamp_ms > first + self._skew)
        return frozenset(ahead) - self._awaited

    def add(self, records: Iterable[Record]) -> None:
        """Add records as they were read, in order within each partition."""
        for record in records:
            self._queues.setdefault((record.topic, record.partition), deque()).append(record)
            self.size += _size(record)
            if record.key[:1] and record.key[0] in _CONTENT:
                self._held_content[_part(record)] += 1

    def watermarks(self, watermarks: Mapping[Partition, int]) -> None:
        """Take the current watermark of every partition. One without is gone: the records held of it are its last."""
        gone = dict.fromkeys(self.waiting - watermarks.keys(), _FAR)
        self._previous_watermarks, self._watermarks = {**self._watermarks, **gone}, watermarks

    def take(self, positions: Mapping[Partition, int]) -> list[Record]:
        """The records that may be delivered. ``positions``.

        The next offset of every partition, after all that was added.
        """
        unread = {tp for tp, end in self._watermarks.items() if positions.get(tp, end) < end}
        heads = [self._head(tp) for tp, queue in self._queues.items() if queue]
        heapq.heapify(heads)
        held: list[tuple[int, bool, Partition]] = []
        delivered: list[Record] = []
        self._awaited = frozenset()
        if any(not self._queues.get(tp) for tp in unread):
            return delivered  # the next record there may be earlier than anything held
        while heads or held:
            forced = not heads
            tp = (held if forced else heads)[0][2]
            record = self._queues[tp][0]
            self._awaited = self._waits_for(record, unread)
            if self._awaited or record.offset >= self._previous_watermarks.get(tp, 0):
                break  # it has to wait, and so have all later ones
            head = heapq.heappop(held if forced else heads)
            part = _part(record)
            if head[1] and not forced and self._held_content.get(part):
                heapq.heappush(held, head)
                continue
            delivered.append(self._pop(tp))
            if self._queues[tp]:
                heapq.heappush(heads, self._head(tp))
            elif tp in unread:
                break
            if held and (forced or not self._held_content.get(part)):
                for one in held:
                    heapq.heappush(heads, one)
                held.clear()
        return delivered

    def _waits_for(self, record: Record, unread: Iterable[Partition]) -> frozenset[Partition]:
        """Partitions whose unread records may be earlier than this Batch by any clock; none for other messages."""
        if record.key[:1] != _BATCH:
            return frozenset()
        latest = record.timestamp_ms + self._skew
        return frozenset(tp for tp in unread if self._queues[tp][-1].timestamp_ms <= latest)

    def _head(self, tp: Partition) -> tuple[int, bool, Partition]:
        record = self._queues[tp][0]
        return record.timestamp_ms, record.key[:1] == _BATCH, tp

    def _pop(self, tp: Partition) -> Record:
        record = self._queues[tp].popleft()
        self.size -= _size(record)
        if record.key[:1] and record.key[0] in _CONTENT:
            part = _part(record)
            self._held_content[part] -= 1
            if not self._held_content[part]:
                del self._held_content[part]
        return record


def _size(record: Record) -> int:
    return len(record.key) + len(record.value) + _RECORD_BYTES


def _part(record: Record) -> _Part:
    """The block and the producer of a record."""
    for name, value in record.headers:
        if name == PRODUCER_HEADER:
            return record.key[1:HASH_END], value
    return record.key[1:HASH_END], None
