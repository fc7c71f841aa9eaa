"""One block under assembly: its messages, the Batches that name it, what is still missing.

Every message is held once, by its key, also one that the Batch does not count: another Batch may. Each distinct Batch
of the block's hash is a :class:`Candidate` with counters of its own; the first one is the block. Of one path's values
the Batch's counts before a BatchMsg's, and that before a sub batch's, of those the highest index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

from cardinal.protocols.streams.events import Explanation
from cardinal.protocols.streams.payload import PathMap
from cardinal.protocols.streams.types import NO_ID, Partition, Record, Row, path_text
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END, ID_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG
from cardinal.protocols.streams.wire.ranges import BlockRanges

from .counters import Counters, CountResult, Tracked
from .digests import HeaderOnly, kept_value, size_of
from .evicted import Link

Content: TypeAlias = tuple[list[bytes], dict[bytes, bytes]]

BLOCK_OVERHEAD: Final = 1000
"""Bytes that an open block costs before it holds anything, measured on CPython 3.11."""

BATCH_OVERHEAD: Final = 2000
"""Bytes that a Batch costs beyond its entries: counters, sets, record."""

MESSAGE_OVERHEAD: Final = 250
"""Bytes that a held message costs beyond its key and value: record and dict entry."""

DELETE_OVERHEAD: Final = 100
"""Bytes that a delete of a sub batch's part costs, and a key that is held in addition to the block's content."""

ENTRY_OVERHEAD: Final = 350
"""Bytes that one entry of a decoded map costs beyond its bytes on the wire."""


_NOTHING: Final[frozenset[bytes]] = frozenset()
_EMPTY: Final = (b"", 0, False, NO_ID)
"""An entry without anything but its path."""


@dataclass(slots=True, eq=False)
class SubBatchState:
    """One announced or early sub batch: its header's count, and the parts that were read, decoded."""

    parts: dict[int, Content] = field(default_factory=dict)
    count: int | None = None
    """The number of parts that the header announces; None before it came."""
    _below: int = 0

    def announce(self, count: int) -> None:
        """Take the header's count, or that of another copy."""
        self.count = count
        self._below = sum(index < count for index in self.parts)

    def add(self, index: int, content: Content) -> None:
        """Take a part, or another copy of one."""
        if index not in self.parts and self.count is not None:
            self._below += index < self.count
        self.parts[index] = content

    def is_complete(self) -> bool:
        """True when the header and every index below its count were read."""
        return self._below == self.count

    def missing(self) -> tuple[int, ...]:
        """The first indexes that are missing."""
        if self.count is None:
            return ()
        indexes = range(min(self.count, len(self.parts) + _EXPLAIN_MAX))
        return tuple(index for index in indexes if index not in self.parts)[:_EXPLAIN_MAX]


_EXPLAIN_MAX: Final = 100


