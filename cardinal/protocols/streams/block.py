"""One block under assembly: its messages, its Batch, what is still missing.

The rules of :mod:`.reassembler` for one block; that module decides which block a record belongs to and what
happens to blocks as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from . import avro
from .keys import HASH_END, ID_END
from .messages import BATCH_DELETE_MSG, BATCH_MSG
from .prefixes import Counters, Tracked
from .types import NO_ID, Partition, Position, Record

Content: TypeAlias = tuple[list[bytes], dict[bytes, bytes]]

MESSAGE_OVERHEAD: Final = 200
"""Bytes that a held message costs beyond its value: key, record and dict entry, measured on CPython 3.11."""


@dataclass(slots=True)
class SubBatchState:
    """One announced or early sub batch: its header's count, and the parts that came."""

    count: int | None = None
    parts: dict[int, Record] = field(default_factory=dict)

    def done(self) -> bool:
        """Whether the header and every index below its count are there."""
        return self.count is not None and sum(index < self.count for index in self.parts) == self.count


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a block still waits for. Counts are messages; positions are the first seen of every partition."""

    block: bytes
    number: int | None
    state: str
    missing_batch: bool = False
    missing_counts: Mapping[str, int] = field(default_factory=dict)
    missing_headers: tuple[bytes, ...] = ()
    missing_parts: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)


class OpenBlock:
    """A block that is not complete. Only :class:`~.reassembler.Reassembler` uses it."""

    __slots__ = (
        "announced",
        "batch",
        "counters",
        "entries",
        "fields",
        "first",
        "hash",
        "messages",
        "seen_at",
        "size",
        "subs",
    )

    def __init__(self, block_hash: bytes, seen_at: int) -> None:
        self.hash = block_hash
        self.seen_at = seen_at
        self.messages: dict[bytes, Record] = {}
        self.first: dict[Partition, int] = {}
        self.size = 0
        self.batch: Record | None = None
        self.fields: avro.BatchFields | None = None
        self.counters: Counters | None = None
        self.entries: list[avro.Entry] = []
        self.announced: frozenset[bytes] = frozenset()
        self.subs: dict[bytes, SubBatchState] = {}

    def adopt(
        self, batch: Record, fields: avro.BatchFields, tracked: Tracked | None, is_prefix: Callable[[bytes], bool]
    ) -> list[Record]:
        """Take this Batch as the block's, count what is there; returns the messages that belong nowhere."""
        self.batch, self.fields = batch, fields
        entries = [entry for path, entry in fields.entries.items() if tracked is None or tracked.entry(path)]
        self.entries = entries
        self.announced = frozenset(entry.sub_batch for entry in entries if entry.sub_batch != NO_ID)
        self.counters = Counters(
            (entry.path, entry.count)
            for entry in entries
            if entry.count or (not _has_content(entry) and is_prefix(entry.path))
        )
        surplus = []
        take = self.counters.take
        for key, record in self.messages.items():
            if (key[0] == BATCH_MSG or key[0] == BATCH_DELETE_MSG) and not take(key[HASH_END:]):
                surplus.append(record)
        for record in surplus:
            del self.messages[record.key]
        return surplus

    def complete(self) -> bool:
        """Whether nothing is missing."""
        if self.counters is None or self.counters.outstanding:
            return False
        return all((sub := self.subs.get(batch_id)) is not None and sub.done() for batch_id in self.announced)

    def position(self, key: bytes) -> Position | None:
        """Where the kept copy of this message lies."""
        record = self.messages.get(key)
        return None if record is None else (record.topic, record.partition, record.offset)

    def ends(self) -> dict[Partition, int]:
        """For every partition the offset after the highest message that counts."""
        ends: dict[Partition, int] = {}
        records = [*self.messages.values(), *([self.batch] if self.batch else [])]
        for record in records:
            partition = (record.topic, record.partition)
            if record.offset >= ends.get(partition, 0):
                ends[partition] = record.offset + 1
        return ends

    def content(self, is_prefix: Callable[[bytes], bool]) -> Content:
        """Deletes and updates of the whole block, merged.

        One path through several kinds of message: the Batch's value before a BatchMsg's before a sub batch's, of
        those the highest index. Sub batches of one block are merged in the order of their ids.
        """
        deletes, updates = self._sub_batch_content()
        for key, record in self.messages.items():
            kind = key[0]
            if kind == BATCH_MSG:
                updates[key[HASH_END:]] = record.value
            elif kind == BATCH_DELETE_MSG:
                deletes.append(key[HASH_END:])
        for entry in self.entries:
            if entry.delete:
                deletes.append(entry.path)
            if entry.value or not (_has_content(entry) or entry.count or is_prefix(entry.path)):
                updates[entry.path] = entry.value
        return deletes, updates

    def _sub_batch_content(self) -> Content:
        deletes: list[bytes] = []
        updates: dict[bytes, bytes] = {}
        for batch_id in sorted(self.announced):
            sub = self.subs[batch_id]
            for index in sorted(sub.parts):
                if index < (sub.count or 0):
                    removed, values = avro.read_content(sub.parts[index].value)
                    deletes += removed
                    updates |= values
        return deletes, updates

    def explain(self) -> Explanation:
        """What is missing, by name."""
        subs = {batch_id: self.subs.get(batch_id, SubBatchState()) for batch_id in self.announced}
        return Explanation(
            block=self.hash,
            number=None if self.fields is None else self.fields.number,
            state="open",
            missing_batch=self.fields is None,
            missing_counts={}
            if self.counters is None
            else {prefix.decode("utf-8", "surrogateescape"): left for prefix, left in self.counters.missing().items()},
            missing_headers=tuple(sorted(batch_id for batch_id, sub in subs.items() if sub.count is None)),
            missing_parts={batch_id: missing for batch_id, sub in subs.items() if (missing := _missing_parts(sub))},
            positions=dict(self.first),
        )


def _has_content(entry: avro.Entry) -> bool:
    """Whether an entry says anything but a count; an entry that says nothing is an empty value or a count of 0."""
    return bool(entry.value) or entry.delete or entry.sub_batch != NO_ID


_EXPLAIN_MAX: Final = 100


def _missing_parts(sub: SubBatchState) -> tuple[int, ...]:
    if sub.count is None:
        return ()
    missing = (index for index in range(min(sub.count, len(sub.parts) + _EXPLAIN_MAX)) if index not in sub.parts)
    return tuple(index for index, _ in zip(missing, range(_EXPLAIN_MAX), strict=False))


def sub_batch_id(key: bytes) -> bytes:
    """The sub batch that a header's or part's key names."""
    return key[HASH_END:ID_END]
