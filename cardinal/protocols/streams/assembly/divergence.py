"""Divergence: copies of one message that differ.

Equal bytes are equal messages. Maps have no order on the wire and implementations write them differently, so Batches
and SubBatchMsgs are compared decoded. Values at volatile paths (such as the finality marks, which every producer's node
sees at another moment) are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from cardinal.errors import DecodeError
from cardinal.protocols.streams.events import Divergence, ReassemblyEvent, Rejected, Surplus
from cardinal.protocols.streams.types import Record, Row
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG

from .block import Content, OpenBlock, sub_batch_id
from .counters import CountResult, Tracked
from .window import RecentBlock


class Copies:
    """Comparison of copies; ``volatile`` paths may differ. ``decoded``: SubBatchMsgs can be decoded; digests cannot."""

    def __init__(self, volatile: Callable[[bytes], bool], *, decoded: bool) -> None:
        self._volatile = volatile
        self._decoded = decoded

    def same(self, kept: Record, seen: Record, held: Content) -> bool:
        """True when two messages with one key, not Batches, have the same meaning.

        DecodeError where ``seen`` is malformed. ``held``: the content of ``kept`` where it is a SubBatchMsg; it is not
        decoded again.
        """
        if kept.key[0] >= BATCH_MSG:
            return kept.value == seen.value or self._volatile(kept.key[HASH_END:])
        if kept.key[0] == SUB_BATCH_HEADER:
            return avro.read_int(kept.value) == avro.read_int(seen.value)
        if not self._decoded:
            return kept.value == seen.value
        deletes, updates = avro.read_content(seen.value)
        if len(deletes) != len(held[0]) or updates.keys() != held[1].keys():
            return False
        return sorted(deletes) == sorted(held[0]) and all(
            value == held[1][path] or self._volatile(path) for path, value in updates.items()
        )

    def same_batch(self, kept: avro.BatchFields, seen: avro.BatchFields) -> bool:
        """True when two Batches describe the same block."""
        if kept[:3] != seen[:3] or kept.entries.keys() != seen.entries.keys():
            return False
        return all(
            entry == (other := kept.entries[path]) or (entry[2:] == other[2:] and self._volatile(path))
            for path, entry in seen.entries.items()
        )

    def late(self, block: RecentBlock, row: Row, tracked: Tracked | None, events: list[ReassemblyEvent]) -> None:
        """Report a copy that came after completion and differs, while the block's messages are held."""
        if block.held is None or block.candidate is None:
            return
        key = row[3]
        kept = block.candidate.batch if key[0] == BATCH else block.held.messages.get(key)
        if kept is None:
            followed = key[0] < BATCH_MSG or tracked is None or tracked.may_belong(key[HASH_END:])
            if followed and block.candidate.take(key) is CountResult.BEYOND:
                events.append(Surplus(block.held.hash, key, row[:3]))
            return
        if kept[4] == row[4]:
            return
        kept, record = Record._make(kept), Record._make(row)
        try:
            if key[0] == BATCH:
                same = self.same_batch(block.candidate.fields, avro.read_batch(record.value))
            else:
                same = self.same(kept, record, held_content(block.held, key))
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))
            return
        if not same:
            events.append(divergence(kept, record))


def divergence(kept: Record, seen: Record) -> Divergence:
    """The report of two copies that differ."""
    return Divergence(kept.key[1:HASH_END], kept.key, kept.value, seen.value, (kept[:3], seen[:3]))


def held_content(block: OpenBlock, key: bytes) -> Content:
    """The decoded content of a held SubBatchMsg; nothing for other messages."""
    if key[0] != SUB_BATCH_MSG:
        return [], {}
    return block.subs[sub_batch_id(key)].parts[sub_batch_index(key)]