class Candidate:
    """One Batch of a block, and what is missing for it.

    Attributes:
        values, deletes: the Batch's own.
        announced, waiting: ids of the sub batches that are followed, and of those that are not complete.
        surplus: keys of held messages that are not part of the block that this Batch describes.
        named: the ranges of the rest of the block, if nothing of it has to be read.

    """

    __slots__ = (
        "_skipped",
        "announced",
        "batch",
        "counters",
        "deletes",
        "fields",
        "named",
        "surplus",
        "values",
        "waiting",
    )

    def __init__(
        self,
        batch: Record,
        fields: avro.BatchFields,
        tracked: Tracked | None,
        is_prefix: Callable[[bytes], bool],
        named: BlockRanges | None = None,
    ) -> None:
        self.batch, self.fields, self.named = batch, fields, named
        everything = fields.entries.values()
        entries = everything if tracked is None else list(filter(tracked.entry, everything))
        counts: dict[bytes, int] = {}
        self.values: dict[bytes, bytes] = {}
        self.deletes: list[bytes] = []
        announced = []
        for path, value, count, delete, sub_batch in entries:
            if delete:
                self.deletes.append(path)
            if sub_batch != NO_ID:
                announced.append(sub_batch)
            elif not (value or count or delete):
                # An empty entry is an empty value, or a count of 0.
                if is_prefix(path):
                    counts[path] = 0
                else:
                    self.values[path] = value
            if value:
                self.values[path] = value
            if count:
                counts[path] = count
        self.announced = frozenset(announced) if announced else _NOTHING
        self.surplus: AbstractSet[bytes] = _NOTHING
        self.waiting = set(announced)
        self._skipped: frozenset[bytes] = _NOTHING
        ignored: list[bytes] = []
        if len(entries) < len(everything):
            followed = {entry.path for entry in entries}
            skipped = [entry for entry in everything if entry.path not in followed]
            self._skipped = frozenset(entry.sub_batch for entry in skipped) - self.announced
            ignored = [each.path for each in skipped if each.count or (each[1:] == _EMPTY and is_prefix(each.path))]
        self.counters = Counters(counts, ignored)

    def count(self, messages: Iterable[bytes], subs: Mapping[bytes, SubBatchState]) -> list[bytes]:
        """Count the messages that came before the Batch; returns the keys of those beyond what it counts."""
        beyond: list[bytes] = []
        if not self.counters.take_all(messages):
            for key in messages:
                taken = self.take(key)
                if taken is not CountResult.COUNTED:
                    self.exclude(key)
                if taken is CountResult.BEYOND:
                    beyond.append(key)
        for batch_id, sub in subs.items():
            self.sub_batch_changed(batch_id, sub)
        return beyond

    def take(self, key: bytes) -> CountResult:
        """Count a message; returns its relation to the block that the Batch describes."""
        if key[0] >= BATCH_MSG:
            return self.counters.take(key[HASH_END:])
        batch_id = sub_batch_id(key)
        if batch_id in self.announced:
            return CountResult.COUNTED
        return CountResult.IGNORED if batch_id in self._skipped else CountResult.BEYOND

    def exclude(self, key: bytes) -> None:
        """Note a held message as surplus."""
        if not self.surplus:
            self.surplus = set()
        self.surplus.add(key)  # type: ignore[attr-defined]  # it is a set from the first key on

    def sub_batch_changed(self, batch_id: bytes, sub: SubBatchState) -> None:
        """A header or a part came."""
        if sub.is_complete():
            self.waiting.discard(batch_id)
        elif batch_id in self.announced:
            self.waiting.add(batch_id)

    def complete(self) -> bool:
        """True when nothing is missing."""
        return self.named is not None or (not self.counters.outstanding and not self.waiting)


