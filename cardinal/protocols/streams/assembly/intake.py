"""One message into its open block: decoded as far as it must be, counted, compared with the copy that is held.

The rules are those of :mod:`.reassembler`, which knows the blocks as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cardinal.errors import DecodeError
from cardinal.protocols.streams.events import Divergence, ReassemblyEvent, Rejected, Surplus
from cardinal.protocols.streams.types import Record, Row, path_text
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END, ID_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG

from .block import (
    DELETE_OVERHEAD,
    Candidate,
    Content,
    OpenBlock,
    SubBatchState,
    batch_size,
    message_size,
    sub_batch_id,
)
from .contents import Contents
from .counters import NO_RUN, RUN_MAX, Run, Taken, Tracked
from .divergence import Copies, held_content
from .window import OpenBlocks

_BATCHES_MAX: Final = 4


class Intake:
    """See the module.

    Arguments:
        blocks: the open blocks, which account for what a message costs.
        copies: how copies are compared.
        tracked: which entries are followed; None: all.
        is_prefix: whether the application counts under this path.
        contents: whether records carry values or digests.

    """

    def __init__(
        self,
        blocks: OpenBlocks,
        copies: Copies,
        tracked: Tracked | None,
        is_prefix: Callable[[bytes], bool],
        contents: Contents,
    ) -> None:
        self._open = blocks
        self._copies = copies
        self._tracked = tracked
        self._is_prefix = is_prefix
        self._contents = contents

    def run(self, block: OpenBlock, key: bytes) -> Run:
        """The messages that can be taken together with this one, which may be a copy; none where that takes a look."""
        if key[0] != BATCH_MSG or block.careful:
            return NO_RUN
        if block.counters is not None:
            return block.counters.run(key)
        return (key[:HASH_END], b"", RUN_MAX) if self._tracked is None else self._tracked.run(key)

    def take(self, block: OpenBlock, row: Row, events: list[ReassemblyEvent]) -> None:
        """Any message of an open block."""
        key = row[3]
        kind = key[0]
        known = None if kind == BATCH else block.messages.get(key)
        if known is None and kind >= BATCH_MSG:
            self._message(block, row, events)
            return
        record = Record._make(row)
        try:
            if kind == BATCH:
                self._batch(block, record, events)
            elif known is not None:
                self.copy(block, Record._make(known), record, events)
            elif kind == SUB_BATCH_HEADER:
                self._header(block, record, events)
            else:
                self._part(block, record, events)
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))

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
            self._open.numbered(block, fields.number)
            events += [Surplus(block.hash, key, block.messages[key][:3]) for key in beyond]
        self._open.grow(block, batch_size(record, fields) + DELETE_OVERHEAD * len(candidate.surplus))

    def _message(self, block: OpenBlock, row: Row, events: list[ReassemblyEvent]) -> None:
        key = row[3]
        if block.counters is None:
            if self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
                return
        elif not self.counts(block, row, events):
            return
        if key[0] != BATCH_MSG:
            block.mixed = True
        block.messages[key] = row
        self._open.grow(block, message_size(row))

    def _header(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        count = avro.read_int(record.value)
        if len(record.key) != ID_END or count < 0:
            raise DecodeError("a SubBatchHeader is a hash, an id and a count of 0 or more")
        if block.candidates and not self.counts(block, record, events):
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
        self._open.grow(block, message_size(record))

    def _part(self, block: OpenBlock, record: Record, events: list[ReassemblyEvent]) -> None:
        index = sub_batch_index(record.key)
        content = self._content(record)
        if block.candidates and not self.counts(block, record, events):
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

    def counts(self, block: OpenBlock, record: Row, events: list[ReassemblyEvent]) -> bool:
        """Count a message under every Batch of its block; whether it is to be held.

        Also what the first Batch does not count is held, where it can belong to an entry that is followed: another
        Batch may count it.
        """
        key = record[3]
        first, *others = block.candidates
        taken = first.take(key)
        if taken is not Taken.COUNTED:
            if key[0] >= BATCH_MSG:
                if self._tracked is not None and not self._tracked.may_belong(key[HASH_END:]):
                    return False
            elif taken is Taken.IGNORED:
                return False
            if taken is Taken.BEYOND:
                events.append(Surplus(block.hash, key, record[:3]))
            first.surplus.add(key)
            self._open.grow(block, DELETE_OVERHEAD)
        for candidate in others:
            if candidate.take(key) is not Taken.COUNTED:
                candidate.surplus.add(key)
        return True

    def copy(self, block: OpenBlock, kept: Record, seen: Record, events: list[ReassemblyEvent]) -> None:
        """A second copy of a message before completion: the lower position counts, a difference is reported."""
        if kept[:3] == seen[:3]:
            return  # the same record, read again
        if not self._copies.same(kept, seen, held_content(block, kept.key)):
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
            held = held_content(block, kept.key)
            content = self._content(seen)
            block.subs[sub_batch_id(kept.key)].add(sub_batch_index(kept.key), content)
            self._open.grow(block, message_size(seen, content) - message_size(kept, held))
        block.messages[kept.key] = seen
        if kept.key[0] >= BATCH_MSG:
            self._open.grow(block, len(seen.value) - len(kept.value))


def _place(record: Record) -> tuple[bool, str, int, int]:
    """What copies are ordered by: those from a topic first, then by position."""
    return record.partition < 0, record.topic, record.partition, record.offset
