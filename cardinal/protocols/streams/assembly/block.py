"""One block under assembly: its messages, the Batches that name it, what is still missing.

The rules of :mod:`.reassembler` for one block; that module decides which block a record belongs to and what
happens to blocks as a whole.

Rules:

1. Every message is held once, by its key, also what the Batch does not count: another Batch may.
2. Each distinct Batch of the block's hash is a :class:`Candidate` with counters of its own. The first one is the
   block; the others wait for the case that it cannot be completed.
3. One path through several kinds of message: the Batch's value before a BatchMsg's before a sub batch's, of those
   the highest index. Sub batches of one block are merged in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cardinal.protocols.streams.payload import PathMap
from cardinal.protocols.streams.types import NO_ID, Partition, Record, Row, path_text
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END, ID_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG

from .counters import Counters, Taken, Tracked

Content: TypeAlias = tuple[list[bytes], dict[bytes, bytes]]

BLOCK_OVERHEAD: Final = 1000
"""Bytes that an open block costs before it holds anything, measured on CPython 3.11."""

BATCH_OVERHEAD: Final = 2000
"""Bytes that a Batch costs beyond its entries: counters, sets, record."""

MESSAGE_OVERHEAD: Final = 250
"""Bytes that a held message costs beyond its key and value: record and dict entry."""

DELETE_OVERHEAD: Final = 100
"""Bytes that a delete of a sub batch's part costs, and a key that is held beside the block's content."""

ENTRY_OVERHEAD: Final = 350
"""Bytes that one entry of a decoded map costs beyond its bytes on the wire."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a block still waits for, or what became of it.

    Attributes:
        block: its hash.
        number: its number, None before a Batch.
        state: ``open``, ``complete``, ``dropped``, ``quarantined``, ``done`` (before a restart) or ``unknown``; whoever
            orders blocks says more.
        missing_batch: whether no Batch has come.
        missing_counts: prefix to the messages that are missing under it.
        missing_headers: ids of announced sub batches whose header is missing.
        missing_parts: id of a sub batch to missing indexes, at most a hundred.
        positions: for every partition where its messages begin.
        reason: what else there is to say.

    """

    block: bytes
    number: int | None
    state: str
    missing_batch: bool = False
    missing_counts: Mapping[str, int] = field(default_factory=dict)
    missing_headers: tuple[bytes, ...] = ()
    missing_parts: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)
    reason: str = ""


class SubBatchState:
    """One announced or early sub batch: its header's count, and the parts that came, decoded."""

    __slots__ = ("_below", "_count", "parts")

    def __init__(self) -> None:
        self.parts: dict[int, Content] = {}
        self._count: int | None = None
        self._below = 0

    @property
    def count(self) -> int | None:
        """How many parts the header announces, None before it came."""
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        self._below = sum(index < count for index in self.parts)

    def add(self, index: int, content: Content) -> None:
        """Take a part, or another copy of one."""
        if index not in self.parts and self._count is not None:
            self._below += index < self._count
        self.parts[index] = content

    def done(self) -> bool:
        """Whether the header and every index below its count are there."""
        return self._below == self._count

    def missing(self) -> tuple[int, ...]:
        """The first indexes that are missing."""
        if self._count is None:
            return ()
        indexes = range(min(self._count, len(self.parts) + _EXPLAIN_MAX))
        return tuple(index for index in indexes if index not in self.parts)[:_EXPLAIN_MAX]


_EXPLAIN_MAX: Final = 100