@dataclass(slots=True, eq=False)
class OpenBlock:
    """A block that is not complete. Only :class:`~.reassembler.Reassembler` changes it.

    Attributes:
        seen_at: the number of records that came before its first message.
        first: for every partition the lowest offset of a message that was seen.
        size: bytes of all messages, overheads included.
        mixed: whether there is anything but BatchMsgs.
        overdue: whether its deadline has expired.
        reopened: whether it was opened again after messages of it were evicted.
        candidates: its Batches, the one that counts first.

    """

    hash: bytes
    seen_at: int
    reopened: bool = False
    messages: dict[bytes, Row] = field(default_factory=dict)
    first: dict[Partition, int] = field(default_factory=dict)
    size: int = BLOCK_OVERHEAD
    mixed: bool = False
    overdue: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    subs: dict[bytes, SubBatchState] = field(default_factory=dict)

    @property
    def counters(self) -> Counters | None:
        """The counters of the Batch that counts; None before a Batch."""
        return self.candidates[0].counters if self.candidates else None

    @property
    def number(self) -> int | None:
        """The number that its Batch gives; None before a Batch."""
        return self.candidates[0].fields.number if self.candidates else None

    @property
    def header(self) -> HeaderOnly | None:
        """The header that its first Batch gives; None before a Batch."""
        if not self.candidates:
            return None
        fields = self.candidates[0].fields
        return HeaderOnly(fields.number, self.hash, fields.parent, fields.weight)

    @property
    def links(self) -> set[Link]:
        """Parent and number by each of its Batches."""
        return {(candidate.fields.parent, candidate.fields.number) for candidate in self.candidates}

    def without_content(self, candidate: Candidate) -> HeaderOnly:
        """The complete block of digested messages: their ranges, and the values that were kept."""
        fields, batch, named = candidate.fields, candidate.batch, candidate.named
        ranges, values, size = self._digested(candidate) if named is None else _named(batch, named)
        values |= {entry.path: entry.value for entry in fields.entries.values() if entry.value}
        return HeaderOnly(
            fields.number, self.hash, fields.parent, fields.weight, values, ranges, batch.timestamp_ms, size
        )

    def _digested(self, candidate: Candidate) -> tuple[dict[Partition, tuple[int, int]], dict[bytes, bytes], int]:
        """The ranges, kept values and size of the messages that were read."""
        ends: dict[Partition, int] = {}
        size, values = 0, {}
        surplus = candidate.surplus
        counted = (record for key, record in self.messages.items() if key not in surplus)
        for record in chain(counted, (candidate.batch,)):
            partition, offset = (record[0], record[1]), record[2]
            if partition[1] >= 0 and offset >= ends.get(partition, 0):
                ends[partition] = offset + 1
            size += size_of(record)
            if (kept := kept_value(record)) is not None:
                values[record[3][HASH_END:]] = kept
        return {partition: (self.first[partition], end) for partition, end in ends.items()}, values, size

    def content(self, candidate: Candidate) -> tuple[list[bytes], PathMap]:
        """Deletes and updates of the complete block, merged. Sub batches are merged in the order of their ids."""
        own = candidate.values
        if not self.mixed and not candidate.surplus:
            messages = self.messages
            # The messages of a complete block do not change any more.
            return candidate.deletes, PathMap(
                lambda: {key[HASH_END:]: record[4] for key, record in messages.items()} | own
            )
        removed, updates = self._sub_batch_content(candidate)
        deletes = candidate.deletes + removed
        for key, record in self.messages.items():
            kind = key[0]
            if kind < BATCH_MSG or key in candidate.surplus:
                continue
            if kind == BATCH_DELETE_MSG:
                deletes.append(key[HASH_END:])
            else:
                updates[key[HASH_END:]] = record[4]
        return deletes, PathMap(updates | own)

    def _sub_batch_content(self, candidate: Candidate) -> Content:
        deletes: list[bytes] = []
        updates: dict[bytes, bytes] = {}
        for batch_id in sorted(candidate.announced):
            sub = self.subs[batch_id]
            for index in range(sub.count or 0):
                removed, values = sub.parts[index]
                deletes += removed
                updates |= values
        return deletes, updates

    def explain(self) -> Explanation:
        """The state of the block: open, with the names of what is missing."""
        if not self.candidates:
            return Explanation(self.hash, None, "open", missing_batch=True, positions=dict(self.first))
        first = self.candidates[0]
        subs = {batch_id: self.subs.get(batch_id, SubBatchState()) for batch_id in sorted(first.announced)}
        return Explanation(
            self.hash,
            first.fields.number,
            "open",
            missing_counts={path_text(prefix): left for prefix, left in first.counters.missing().items()},
            missing_headers=tuple(batch_id for batch_id, sub in subs.items() if sub.count is None),
            missing_parts={batch_id: missing for batch_id, sub in subs.items() if (missing := sub.missing())},
            positions=dict(self.first),
            reason="" if len(self.candidates) == 1 else f"{len(self.candidates)} different Batches name this block",
        )


def _named(batch: Record, named: BlockRanges) -> tuple[dict[Partition, tuple[int, int]], dict[bytes, bytes], int]:
    """The ranges, values and size of a block whose Batch names those of the rest of it."""
    tp = (batch.topic, batch.partition)
    low, high = named.ranges.get(tp, (batch.offset, batch.offset))
    ranges = {**named.ranges, tp: (min(low, batch.offset), max(high, batch.offset + 1))}
    return ranges, dict(named.values), named.size + size_of(batch)


def sub_batch_id(key: bytes) -> bytes:
    """The id of the sub batch that a header's or part's key names."""
    return key[HASH_END:ID_END]


def batch_size(batch: Record, fields: avro.BatchFields) -> int:
    """The bytes that a held Batch costs."""
    return BATCH_OVERHEAD + 2 * len(batch.value) + ENTRY_OVERHEAD * len(fields.entries)


def message_size(record: Row, content: Content = ([], {})) -> int:
    """The bytes that another held message costs; ``content`` is a part's, decoded."""
    size = MESSAGE_OVERHEAD + len(record[3]) + len(record[4])
    if record[3][0] < BATCH_MSG:
        deletes, updates = content
        size += len(record[4]) + ENTRY_OVERHEAD * (1 + len(updates)) + DELETE_OVERHEAD * len(deletes)
    return size
