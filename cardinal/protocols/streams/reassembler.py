"""Records in any order and any number of copies to complete blocks (specification, Consumers).

Rules, where the specification is silent:

1. Nothing here depends on the clock, on how records are cut into calls, or on anything but their sequence.
2. Of the copies of one (block, key) seen before completion the one at the lowest (topic, partition, offset)
   counts. A copy that differs is a :class:`~.events.Divergence`, also after completion within the window.
3. A key counts under the longest counted prefix of its block that it starts with; beyond its count it is
   :class:`~.events.Surplus` and not part of the block.
4. A value that does not decode is :class:`~.events.Rejected` and ignored; a later good copy works.
5. Open blocks are bounded in number and bytes. Hashes without a Batch go first, oldest first, then the lowest
   numbers; every eviction is an :class:`~.events.Overflow`.
6. It never raises on anything that a record can hold, and never decides an order between blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cardinal.errors import ConfigurationError, DecodeError

from . import avro
from .block import MESSAGE_OVERHEAD, Explanation, OpenBlock, SubBatchState, sub_batch_id
from .codec import decode, sub_batch_index
from .events import (
    Completed,
    Divergence,
    Header,
    Overflow,
    PingSeen,
    Quarantined,
    ReassemblyEvent,
    Rejected,
    ReorgBegan,
    ReorgEnded,
    Surplus,
)
from .keys import HASH_END, ID_END
from .messages import (
    BATCH,
    BATCH_DELETE_MSG,
    BATCH_MSG,
    SUB_BATCH_HEADER,
    SUB_BATCH_MSG,
    Ping,
    Reorg,
    ReorgComplete,
)
from .payload import PathMap, Payload
from .prefixes import Tracked
from .types import SEALED_HEADER, BlockRef, Partition, Record, path_text


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


class _Done:
    """What is remembered of a completed block, to recognise late copies."""

    __slots__ = ("batch", "number", "values")

    def __init__(self, number: int, batch: bytes, values: dict[bytes, bytes] | None) -> None:
        self.number = number
        self.batch = batch
        self.values = values


_TOMBSTONES_MAX: Final = 1024


class Reassembler:
    """Blocks under assembly.

    Arguments:
        tracked: expressions searched in a Batch's entries; None follows everything.
        reorg_threshold: blocks. Late copies of completed blocks are recognised for twice as many.
        prefixes: the expressions under which the application counts; an entry of a Batch that says nothing and
            matches one is a count of 0, not an empty value.
        contents: whether records carry values or digests.
        max_open_bytes: bound on the bytes of open blocks, messages' overhead included.
        max_open_blocks: bound on their number.
        headless_distance: records after which a hash without a Batch no longer pins positions.

    """

    def __init__(
        self,
        tracked: Sequence[str] | None = None,
        reorg_threshold: int = 128,
        *,
        prefixes: Iterable[str] = (),
        contents: Contents = Contents.VALUES,
        max_open_bytes: int = 256 << 20,
        max_open_blocks: int = 10_000,
        headless_distance: int = 1_000_000,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._tracked = None if tracked is None else Tracked(tracked)
        self._is_prefix = _prefix_test(prefixes)
        self._contents = contents
        self._window = 2 * reorg_threshold
        self._threshold = reorg_threshold
        self._max_bytes, self._max_blocks = max_open_bytes, max_open_blocks
        self._headless_distance = headless_distance
        self._open: dict[bytes, OpenBlock] = {}
        self._bytes = 0
        self._records = 0
        self._done: dict[bytes, _Done] = {}
        self._done_prefixes: frozenset[bytes] = frozenset()
        self._done_by_number: dict[int, list[bytes]] = {}
        self._tombstones: dict[bytes, Mapping[Partition, int]] = {}
        self._trimmed = -1
        self._handlers: dict[int, Callable[[OpenBlock, Record, list[ReassemblyEvent]], None]] = {
            BATCH: self._batch,
            SUB_BATCH_HEADER: self._header,
            SUB_BATCH_MSG: self._part,
        }

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(  # noqa: C901, PLR0912 - the hot loop: a call per message would cost a third of the speed
        self, records: Iterable[Record]
    ) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order."""
        events: list[ReassemblyEvent] = []
        blocks, done = self._open, self._done
        tracked = self._tracked
        last_topic, last_partition, partition = "", -1, ("", -1)
        for record in records:
            topic, number, offset, key, value, *_ = record
            self._records += 1
            if len(key) < HASH_END or (kind := key[0]) > BATCH_DELETE_MSG:
                if key:
                    self._special(record, events)
                continue
            block_hash = key[1:HASH_END]
            block = blocks.get(block_hash)
            if block is None:
                if block_hash in done:
                    self._late(block_hash, record, events)
                    continue
                block = self._open_block(block_hash, record, events)
                if block is None:
                    continue
            if number != last_partition or topic is not last_topic:
                last_topic, last_partition, partition = topic, number, (topic, number)
            if partition not in block.first:
                block.first[partition] = offset
            if kind < BATCH_MSG:
                self._handlers[kind](block, record, events)
            else:
                messages = block.messages
                known = messages.get(key)
                if known is not None:
                    self._copy(block, known, record, events)
                    continue
                if block.counters is None:
                    if tracked is not None and not tracked.may_belong(key[HASH_END:]):
                        self._forget_if_empty(block)
                        continue
                elif not block.counters.take(key[HASH_END:]):
                    if tracked is None or tracked.may_belong(key[HASH_END:]):
                        events.append(Surplus(block_hash, key, (topic, number, offset)))
                    continue
                messages[key] = record
                size = len(value) + MESSAGE_OVERHEAD
                block.size += size
                self._bytes += size
            if (counters := block.counters) is not None and not counters.outstanding and block.complete():
                self._finish(block, events)
            elif self._bytes > self._max_bytes or len(blocks) > self._max_blocks:
                self._evict(events)
        return events

    def _open_block(self, block_hash: bytes, record: Record, events: list[ReassemblyEvent]) -> OpenBlock | None:
        if block_hash in self._tombstones:
            if record.key[0] == BATCH:
                events.append(
                    Overflow(
                        block_hash,
                        None,
                        self._tombstones[block_hash],
                        "its messages were dropped before its Batch came",
                    )
                )
            return None
        if block_hash[:8] in self._done_prefixes:
            return None
        block = OpenBlock(block_hash, self._records)
        self._open[block_hash] = block
        self._bytes += MESSAGE_OVERHEAD
        block.size = MESSAGE_OVERHEAD
        return block

    def _special(self, record: Record, events: list[ReassemblyEvent]) -> None:
        """A record that belongs to no block: ping, reorg, or no message at all."""
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

    def _reject(self, block: OpenBlock, record: Record, reason: str, events: list[ReassemblyEvent]) -> None:
        events.append(Rejected((record.topic, record.partition, record.offset), record.key, reason))
        self._forget_if_empty(block)

    def _forget_if_empty(self, block: OpenBlock) -> None:
        """A block that holds nothing must not pin positions."""
        if not block.messages and block.batch is None:
            self._open.pop(block.hash, None)
            self._bytes -= block.size

    # --- messages of a block ---------------------------------------------------------------------------------

    def _batch(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        position = (record.topic, record.partition, record.offset)
        if len(record.key) != HASH_END:
            return self._reject(block, record, "a Batch's key is its type and a hash, nothing more", events)
        try:
            fields = avro.read_batch(record.value)
        except DecodeError as error:
            return self._reject(block, record, error.reason, events)
        kept = block.batch
        if kept is not None and block.fields is not None:
            if fields != block.fields:
                kept_at = (kept.topic, kept.partition, kept.offset)
                events.append(Divergence(block.hash, record.key, kept.value, record.value, (kept_at, position)))
            return None
        negative = sorted(path for path, entry in fields.entries.items() if entry.count < 0)
        if negative:
            self._drop(block)
            self._remember(block.hash, fields.number, record.value, None)
            reason = f"its Batch counts {fields.entries[negative[0]].count} messages under {path_text(negative[0])!r}"
            events.append(Quarantined(block.hash, fields.number, reason))
            return None
        surplus = block.adopt(record, fields, self._tracked, self._is_prefix)
        events += [Surplus(block.hash, extra.key, extra[:3]) for extra in surplus]
        block.size += len(record.value)
        self._bytes += len(record.value)
        return None

    def _header(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        known = block.messages.get(record.key)
        if known is not None:
            return self._copy(block, known, record, events)
        try:
            count = avro.read_int(record.value)
        except DecodeError as error:
            return self._reject(block, record, error.reason, events)
        if len(record.key) != ID_END or count < 0:
            return self._reject(block, record, "a SubBatchHeader is a hash, an id and a count of 0 or more", events)
        block.messages[record.key] = record
        block.subs.setdefault(sub_batch_id(record.key), SubBatchState()).count = count
        self._grow(block, record)
        return None

    def _part(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        known = block.messages.get(record.key)
        if known is not None:
            return self._copy(block, known, record, events)
        try:
            index = sub_batch_index(record.key)
            if self._contents is Contents.VALUES:
                avro.read_content(record.value)
        except DecodeError as error:
            return self._reject(block, record, error.reason, events)
        sub = block.subs.setdefault(sub_batch_id(record.key), SubBatchState())
        if index in sub.parts:
            return self._copy(block, sub.parts[index], record, events)
        if sub.count is not None and index >= sub.count:
            events.append(Surplus(block.hash, record.key, (record.topic, record.partition, record.offset)))
            return None
        block.messages[record.key] = record
        sub.parts[index] = record
        self._grow(block, record)
        return None

    def _grow(self, block: OpenBlock, record: Record) -> None:
        size = len(record.value) + MESSAGE_OVERHEAD
        block.size += size
        self._bytes += size

    def _copy(self, block: OpenBlock, kept: Record, seen: Record, events: list[ReassemblyEvent]) -> None:
        """A second copy of a message before completion: the lower position counts, a difference is reported."""
        kept_at, seen_at = kept[:3], seen[:3]
        if seen_at == kept_at:
            return  # the same record, read again
        if kept.value != seen.value and not self._equal(kept, seen):
            events.append(Divergence(block.hash, kept.key, kept.value, seen.value, (kept_at, seen_at)))
        if seen_at < kept_at and self._usable(seen):
            block.messages[kept.key] = seen
            if kept.key[0] == SUB_BATCH_MSG:
                block.subs[sub_batch_id(kept.key)].parts[sub_batch_index(kept.key)] = seen
            elif kept.key[0] == SUB_BATCH_HEADER:
                block.subs[sub_batch_id(kept.key)].count = avro.read_int(seen.value)

    def _usable(self, record: Record) -> bool:
        """Whether a copy may take the place of the kept one: a value that does not decode may not."""
        try:
            if record.key[0] == SUB_BATCH_HEADER:
                return avro.read_int(record.value) >= 0
            if record.key[0] == SUB_BATCH_MSG and self._contents is Contents.VALUES:
                avro.read_content(record.value)
        except DecodeError:
            return False
        return True

    def _equal(self, kept: Record, seen: Record) -> bool:
        """Whether two different values say the same: maps have no order on the wire."""
        if kept.key[0] != SUB_BATCH_MSG or self._contents is Contents.DIGESTS:
            return False
        try:
            return avro.read_content(kept.value) == avro.read_content(seen.value)
        except DecodeError:
            return False

    # --- blocks as a whole -----------------------------------------------------------------------------------

    def _finish(self, block: OpenBlock, events: list[ReassemblyEvent]) -> None:
        self._drop(block)
        fields, batch = block.fields, block.batch
        if fields is None or batch is None:
            raise AssertionError(block.hash)
        payload: Header
        values: dict[bytes, bytes] | None = None
        if self._contents is Contents.VALUES:
            deletes, values = block.content(self._is_prefix)
            payload = Payload(
                fields.number,
                block.hash,
                fields.parent,
                fields.weight,
                PathMap(values),
                frozenset(map(path_text, deletes)),
            )
        else:
            marks = {path: entry.value for path, entry in fields.entries.items() if entry.value}
            payload = HeaderOnly(fields.number, block.hash, fields.parent, fields.weight, marks)
        self._remember(block.hash, fields.number, batch.value, values)
        sealed = any(name == SEALED_HEADER for name, _ in batch.headers)
        events.append(Completed(payload, block.first, block.ends(), batch.timestamp_ms, sealed))

    def _remember(self, block_hash: bytes, number: int, batch: bytes, values: dict[bytes, bytes] | None) -> None:
        self._done[block_hash] = _Done(number, batch, values)
        self._done_by_number.setdefault(number, []).append(block_hash)

    def _late(self, block_hash: bytes, record: Record, events: list[ReassemblyEvent]) -> None:
        """A copy after completion: only whether it differs is of interest, and only while values are held."""
        done = self._done[block_hash]
        if done.values is None:
            return
        kind, kept = record.key[0], None
        if kind == BATCH_MSG:
            kept = done.values.get(record.key[HASH_END:])
        elif kind == BATCH and done.batch != record.value:
            try:
                kept = None if avro.read_batch(record.value) == avro.read_batch(done.batch) else done.batch
            except DecodeError as error:
                events.append(Rejected(record[:3], record.key, error.reason))
        if kept is not None and kept != record.value:
            events.append(Divergence(block_hash, record.key, kept, record.value, (None, record[:3])))

    def _drop(self, block: OpenBlock) -> None:
        del self._open[block.hash]
        self._bytes -= block.size

    def _evict(self, events: list[ReassemblyEvent]) -> None:
        """Bring the open blocks below nine tenths of the bounds: headless ones first, then the lowest numbers."""
        bytes_goal, blocks_goal = self._max_bytes * 9 // 10, self._max_blocks * 9 // 10
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
            self._tombstones[block.hash] = dict(block.first)
            if len(self._tombstones) > _TOMBSTONES_MAX:
                del self._tombstones[next(iter(self._tombstones))]

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
        floor = head - self._threshold
        for block in [block for block in self._open.values() if block.fields and block.fields.number < floor]:
            expired = block.fields.number if block.fields else 0
            self._drop(block)
            self._remember(block.hash, expired, b"", None)
            events.append(Quarantined(block.hash, expired, f"still incomplete {self._threshold} blocks later"))
        for old in [known for known in self._done_by_number if known < floor]:
            for block_hash in self._done_by_number[old]:
                # The values go with the ordering window; the hash is recognised for as long again.
                self._done[block_hash].values = None
            if old < head - self._window:
                for block_hash in self._done_by_number.pop(old):
                    del self._done[block_hash]
        return events

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs."""
        lowest: dict[Partition, int] = {}
        for block in self._open.values():
            if block.fields is None and self._records - block.seen_at > self._headless_distance:
                continue
            for partition, offset in block.first.items():
                if offset < lowest.get(partition, offset + 1):
                    lowest[partition] = offset
        return lowest

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return list(self._open)

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the completed blocks that are still recognised."""
        return [(number, block_hash) for number, hashes in self._done_by_number.items() for block_hash in hashes]

    def ignore(self, prefixes: Iterable[bytes]) -> None:
        """Treat blocks whose hash begins with one of these 8 bytes as done (resuming: late copies of old blocks)."""
        self._done_prefixes = frozenset(prefixes)

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for; ``state`` is open, complete, dropped or unknown."""
        if (block := self._open.get(block_hash)) is not None:
            return block.explain()
        if (done := self._done.get(block_hash)) is not None:
            return Explanation(block_hash, done.number, "complete")
        if (positions := self._tombstones.get(block_hash)) is not None:
            return Explanation(block_hash, None, "dropped", positions=positions)
        return Explanation(block_hash, None, "unknown")


def _prefix_test(expressions: Iterable[str]) -> Callable[[bytes], bool]:
    source = "|".join(f"(?:{expression})" for expression in expressions)
    if not source:
        return lambda _path: False
    match = re.compile(source).match
    return lambda path: match(path_text(path)) is not None
