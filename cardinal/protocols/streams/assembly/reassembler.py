"""Records in any order and any number of copies to complete blocks (``schemas/SPEC.md``, section 6).

Rules:

1. The result depends on the sequence of records alone: not on time, nor on how they are cut into calls.
2. Of the copies of one (block, key) seen before completion the one at the lowest (topic, partition, offset)
   counts. A copy that differs is a :class:`~.events.Divergence`, also after completion within the window.
3. A key counts under the longest counted prefix of its block that it starts with; beyond its count it is
   :class:`~.events.Surplus` and not part of the block.
4. A value that does not decode is :class:`~.events.Rejected`; a later good copy works. Nothing is ever raised.
5. Up to four distinct Batches of a hash are held. Where the first cannot be completed by the deadline and another
   can, that one is delivered (:class:`~.events.Superseded`).
6. The deadline is counted in completed blocks. An overdue block is reported once (:class:`~.events.Incomplete`). A
   message that a node or an archive supplies counts where no topic has one.
7. Open blocks are bounded (:mod:`.window`), and an evicted one is an :class:`~.events.Overflow`. A caller that can
   re-read passes an :class:`~.evicted.EvictedBlocks`: messages of the blocks in it are skipped until then.
8. A block that the chain has passed by the threshold was not needed: :class:`~.events.Stale`. One that is
   abandoned while the chain waits for it is :class:`~.events.Quarantined`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from operator import length_hint
from typing import Final

from cardinal.errors import ConfigurationError, DecodeError
from cardinal.protocols.streams.events import (
    BlockHeader,
    Completed,
    Explanation,
    Incomplete,
    Overflow,
    PingSeen,
    Quarantined,
    ReassemblyEvent,
    Rejected,
    ReorgBegan,
    ReorgEnded,
    Stale,
    Superseded,
    Surplus,
)
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef, Partition, Record, Routed, Row, path_text
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import decode, sub_batch_count, sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END, ID_END
from cardinal.protocols.streams.wire.messages import (
    BATCH,
    BATCH_DELETE_MSG,
    BATCH_MSG,
    SUB_BATCH_HEADER,
    SUB_BATCH_MSG,
    Ping,
    Reorg,
    ReorgComplete,
)
from cardinal.protocols.streams.wire.ranges import ranges_of
from cardinal.texts import Count

from .block import (
    DELETE_OVERHEAD,
    MESSAGE_OVERHEAD,
    Candidate,
    Content,
    OpenBlock,
    SubBatchState,
    batch_size,
    message_size,
    sub_batch_id,
)
from .counters import NO_RUN, RUN_MAX, CountResult, Run, Tracked, compiled
from .digests import Contents, HeaderOnly
from .divergence import Copies, Volatile, divergence, held_content
from .evicted import EvictedBlock, EvictedBlocks, Link
from .window import Bounds, OpenBlocks, RecentBlock, RecentBlocks

_BOUNDS: Final = Bounds()
_FAR: Final = 1 << 63
"""Above all offsets. After a rewind a block's first message may be below those that were read before."""
_NO_HEAD: Final = bytes(HASH_END + 1)
"""Bytes that no key begins with: type and hash are shorter."""
_SUPPLIED: Final = -1
"""Partition and offset of a message that came from no topic."""
_NO_DELETES: Final[frozenset[str]] = frozenset()
_BATCHES_MAX: Final = 4


