"""Records in any order and any number of copies to complete blocks (specification, Consumers).

Rules, where the specification is silent:

1. Nothing here depends on the clock, on how records are cut into calls, or on anything but their sequence.
2. Of the copies of one (block, key) seen before completion the one at the lowest (topic, partition, offset)
   counts. A copy that differs is a :class:`~.events.Divergence`, also after completion within the window.
3. A key counts under the longest counted prefix of its block that it starts with; beyond its count it is
   :class:`~.events.Surplus` and not part of the block.
4. A value that does not decode is :class:`~.events.Rejected` and ignored; a later good copy works.
5. Up to four distinct Batches of a hash are held. Where the first cannot be completed by the deadline and another
   can, that one is delivered and the first reported (:class:`~.events.Superseded`).
6. The deadline is counted in blocks that were completed since the first message of a block: numbers come from the
   wire and prove nothing. An overdue block is reported once (:class:`~.events.Incomplete`), so that somebody can
   supply what it lacks. A message that was supplied counts where no topic brought one.
7. Open blocks are bounded in number and bytes. Hashes without a Batch go first, oldest first, then the lowest
   numbers; every eviction is an :class:`~.events.Overflow`. Where the messages of a block lay is remembered, so that
   it can be read again.
8. It never raises on anything that a record can hold, and never decides an order between blocks.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import length_hint
from typing import Final

from cardinal.errors import ConfigurationError, DecodeError

from . import avro
from .block import (
    BLOCK_OVERHEAD,
    DELETE_OVERHEAD,
    MESSAGE_OVERHEAD,
    Candidate,
    Content,
    Explanation,
    OpenBlock,
    SubBatchState,
    batch_size,
    message_size,
    sub_batch_id,
)
from .codec import decode, sub_batch_index
from .copies import Copies
from .events import (
    Completed,
    Divergence,
    Header,
    Incomplete,
    Overflow,
    PingSeen,
    Quarantined,
    ReassemblyEvent,
    Rejected,
    ReorgBegan,
    ReorgEnded,
    Superseded,
    Surplus,
)
from .finished import FinishedBlock, FinishedBlocks
from .keys import HASH_END, ID_END
from .messages import BATCH, BATCH_DELETE_MSG, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG, Ping, Reorg, ReorgComplete
from .payload import Payload
from .prefixes import Taken, Tracked
from .tombstones import Tombstones
from .types import SEALED_HEADER, BlockRef, Partition, Record, Routed, path_text, short


class Contents(Enum):
    """What the values of BatchMsg and SubBatchMsg records are."""

    VALUES = "values"
    """The values themselves: a completed block is a :class:`~.payload.Payload`."""

    DIGESTS = "digests"
    """Digests (see :mod:`.digests`): a completed block is a :class:`HeaderOnly`, its content stays where it is."""


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """A complete block without its content; ``marks`` holds the values of the Batch's own entries."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    marks: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a reassembler may hold.

    Attributes:
        open_bytes: bytes of open blocks, overhead included.
        open_blocks: how many blocks may be open.
        finished_bytes: bytes of completed blocks that are kept to compare late copies with.
        headless_distance: records after which a hash without a Batch no longer pins positions.

    """

    open_bytes: int = 256 << 20
    open_blocks: int = 10_000
    finished_bytes: int = 256 << 20
    headless_distance: int = 1_000_000

    def part(self, parts: int) -> Bounds:
        """The bounds of one of ``parts`` reassemblers that share these."""
        return replace(
            self,
            open_bytes=self.open_bytes // parts,
            open_blocks=max(1, self.open_blocks // parts),
            finished_bytes=self.finished_bytes // parts,
        )


_BOUNDS: Final = Bounds()
_BATCHES_MAX: Final = 4
_NO_HEAD: Final = bytes(HASH_END + 1)
"""What no key begins with: type and hash are shorter."""
_SUPPLIED: Final = -1
"""Partition and offset of a message that came from no topic."""


class Reassembler:
    """Blocks under assembly.

    Arguments:
        tracked: expressions searched in a Batch's entries; None follows everything.
        reorg_threshold: blocks. Late copies of completed blocks are recognised for twice as many.
        prefixes: the expressions under which the application counts; an entry of a Batch that says nothing and
            matches one is a count of 0, not an empty value.
        volatile: expressions searched in a path: copies whose values differ only there are equal.
        inline: whether a Batch's own values and deletes are delivered whatever ``tracked`` says.
        contents: whether records carry values or digests.
        deadline: blocks completed since a block's first message, after which it is overdue; None: a quarter of the
            threshold.
        bounds: see :class:`Bounds`.

    Raises:
        ConfigurationError: a threshold below 1, an expression that does not compile.

    """

    def __init__(
        self,
        tracked: Sequence[str] | None = None,
        reorg_threshold: int = 128,
        *,
        prefixes: Iterable[str] = (),
        volatile: Iterable[str] = (),
        inline: bool = False,
        contents: Contents = Contents.VALUES,
        deadline: int | None = None,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._tracked = None if tracked is None else Tracked(tracked, inline=inline)
        self._is_prefix = _path_test(prefixes, "prefixes", re.Pattern.match)
        self._copies = Copies(_path_test(volatile, "volatile", re.Pattern.search), decoded=contents is Contents.VALUES)
        self._contents = contents
        self._threshold = reorg_threshold
        self._deadline = max(1, reorg_threshold // 4) if deadline is None else deadline
        self._bounds = bounds
        self._open: dict[bytes, OpenBlock] = {}
        self._bytes = 0
        self._records = 0
        self._completed = 0
        self._due: deque[tuple[int, bytes, int]] = deque()
        """When which block is overdue: not the block itself, which may be let go long before. The last member tells it
        from a later one of the same hash."""
        self._numbers: list[tuple[int, int, bytes]] = []
        """A heap of the open blocks' numbers, each with what :meth:`_still_open` needs."""
        self._done = FinishedBlocks(2 * reorg_threshold, bounds.finished_bytes)
        self._done_names: frozenset[bytes] = frozenset()
        self._tombstones = Tombstones()
        self._trimmed = -1

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call per message would cost a third of the speed
        self, records: Iterable[Record]
    ) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order.

        Most records are a new value of the block, and from the partition, of the record before: what they need of
        their block stands in local names. Every other record begins with a look at its block, and all that is not a
        new value of a block in time ends with ``last = _NO_HEAD``, so that the next record takes that look again.
        """
        events: list[ReassemblyEvent] = []
        find, done = self._open.get, self._done.get
        tracked, most, overhead = self._tracked, self._bounds.open_bytes, MESSAGE_OVERHEAD
        known_directories = set() if tracked is None else tracked.directories
        records = records if isinstance(records, list) else list(records)
        reading = iter(records)
        end = self._records + len(records)
        last, late, topic, partition = _NO_HEAD, _NO_HEAD, "", _SUPPLIED
        block, finished = OpenBlock(b"", 0), FinishedBlock(0)  # until there are others
        copies: dict[bytes, Record] = {}
        size = 0  # of the messages that `block` does not account for yet
        for record in reading:
            key = record[3]
            head = key[:HASH_END]
            if head != last or record[1] is not partition or record[0] is not topic:
                if size:
                    self._grow(block, size)
                    size = 0
                last = _NO_HEAD
                if head == late:
                    known = copies.get(key)
                    if known is None or known[4] != record[4]:
                        self._late(finished, record, events)
                    continue
                if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                    if key:
                        self._special(record, events)
                    continue
                found = find(head[1:])
                if found is None:
                    self._records = end - length_hint(reading)
                    if (past := done(head[1:])) is not None:
                        self._late(past, record, events)
                        if past.held is not None and head[0] == BATCH_MSG:
                            late, finished, copies = head, past, past.held.messages
                        continue
                    found = self._open_block(record, events)
                    if found is None:
                        continue
                block, topic, partition = found, record[0], record[1]
                if partition >= 0 and (topic, partition) not in block.first:
                    block.first[topic, partition] = record[2]
                if head[0] != BATCH_MSG or block.careful:
                    self._other(block, record, events)
                    late = _NO_HEAD
                    continue
                last, messages, hold, counters = head, block.messages, block.messages.setdefault, block.counters
                held, room = len(messages), most - self._bytes
                left = {} if counters is None else counters.left
            if tracked is not None and counters is None:
                directory = key[HASH_END : key.rfind(b"/") + 1]
                if directory not in known_directories and not tracked.may_belong(key[HASH_END:]):
                    continue
            known = hold(key, record)
            if len(messages) == held:
                if known[4] != record[4] or known[1] < 0:
                    self._copy(block, known, record, events)
                    last = _NO_HEAD
                continue
            if counters is not None:
                directory = key[HASH_END : key.rfind(b"/") + 1]
                if left.get(directory, 0) > 0:
                    left[directory] -= 1
                    counters.outstanding -= 1
                elif not self._takes(block, record, events):
                    del messages[key]
                    continue
            held += 1
            size += len(key) + len(record[4]) + overhead
            if size > room or not (counters is None or counters.outstanding):
                self._grow(block, size)
                size, last, late = 0, _NO_HEAD, _NO_HEAD
                self._settle(block, events)
        if size:
            self._grow(block, size)
        self._records = end
        return events

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had: they count where no topic brought a copy."""
        return self.receive(Record(topic, _SUPPLIED, _SUPPLIED, key, value) for topic, key, value in messages)

    def _open_block(self, record: Record, events: list[ReassemblyEvent]) -> OpenBlock | None:
        key = record.key
        block_hash = key[1:HASH_END]
        if key[0] >= BATCH_MSG and self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
            return None
        if block_hash in self._tombstones:
            if self._tombstones.wants_reading(record):
                explanation = Explanation(
                    block_hash,
                    None,
                    "dropped",
                    positions=self._tombstones.positions(block_hash),
                    reason="its messages were dropped before its Batch came",
                )
                events.append(Incomplete(explanation))
            return None
        if self._done_names and short(block_hash) in self._done_names:
            return None
        block = OpenBlock(block_hash, self._records)
        self._open[block_hash] = block
        self._bytes += BLOCK_OVERHEAD
        self._due.append((self._completed + self._deadline, block_hash, block.seen_at))
        if len(self._due) > 2 * len(self._open) + _SLACK:
            self._due = deque(due for due in self._due if self._still_open(due[1], due[2]) is not None)
        if len(self._open) > self._bounds.open_blocks:
            self._evict(events)
            return self._open.get(block_hash)
        return block

    def _special(self, record: Record, events: list[ReassemblyEvent]) -> None:
        """Pings, reorg channels, and what is no message at all."""
        position = (record.topic, record.partition, record.offset)
        try:
            message = decode(record.key, record.value)
        except DecodeError as error:
            events.append(Rejected(position, record.key, error.reason))
            return
        match message:
            case Ping():
                events.append(PingSeen(message, position))
            case Reorg():
                events.append(ReorgBegan(BlockRef(message.number, message.hash), position))
            case ReorgComplete():
                events.append(ReorgEnded(BlockRef(message.number, message.hash), position))
            case _:  # decode gives nothing else for these types
                raise AssertionError(message)

    def _other(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        """Every message but a BatchMsg of a block that is in time: the same, one step after the other."""
        kind = record.key[0]
        try:
            if kind == BATCH:
                self._batch(block, record, events)
            elif (known := block.messages.get(record.key)) is not None:
                self._copy(block, known, record, events)
            elif kind >= BATCH_MSG:
                self._message(block, record, events)
            elif kind == SUB_BATCH_HEADER:
                self._header(block, record, events)
            else:
                self._part(block, record, events)
        except DecodeError as error:
            events.append(Rejected((record.topic, record.partition, record.offset), record.key, error.reason))
        if not self._forget_if_empty(block):
            self._settle(block, events)

    def _settle(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        """Finish the block if it can be, or stay within the bounds."""
        for candidate in block.candidates[: None if block.overdue else 1]:
            if candidate.complete():
                self._finish(block, candidate, events)
                return
        if self._bytes > self._bounds.open_bytes:
            self._evict(events)

    def _forget_if_empty(self, block: OpenBlock) -> bool:
        """A block that holds nothing must not pin positions."""
        if block.messages or block.candidates:
            return False
        self._drop(block)
        return True

    # --- messages of a block ---------------------------------------------------------------------------------

    def _batch(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        if len(record.key) != HASH_END:
            raise DecodeError("a Batch's key is its type and a hash, nothing more")
        fields = avro.read_batch(record.value)
        for entry in fields.entries.values():
            if entry.count < 0:
                raise DecodeError(f"it counts {entry.count} messages under {path_text(entry.path)!r}")
        held = block.candidates
        for candidate in held:
            if self._copies.same_batch(candidate.fields, fields):
                if record.partition >= 0 and _place(record) < _place(candidate.batch):
                    candidate.batch = record
                return
        if held:
            kept = held[0].batch
            events.append(Divergence(block.hash, record.key, kept.value, record.value, (kept[:3], record[:3])))
            if len(held) >= _BATCHES_MAX:
                return
        candidate = Candidate(record, fields, self._tracked, self._is_prefix)
        beyond = block.adopt(candidate, at=0 if held and _place(record) < _place(held[0].batch) else len(held))
        if block.candidates[0] is candidate:
            self._numbered(block, fields.number)
            events += [Surplus(block.hash, key, block.messages[key][:3]) for key in beyond]
        self._grow(block, batch_size(record, fields) + DELETE_OVERHEAD * len(candidate.surplus))

    def _numbered(self, block: OpenBlock, number: int) -> None:
        heapq.heappush(self._numbers, (number, block.seen_at, block.hash))
        if len(self._numbers) > 2 * len(self._open) + _SLACK:
            self._numbers = sorted(each for each in self._numbers if self._still_open(each[2], each[1]) is not None)

    def _message(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        if block.counters is None:
            if self._tracked is not None and not self._tracked.may_belong(record.key[HASH_END:]):
                return
        elif not self._takes(block, record, events):
            return
        if record.key[0] != BATCH_MSG:
            block.mixed = True
        block.messages[record.key] = record
        self._grow(block, message_size(record))

    def _header(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        count = avro.read_int(record.value)
        if len(record.key) != ID_END or count < 0:
            raise DecodeError("a SubBatchHeader is a hash, an id and a count of 0 or more")
        if block.candidates and not self._takes(block, record, events):
            return
        sub = self._sub_batch(block, record)
        sub.count = count
        self._sub_batch_changed(block, record.key)
        if any(index >= count for index in sub.parts):
            part = bytes((SUB_BATCH_MSG,)) + record.key[1:ID_END]
            events += [
                Surplus(block.hash, key, held[:3])
                for key, held in block.messages.items()
                if key.startswith(part) and sub_batch_index(key) >= count
            ]
        self._grow(block, message_size(record))

    def _part(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        index = sub_batch_index(record.key)
        content = self._content(record)
        if block.candidates and not self._takes(block, record, events):
            return
        sub = block.subs.get(sub_batch_id(record.key))
        if sub is not None and sub.count is not None and index >= sub.count:
            events.append(Surplus(block.hash, record.key, record[:3]))
            return
        self._sub_batch(block, record).add(index, content)
        self._sub_batch_changed(block, record.key)
        self._grow(block, message_size(record, content))

    def _sub_batch(self, block: OpenBlock, record: Record) -> SubBatchState:
        block.mixed = True
        block.messages[record.key] = record
        return block.subs.setdefault(sub_batch_id(record.key), SubBatchState())

    def _sub_batch_changed(self, block: OpenBlock, key: bytes) -> None:
        batch_id = sub_batch_id(key)
        for candidate in block.candidates:
            candidate.sub_batch_changed(batch_id, block.subs[batch_id])

    def _content(self, record: Record) -> Content:
        return avro.read_content(record.value) if self._contents is Contents.VALUES else ([], {})

    def _takes(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> bool:
        """Count a message under every Batch of its block; whether it is to be held.

        Also what the first Batch does not count is held, where it can belong to an entry that is followed: another
        Batch may count it.
        """
        key = record.key
        first, *others = block.candidates
        taken = first.take(key)
        if taken is not Taken.COUNTED:
            if key[0] >= BATCH_MSG:
                if self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
                    return False
            elif taken is Taken.IGNORED:
                return False
            if taken is Taken.BEYOND:
                events.append(Surplus(block.hash, key, (record.topic, record.partition, record.offset)))
            first.surplus.add(key)
            self._grow(block, DELETE_OVERHEAD)
        for candidate in others:
            if candidate.take(key) is not Taken.COUNTED:
                candidate.surplus.add(key)
        return True

    def _grow(self, block: OpenBlock, size: int) -> None:
        block.size += size
        self._bytes += size

    def _copy(self, block: OpenBlock, kept: Record, seen: Record, events: list[ReassemblyEvent]) -> None:
        """A second copy of a message before completion: the lower position counts, a difference is reported."""
        if kept[:3] == seen[:3]:
            return  # the same record, read again
        if not self._copies.same(kept, seen, _held_content(block, kept.key)):
            events.append(Divergence(block.hash, kept.key, kept.value, seen.value, (kept[:3], seen[:3])))
        if seen.partition < 0 or (kept.partition >= 0 and seen[:3] > kept[:3]):
            return
        if kept.key[0] == SUB_BATCH_HEADER:
            count = avro.read_int(seen.value)
            if count < 0:
                return
            block.subs[sub_batch_id(kept.key)].count = count
            self._sub_batch_changed(block, kept.key)
        elif kept.key[0] < BATCH_MSG:
            held = _held_content(block, kept.key)
            content = self._content(seen)
            block.subs[sub_batch_id(kept.key)].add(sub_batch_index(kept.key), content)
            self._grow(block, message_size(seen, content) - message_size(kept, held))
        block.messages[kept.key] = seen
        if kept.key[0] >= BATCH_MSG:
            self._grow(block, len(seen.value) - len(kept.value))

    # --- blocks as a whole -----------------------------------------------------------------------------------

    def _finish(self, block: OpenBlock, candidate: Candidate, events: list[ReassemblyEvent]) -> None:
        self._drop(block)
        fields, batch = candidate.fields, candidate.batch
        payload: Header
        if self._contents is Contents.VALUES:
            deletes, updates = block.content(candidate, self._is_prefix)
            payload = Payload(
                fields.number,
                block.hash,
                fields.parent,
                fields.weight,
                updates,
                frozenset(map(path_text, deletes)) if deletes else _NO_DELETES,
            )
        else:
            marks = {entry.path: entry.value for entry in fields.entries.values() if entry.value}
            payload = HeaderOnly(fields.number, block.hash, fields.parent, fields.weight, marks)
        if candidate is not block.candidates[0]:
            replaced = block.candidates[0].batch
            events.append(Superseded(block.hash, fields.number, replaced[:3], batch[:3]))
        ends = block.ends(candidate)
        self._done.add(block.hash, FinishedBlock(fields.number, block, candidate, ends))
        sealed = any(name == SEALED_HEADER for name, _ in batch.headers)
        events.append(Completed(payload, block.first, ends, batch.timestamp_ms, sealed, block.size))
        if fields.parent in self._done or fields.parent in self._open:
            self._completed += 1  # blocks that stand on nothing that is known prove no progress
        while self._due and self._due[0][0] <= self._completed:
            due = self._still_open(*self._due.popleft()[1:])
            if due is not None:
                self._overdue(due, events)

    def _still_open(self, block_hash: bytes, seen_at: int) -> OpenBlock | None:
        block = self._open.get(block_hash)
        return block if block is not None and block.seen_at == seen_at else None

    def _overdue(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        block.overdue = block.careful = True
        for candidate in block.candidates[1:]:
            if candidate.complete():
                self._finish(block, candidate, events)
                return
        events.append(Incomplete(block.explain()))

    def _late(self, done: FinishedBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        """A copy after completion: only whether it differs is of interest, and only while the block is held."""
        if done.held is None or done.candidate is None:
            return
        key = record.key
        block_hash = key[1:HASH_END]
        kept = done.candidate.batch if key[0] == BATCH else done.held.messages.get(key)
        if kept is None:
            followed = key[0] < BATCH_MSG or self._tracked is None or self._tracked.may_belong(key[HASH_END:])
            if followed and done.candidate.take(key) is Taken.BEYOND:
                events.append(Surplus(block_hash, key, record[:3]))
            return
        if kept.value == record.value:
            return
        try:
            if key[0] == BATCH:
                same = self._copies.same_batch(done.candidate.fields, avro.read_batch(record.value))
            else:
                same = self._copies.same(kept, record, _held_content(done.held, key))
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))
            return
        if not same:
            events.append(Divergence(block_hash, key, kept.value, record.value, (kept[:3], record[:3])))

    def _drop(self, block: OpenBlock) -> None:
        del self._open[block.hash]
        self._bytes -= block.size

    def _evict(self, events: list[ReassemblyEvent]) -> None:
        """Bring the open blocks below nine tenths of the bounds: headless ones first, then the lowest numbers."""
        bytes_goal, blocks_goal = self._bounds.open_bytes * 9 // 10, self._bounds.open_blocks * 9 // 10
        order = sorted(
            self._open.values(),
            key=lambda block: (block.fields is not None, block.fields.number if block.fields else block.seen_at),
        )
        for block in order:
            if self._bytes <= bytes_goal and len(self._open) <= blocks_goal:
                return
            self._drop(block)
            number = None if block.fields is None else block.fields.number
            events.append(Overflow(block.hash, number, dict(block.first), "open blocks are over their bound"))
            self._tombstones.bury(block)

    def give_up(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block."""
        block = self._open.get(block_hash)
        if block is None:
            return []
        self._drop(block)
        fields = block.fields
        number, header = 0, None
        if fields is not None:
            number = fields.number
            header = HeaderOnly(number, block_hash, fields.parent, fields.weight, {})
        self._done.add(block_hash, FinishedBlock(number, reason=reason))
        return [Quarantined(block_hash, None if fields is None else number, reason, header)]

    def reread(self, block_hash: bytes) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped, or finished and then dropped by whoever orders blocks.

        Returns:
            Where to read its messages from; None where that is not known here.

        """
        self._done.forget(block_hash)
        return self._tombstones.lift(block_hash)

    # --- what the rest of the room needs ---------------------------------------------------------------------

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """The chain's head is at ``number``: give up open blocks below the threshold, forget old late copies."""
        events: list[ReassemblyEvent] = []
        # Done at whole steps of the number, so that the work is spread and still a function of the head alone.
        step = max(1, self._threshold // 8)
        head = number - number % step
        if head == self._trimmed:
            return events
        self._trimmed = head
        lost: list[OpenBlock] = []
        while self._numbers and self._numbers[0][0] < head - self._threshold:
            number, seen_at, block_hash = heapq.heappop(self._numbers)
            block = self._still_open(block_hash, seen_at)
            if block is not None and block.fields is not None and block.fields.number == number:
                lost.append(block)
        for block in sorted(lost, key=lambda block: block.seen_at):
            events += self.give_up(block.hash, f"still incomplete {self._threshold} blocks later")
        self._done.head_moved(head)
        return events

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs."""
        lowest: dict[Partition, int] = {}
        for block in self._open.values():
            if not block.candidates and self._records - block.seen_at > self._bounds.headless_distance:
                continue
            for partition, offset in block.first.items():
                if offset < lowest.get(partition, offset + 1):
                    lowest[partition] = offset
        return lowest

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return list(self._open)

    @property
    def lowest_open(self) -> int | None:
        """The number of the lowest open block that has a Batch; None without one."""
        while self._numbers and self._still_open(self._numbers[0][2], self._numbers[0][1]) is None:
            heapq.heappop(self._numbers)
        return self._numbers[0][0] if self._numbers else None

    @property
    def held_bytes(self) -> int:
        """What open blocks, and completed ones that are kept to compare with, cost in bytes."""
        return self._bytes + self._done.held_bytes

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the completed blocks that are still recognised."""
        return list(self._done)

    def ignore(self, names: Iterable[bytes]) -> None:
        """Treat blocks whose hash has one of these short names as done (resuming: late copies of old blocks)."""
        self._done_names = frozenset(names)

    def held(self, block_hash: bytes) -> OpenBlock | FinishedBlock | None:
        """What there is of this block: under assembly, or finished with; None where it is neither."""
        return self._open.get(block_hash) or self._done.get(block_hash)

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for, or what became of it."""
        if (block := self._open.get(block_hash)) is not None:
            return block.explain()
        if (done := self._done.get(block_hash)) is not None:
            return Explanation(
                block_hash, done.number, "quarantined" if done.reason else "complete", reason=done.reason
            )
        if block_hash in self._tombstones:
            return Explanation(block_hash, None, "dropped", positions=self._tombstones.positions(block_hash))
        if self._done_names and short(block_hash) in self._done_names:
            return Explanation(block_hash, None, "done", reason="it was done with before the stream was resumed")
        return Explanation(block_hash, None, "unknown")


_NO_DELETES: Final[frozenset[str]] = frozenset()
_SLACK: Final = 1000


def _held_content(block: OpenBlock, key: bytes) -> Content:
    """The decoded content of a held SubBatchMsg; nothing for other messages."""
    if key[0] != SUB_BATCH_MSG:
        return [], {}
    return block.subs[sub_batch_id(key)].parts[sub_batch_index(key)]


def _place(record: Record) -> tuple[bool, str, int, int]:
    """What copies are ordered by: those from a topic first, then by position."""
    return record.partition < 0, record.topic, record.partition, record.offset


def _path_test(
    expressions: Iterable[str], setting: str, how: Callable[[re.Pattern[str], str], object]
) -> Callable[[bytes], bool]:
    try:
        patterns = [re.compile(expression) for expression in expressions]
    except re.error as error:
        raise ConfigurationError(
            f"an expression of {setting} does not compile: {error.pattern!r} ({error.msg})", setting=setting
        ) from None
    if not patterns:
        return lambda _path: False
    return lambda path: any(how(pattern, path_text(path)) is not None for pattern in patterns)