class Ends(Mapping[Partition, int]):
    """For every partition the offset after the highest message that counts, found when somebody asks."""

    __slots__ = ("_found", "_records")

    def __init__(self, records: Iterable[Row]) -> None:
        self._records: Iterable[Row] = records
        self._found: dict[Partition, int] | None = None

    def found(self) -> dict[Partition, int]:
        """The offsets. The records are let go."""
        if self._found is None:
            ends: dict[Partition, int] = {}
            for topic, number, offset, *_ in self._records:
                if number >= 0 and offset >= ends.get((topic, number), 0):
                    ends[topic, number] = offset + 1
            self._found, self._records = ends, ()
        return self._found

    def __getitem__(self, partition: Partition) -> int:
        """The offset after the block's last message in this partition."""
        return self.found()[partition]

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that hold messages of the block."""
        return iter(self.found())

    def __len__(self) -> int:
        """How many there are."""
        return len(self.found())


class Candidate:
    """One Batch of a block, and what is missing for it."""

    __slots__ = ("_passed_over", "announced", "batch", "counters", "entries", "fields", "surplus", "waiting")

    def __init__(
        self, batch: Record, fields: avro.BatchFields, tracked: Tracked | None, is_prefix: Callable[[bytes], bool]
    ) -> None:
        self.batch, self.fields = batch, fields
        everything = fields.entries.values()
        self.entries = list(everything) if tracked is None else list(filter(tracked.entry, everything))
        self.announced = frozenset(entry.sub_batch for entry in self.entries if entry.sub_batch != NO_ID)
        self._passed_over: frozenset[bytes] = frozenset()
        ignored: list[bytes] = []
        if len(self.entries) < len(everything):
            self._passed_over = frozenset(entry.sub_batch for entry in everything) - self.announced
            followed = {entry.path for entry in self.entries}
            passed = (entry for entry in everything if entry.path not in followed)
            ignored = [entry.path for entry in passed if _is_count(entry, is_prefix)]
        counts = {entry.path: entry.count for entry in self.entries if _is_count(entry, is_prefix)}
        self.counters = Counters(counts, ignored)
        self.surplus: set[bytes] = set()
        """Keys of held messages that are not part of the block that this Batch describes."""
        self.waiting = set(self.announced)
        """Ids of sub batches that are not whole."""

    def count(self, messages: Iterable[bytes], subs: Mapping[bytes, SubBatchState]) -> list[bytes]:
        """Count the messages that came before the Batch; returns the keys of those beyond what it counts."""
        beyond: list[bytes] = []
        if not self.counters.take_all(messages):
            for key in messages:
                taken = self.take(key)
                if taken is not Taken.COUNTED:
                    self.surplus.add(key)
                if taken is Taken.BEYOND:
                    beyond.append(key)
        for batch_id, sub in subs.items():
            self.sub_batch_changed(batch_id, sub)
        return beyond

    def take(self, key: bytes) -> Taken:
        """What this message is to the block that the Batch describes; counts it."""
        if key[0] >= BATCH_MSG:
            return self.counters.take(key[HASH_END:])
        batch_id = sub_batch_id(key)
        if batch_id in self.announced:
            return Taken.COUNTED
        return Taken.IGNORED if batch_id in self._passed_over else Taken.BEYOND

    def sub_batch_changed(self, batch_id: bytes, sub: SubBatchState) -> None:
        """A header or a part came."""
        if sub.done():
            self.waiting.discard(batch_id)
        elif batch_id in self.announced:
            self.waiting.add(batch_id)

    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.counters.outstanding and not self.waiting


class OpenBlock:
    """A block that is not complete. Only :class:`~.reassembler.Reassembler` uses it."""

    __slots__ = (
        "again",
        "candidates",
        "careful",
        "counters",
        "first",
        "hash",
        "late",
        "messages",
        "mixed",
        "overdue",
        "seen_at",
        "size",
        "subs",
    )

    def __init__(self, block_hash: bytes, seen_at: int) -> None:
        self.hash = block_hash
        self.seen_at = seen_at
        self.again = 0
        """How many were opened to be read again, with this one; 0 where it is not."""
        self.messages: dict[bytes, Row] = {}
        self.first: dict[Partition, int] = {}
        self.size = BLOCK_OVERHEAD
        self.mixed = False
        """Whether there is anything but BatchMsgs."""
        self.late = False
        """Whether its Batch came when the chain was past it already."""
        self.overdue = False
        self.careful = False
        """Whether a message concerns more than the first candidate: there are others."""
        self.candidates: list[Candidate] = []
        self.counters: Counters | None = None
        """The counters of the first candidate."""
        self.subs: dict[bytes, SubBatchState] = {}

    @property
    def fields(self) -> avro.BatchFields | None:
        """What it says."""
        return self.candidates[0].fields if self.candidates else None

    def adopt(self, candidate: Candidate, *, at: int) -> list[bytes]:
        """Take one more Batch; the one at 0 counts. Returns the keys of messages beyond what it counts."""
        beyond = candidate.count(self.messages, self.subs)
        self.candidates.insert(at, candidate)
        self.counters = self.candidates[0].counters
        self.careful = len(self.candidates) > 1
        return beyond

    def ends(self, candidate: Candidate) -> Ends:
        """For every partition the offset after the highest message that counts."""
        counted = self.messages.values()
        if candidate.surplus:
            counted = [record for key, record in self.messages.items() if key not in candidate.surplus]  # type: ignore[assignment]  # both are iterables of records
        return Ends([*counted, candidate.batch])

    def content(self, candidate: Candidate, is_prefix: Callable[[bytes], bool]) -> tuple[list[bytes], PathMap]:
        """Deletes and updates of the whole block, merged (rule 3)."""
        deletes: list[bytes] = [entry.path for entry in candidate.entries if entry.delete]
        own = {
            entry.path: entry.value
            for entry in candidate.entries
            if entry.value or not (_has_content(entry) or _is_count(entry, is_prefix))
        }
        if not self.mixed and not candidate.surplus:
            messages = self.messages
            # The messages of a complete block do not change any more.
            return deletes, PathMap(lambda: {key[HASH_END:]: record[4] for key, record in messages.items()} | own)
        removed, updates = self._sub_batch_content(candidate)
        deletes += removed
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
        """What is missing, by name."""
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


def _has_content(entry: avro.Entry) -> bool:
    """Whether an entry says anything but a count; an entry that says nothing is an empty value or a count of 0."""
    return bool(entry.value) or entry.delete or entry.sub_batch != NO_ID


def _is_count(entry: avro.Entry, is_prefix: Callable[[bytes], bool]) -> bool:
    """Whether an entry counts messages, none perhaps."""
    return entry.count != 0 or (not _has_content(entry) and is_prefix(entry.path))


def sub_batch_id(key: bytes) -> bytes:
    """The sub batch that a header's or part's key names."""
    return key[HASH_END:ID_END]


def batch_size(batch: Record, fields: avro.BatchFields) -> int:
    """What holding a Batch costs, in bytes."""
    return BATCH_OVERHEAD + 2 * len(batch.value) + ENTRY_OVERHEAD * len(fields.entries)


def message_size(record: Row, content: Content = ([], {})) -> int:
    """What holding another message costs, in bytes; ``content`` is a part's, decoded."""
    size = MESSAGE_OVERHEAD + len(record[3]) + len(record[4])
    if record[3][0] < BATCH_MSG:
        deletes, updates = content
        size += len(record[4]) + ENTRY_OVERHEAD * (1 + len(updates)) + DELETE_OVERHEAD * len(deletes)
    return size