class Reassembler:
    """Blocks under assembly.

    Arguments:
        tracked: expressions searched in a Batch's entries; None follows everything.
        reorg_threshold: blocks. Late copies of completed blocks are recognised for twice as many.
        prefixes: the expressions under which the application counts; an empty entry of a Batch that matches one is
            a count of 0, not an empty value.
        volatile: expressions searched in a path: copies whose values differ only there are equal.
        inline: whether a Batch's own values and deletes are delivered even if ``tracked`` does not match them.
        contents: whether records carry values or digests.
        deadline: blocks completed since a block's first message, after which it is overdue; None: a quarter of the
            threshold.
        bounds: see :class:`Bounds`.
        evicted: the registry of evicted blocks, of a caller that is going to re-read their messages.

    Threshold, deadline, volatile paths and evicted blocks are attributes too: a quorum has those of its Reassemblers.

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
        evicted: EvictedBlocks | None = None,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._tracked = None if tracked is None else Tracked(tracked, inline=inline)
        self._prefixes = compiled(prefixes, "prefixes")
        self._contents = contents
        self._bounds = bounds
        self.volatile = Volatile(volatile)
        self.threshold = reorg_threshold
        self.deadline = max(1, reorg_threshold // 4) if deadline is None else deadline
        self.evicted = EvictedBlocks(0, most=0) if evicted is None else evicted
        self._copies = Copies(self.volatile, self._tracked, decoded=contents is Contents.VALUES)
        self._open = OpenBlocks(bounds, self.deadline)
        self._recent: RecentBlocks[RecentBlock] = RecentBlocks(2 * reorg_threshold, bounds.finished_bytes)
        self._records = 0

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call per message would cost a third of the speed
        self, records: Iterable[Row]
    ) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order.

        Messages mostly come in runs: new values of one block, under one counted prefix, from one partition. The state
        of their block is held in local names, and is written back when the run ends: with its capacity or count used
        up, or at the first record that does not belong to it (``capacity = 0`` ends it).
        """
        events: list[ReassemblyEvent] = []
        find, done = self._open.get, self._recent.get
        most, overhead = self._bounds.open_bytes, MESSAGE_OVERHEAD
        records = records if isinstance(records, list) else list(records)
        reading = iter(records)
        end = self._records + len(records)
        late, topic, partition = _NO_HEAD, "", _SUPPLIED
        block, recent = OpenBlock(b"", 0), RecentBlock(0)  # until there are others
        messages: dict[bytes, Row] = {}
        hold = messages.setdefault
        copies: dict[bytes, Row] = {}
        begins, counted, expected = NO_RUN
        left = size = capacity = held = 0
        for record in reading:
            key = record[3]
            if not capacity or not key.startswith(begins):
                if size:
                    self._end_run(block, counted, expected - left, size)
                size = capacity = 0
                head = key[:HASH_END]
                if head == late:
                    existing = copies.get(key)
                    if existing is None or existing[4] != record[4]:
                        self._copies.late(recent, record, events)
                    continue
                if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                    if key:
                        self._special(record, events)
                    continue
                found = find(head[1:])
                if found is None:
                    self._records = end - length_hint(reading)
                    if (past := done(head[1:])) is not None:
                        self._copies.late(past, record, events)
                        if past.candidate is not None and past.held is not None and head[0] == BATCH_MSG:
                            late, recent, copies = head, past, past.held.messages
                        continue
                    found = self._open_block(record, events)
                    if found is None:
                        continue
                block, topic, partition = found, record[0], record[1]
                if partition >= 0 and record[2] < block.first.get((topic, partition), _FAR):
                    block.first[topic, partition] = record[2]
                begins, counted, expected = self._run(block, key)
                if not expected:
                    self._take_one(block, record, events)
                    late = _NO_HEAD
                    continue
                messages, hold = block.messages, block.messages.setdefault
                held, left, capacity = len(messages), expected, most - self._open.bytes
            elif record[1] is not partition or record[0] is not topic:
                topic, partition = record[0], record[1]
                if partition >= 0 and record[2] < block.first.get((topic, partition), _FAR):
                    block.first[topic, partition] = record[2]
            existing = hold(key, record)
            if len(messages) == held:
                if existing[4] != record[4] or existing[1] < 0:
                    self._end_run(block, counted, expected - left, size)
                    size = capacity = 0
                    self._copy(block, Record._make(existing), Record._make(record), events)
                continue
            held += 1
            left -= 1
            size += len(key) + len(record[4]) + overhead
            if not left or size > capacity:
                self._end_run(block, counted, expected - left, size)
                size, capacity, late = 0, 0, _NO_HEAD
                self._settle(block, events)
        if size:
            self._end_run(block, counted, expected - left, size)
        self._records = end
        return events

    def _end_run(self, block: OpenBlock, counted: bytes, count: int, size: int) -> None:
        """Account for the messages of a run that are held now."""
        if block.counters is not None:
            block.counters.take_run(counted, count)
        self._open.grow(block, size)

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages from a node or an archive: they count where no topic has a copy."""
        return self.receive(Record(topic, _SUPPLIED, _SUPPLIED, key, value) for topic, key, value in messages)

    def _open_block(self, record: Row, events: list[ReassemblyEvent]) -> OpenBlock | None:
        """Open the block of a record; None where the record is not followed, or skipped."""
        key = record[3]
        if key[0] >= BATCH_MSG and self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
            return None
        evicted = self.evicted.get(key[1:HASH_END])
        if evicted is not None and record[1] >= 0 and (key[0] != BATCH or evicted.links):
            self._skip(evicted, record)
            return None
        block = self._open.open(key[1:HASH_END], self._records, reopened=evicted is not None)
        if evicted is not None:
            block.first.update(evicted.positions)  # evicted once more, it is re-read from there
        # A Batch has the number that decides about eviction: it is taken first.
        if key[0] != BATCH and self._open.crowded:
            self._evict(events, block)
        return block

    def _skip(self, evicted: EvictedBlock, record: Row) -> None:
        evicted.skip(record)
        if record[3][0] == BATCH and len(evicted.links) < _BATCHES_MAX:
            try:
                fields = avro.read_batch(record[4])
            except DecodeError:
                return
            evicted.links.add((fields.parent, fields.number))

    def _run(self, block: OpenBlock, key: bytes) -> Run:
        """The messages that can be taken together with this one, which may be a copy; none if each is to be checked."""
        # With more candidates each message is counted under all, and of a reopened block some are skipped.
        if key[0] != BATCH_MSG or block.reopened or len(block.candidates) > 1:
            return NO_RUN
        if block.counters is not None:
            return block.counters.run(key)
        return (key[:HASH_END], b"", RUN_MAX) if self._tracked is None else self._tracked.run(key)

    def _special(self, row: Row, events: list[ReassemblyEvent]) -> None:
        """Take a ping, a message of a reorg channel, or a record that is no message."""
        record = Record._make(row)
        position = record[:3]
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

    def _take_one(self, block: OpenBlock, record: Row, events: list[ReassemblyEvent]) -> None:
        """Take one message that is not part of a run."""
        self._take(block, record, events)
        if block.messages or block.candidates:
            self._settle(block, events)
        else:
            self._open.drop(block)  # a block that holds nothing must not pin positions

    def _settle(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        """Finish the block if it can be, or stay within the bounds."""
        if not self._finished(block, events) and self._open.crowded:
            self._evict(events)

    # --- one message -----------------------------------------------------------------------------------------

    def _take(self, block: OpenBlock, row: Row, events: list[ReassemblyEvent]) -> None:
        """Take a message of an open block: decode it as far as needed, count it, compare it with the held copy."""
        key = row[3]
        kind = key[0]
        if block.reopened and kind != BATCH and row[1] >= 0 and (evicted := self.evicted.get(block.hash)) is not None:
            evicted.skip(row)
            return
        existing = None if kind == BATCH else block.messages.get(key)
        if existing is None and kind >= BATCH_MSG:
            self._message(block, row, events)
            return
        record = Record._make(row)
        try:
            if kind == BATCH:
                self._batch(block, record, events)
            elif existing is not None:
                self._copy(block, Record._make(existing), record, events)
            elif kind == SUB_BATCH_HEADER:
                self._header(block, record, events)
            else:
                self._part(block, record, events)
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))

    def _batch(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        fields = _read_batch(record)
        held = block.candidates
        for candidate in held:
            if self._copies.same_batch(candidate.fields, fields):
                if candidate.named is None and (named := self._candidate(record, fields).named) is not None:
                    candidate.batch, candidate.named = record, named
                elif record.partition >= 0 and _copy_order(record) < _copy_order(candidate.batch):
                    candidate.batch = record
                return
        if held:
            kept = held[0].batch
            events.append(divergence(kept, record))
            if len(held) >= _BATCHES_MAX:
                return
        candidate = self._candidate(record, fields)
        beyond = candidate.count(block.messages, block.subs)
        first = not held or _copy_order(record) < _copy_order(held[0].batch)
        held.insert(0 if first else len(held), candidate)
        self.evicted.linked(block.hash, (fields.parent, fields.number))
        if first:
            self._open.numbered(block, fields.number)
            events += [Surplus(block.hash, key, block.messages[key][:3]) for key in beyond]
        self._open.grow(block, batch_size(record, fields) + DELETE_OVERHEAD * len(candidate.surplus))

    def _candidate(self, record: Record, fields: avro.BatchFields) -> Candidate:
        named = ranges_of(record.headers) if self._contents is Contents.DIGESTS else None
        return Candidate(record, fields, self._tracked, self._is_prefix, named)

    def _is_prefix(self, path: bytes) -> bool:
        text = path_text(path)
        return any(pattern.match(text) for pattern in self._prefixes)

    def _message(self, block: OpenBlock, row: Row, events: list[ReassemblyEvent]) -> None:
        key = row[3]
        if block.counters is None:
            if self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
                return
        elif not self._counts(block, row, events):
            return
        if key[0] != BATCH_MSG:
            block.mixed = True
        block.messages[key] = row
        self._open.grow(block, message_size(row))

    def _header(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        count = sub_batch_count(record.key, record.value)
        if block.candidates and not self._counts(block, record, events):
            return
        sub = self._sub_batch(block, record)
        sub.announce(count)
        self._sub_batch_changed(block, record.key)
        if any(index >= count for index in sub.parts):
            part = bytes((SUB_BATCH_MSG,)) + record.key[1:ID_END]
            events += [
                Surplus(block.hash, key, held[:3])
                for key, held in block.messages.items()
                if key.startswith(part) and sub_batch_index(key) >= count
            ]
        self._open.grow(block, message_size(record))

    def _part(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        index = sub_batch_index(record.key)
        content = self._content(record)
        if block.candidates and not self._counts(block, record, events):
            return
        sub = block.subs.get(sub_batch_id(record.key))
        if sub is not None and sub.count is not None and index >= sub.count:
            events.append(Surplus(block.hash, record.key, record[:3]))
            return
        self._sub_batch(block, record).add(index, content)
        self._sub_batch_changed(block, record.key)
        self._open.grow(block, message_size(record, content))

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

    def _counts(self, block: OpenBlock, record: Row, events: list[ReassemblyEvent]) -> bool:
        """Count a message under every Batch of its block; True when it is to be held: another Batch may count it."""
        key = record[3]
        first, *others = block.candidates
        taken = first.take(key)
        if taken is not CountResult.COUNTED:
            if key[0] >= BATCH_MSG:
                if self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
                    return False
            elif taken is CountResult.IGNORED:
                return False
            if taken is CountResult.BEYOND:
                events.append(Surplus(block.hash, key, record[:3]))
            first.exclude(key)
            self._open.grow(block, DELETE_OVERHEAD)
        for candidate in others:
            if candidate.take(key) is not CountResult.COUNTED:
                candidate.exclude(key)
        return True

    def _copy(self, block: OpenBlock, kept: Record, seen: Record, events: list[ReassemblyEvent]) -> None:
        """A second copy of a message before completion: the lower position counts, a difference is reported."""
        if kept[:3] == seen[:3]:
            return  # the same record, re-read
        held = content = held_content(block, kept.key)
        if not self._copies.same(kept, seen, held):
            events.append(divergence(kept, seen))
        if seen.partition < 0 or (kept.partition >= 0 and seen[:3] > kept[:3]):
            return
        if kept.key[0] == SUB_BATCH_HEADER:
            count = avro.read_int(seen.value)
            if count < 0:
                return
            block.subs[sub_batch_id(kept.key)].announce(count)
            self._sub_batch_changed(block, kept.key)
        elif kept.key[0] < BATCH_MSG:
            content = self._content(seen)
            block.subs[sub_batch_id(kept.key)].add(sub_batch_index(kept.key), content)
        block.messages[kept.key] = seen
        self._open.grow(block, message_size(seen, content) - message_size(kept, held))

    # --- complete and abandoned blocks -----------------------------------------------------------------------

    def _finished(self, block: OpenBlock, events: list[ReassemblyEvent]) -> bool:
        """Finish the block if its first Batch is complete, or any of them once it is overdue."""
        for candidate in block.candidates if block.overdue else block.candidates[:1]:
            if candidate.complete():
                self._finish(block, candidate, events)
                return True
        return False

    def _finish(self, block: OpenBlock, candidate: Candidate, events: list[ReassemblyEvent]) -> None:
        fields, batch = candidate.fields, candidate.batch
        payload: BlockHeader
        if self._contents is Contents.VALUES:
            deletes, updates = block.content(candidate)
            gone = frozenset(map(path_text, deletes)) if deletes else _NO_DELETES
            payload = Payload(fields.number, block.hash, fields.parent, fields.weight, updates, gone)
        else:
            payload = block.without_content(candidate)
        if candidate is not block.candidates[0]:
            replaced = block.candidates[0].batch
            events.append(Superseded(block.hash, fields.number, replaced[:3], batch[:3]))
        due = self._open.completed(block, fields.parent, parent_is_complete=fields.parent in self._recent)
        self._recent.add(block.hash, RecentBlock(fields.number, block, candidate))
        events.append(Completed(payload, block.first, batch.timestamp_ms, block.size))
        for other in due:
            other.overdue = True
            if not self._finished(other, events):
                events.append(Incomplete(other.explain()))

    def _evict(self, events: list[ReassemblyEvent], newest: OpenBlock | None = None) -> None:
        for block in self._open.evict(newest):
            self.evicted.add(block.hash, block.links, block.first)
            events.append(Overflow(block.hash, block.number, dict(block.first), "open blocks are over their bound"))

    def compare(self, block_hash: bytes, other: OpenBlock | RecentBlock) -> list[ReassemblyEvent]:
        """Compare another producer's copy of a block with the one that is complete here, if its messages are held.

        A surplus message of that copy is no part of it, and was reported when it was read.
        """
        kept = self._recent.get(block_hash)
        block, candidate = (other.held, other.candidate) if isinstance(other, RecentBlock) else (other, None)
        if kept is None or block is None:
            return []
        if candidate is None and block.candidates:
            candidate = block.candidates[0]
        rows: list[Row] = [*block.messages.values()]
        if candidate is not None:
            rows = [row for row in rows if row[3] not in candidate.surplus]
            rows.append(candidate.batch)
        events: list[ReassemblyEvent] = []
        for row in rows:
            self._copies.late(kept, row, events)
        return events

    def abandon(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Abandon an open block: Quarantined, with a header where it has a Batch."""
        block = self._open.get(block_hash)
        if block is None:
            return []
        self._open.drop(block)
        self._recent.add(block_hash, RecentBlock(block.number or 0, reason=reason))
        return [Quarantined(block_hash, block.number, reason, block.header)]

    def forget(self, block_hash: bytes) -> None:
        """Forget that a block was completed or abandoned: its records, re-read, assemble it again."""
        self._recent.forget(block_hash)

    def reread(self, begin: Mapping[Partition, int], wanted: Container[bytes]) -> None:
        """Note that records are re-read from ``begin`` on, because these blocks are wanted; none ends it.

        Open blocks without a Batch of which every message is re-read are dropped: kept, they would be the oldest
        ones, and evicted for messages that come before theirs.
        """
        self._open.wanted = wanted
        for block in list(self._open):
            first = block.first
            if first and not block.candidates and all(begin.get(tp, at + 1) <= at for tp, at in first.items()):
                self._open.drop(block)

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """Prune open blocks below the threshold, and forget old completed ones; the chain's head is at ``number``."""
        self._open.head = number
        self._recent.head_moved(number)
        events: list[ReassemblyEvent] = []
        for block in self._open.pop_below(number - self.threshold):
            below = block.number or 0
            reason = f"incomplete {Count(self.threshold, 'block')} below the head: it {block.explain().lacks}"
            # Its messages are held until the next step at least: under a quorum they are compared.
            self._recent.add(block.hash, RecentBlock(below, block, reason=reason))
            events.append(Stale(BlockRef(below, block.hash), reason))
        return events

    def candidate(self, batch: Record) -> Candidate:
        """The Batch as a candidate for its block, limited to the tracked entries. DecodeError where it is no Batch."""
        return self._candidate(batch, _read_batch(batch))

    # --- queries ---------------------------------------------------------------------------------------------

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs."""
        return self._open.positions(self._records)

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return [block.hash for block in self._open]

    def header_of(self, block_hash: bytes) -> HeaderOnly | None:
        """The header that the Batch of an open block gives; None without a Batch, or where it is not open."""
        block = self._open.get(block_hash)
        return None if block is None else block.header

    def links_of(self, block_hash: bytes) -> set[Link]:
        """Parent and number by the Batches of an open block."""
        block = self._open.get(block_hash)
        return set() if block is None else block.links

    @property
    def fullness(self) -> float:
        """The part of the bounds on open blocks that is used, 0 to 1, in number or in bytes."""
        return self._open.fullness

    @property
    def held_bytes(self) -> int:
        """Bytes of open blocks, and of completed ones that are held for comparison."""
        return self._open.bytes + self._recent.held_bytes

    def held(self, block_hash: bytes) -> OpenBlock | RecentBlock | None:
        """A block as it is held, open or recently completed or abandoned; None where it is neither."""
        return self._open.get(block_hash) or self._recent.get(block_hash)

    def number_of(self, block_hash: bytes) -> int | None:
        """The number that its Batch gives to a block; None before the Batch came, and when the block is forgotten."""
        held = self.held(block_hash)
        return None if held is None else held.number

    def explain(self, block_hash: bytes) -> Explanation:
        """The state of a block and what it lacks."""
        held = self.held(block_hash)
        if held is None:
            return Explanation(block_hash, None, "unknown")
        if isinstance(held, OpenBlock):
            return held.explain()
        return Explanation(block_hash, held.number, "abandoned" if held.reason else "complete", reason=held.reason)


def _read_batch(record: Record) -> avro.BatchFields:
    if len(record.key) != HASH_END:
        raise DecodeError("a Batch's key is its type and a hash, nothing more")
    fields = avro.read_batch(record.value)
    for entry in fields.entries.values():
        if entry.count < 0:
            raise DecodeError(f"the Batch counts {Count(entry.count, 'message')} under {path_text(entry.path)!r}")
    return fields


def _copy_order(record: Record) -> tuple[bool, str, int, int]:
    """Order of copies: those from a topic first, then by position."""
    return record.partition < 0, record.topic, record.partition, record.offset
