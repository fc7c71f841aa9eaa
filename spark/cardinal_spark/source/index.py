"""Records sorted to their blocks, and blocks to complete and incomplete ones. Pure: a working copy of a state's maps.

Whether a block is complete is a function of the set of its records, whatever the order in which they came: every
attempt feeds them to a fresh reassembler, sorted by position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly
from cardinal.protocols.streams.events import Completed, Event
from cardinal.protocols.streams.types import NO_ID, Partition, Record, short
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG

from .digested import kept_value, size_of
from .state import OpenBlock, PlanSettings, State, Whole


class Index:
    """Records sorted to their blocks: a working copy of a state's maps."""

    def __init__(self, settings: PlanSettings, state: State) -> None:
        self._settings = settings
        self.opened = dict(state.opened)
        self.blocks = dict(state.blocks)
        self.seen = {prefix: dict(last) for prefix, last in state.seen.items()}
        self._done = {block.prefix for block in state.offset.done}
        self._whole = {short(block_hash): block_hash for block_hash in self.blocks}
        self.events: list[Event] = []

    def add(self, records: Iterable[Record]) -> list[Whole]:
        """Take records; returns the blocks that they complete, in order of number and hash."""
        new: dict[bytes, list[Record]] = {}
        done, whole = self._done, self._whole
        late: dict[bytes, dict[Partition, int]] = {}
        last = name = b""
        for record in records:
            block_hash = record.key[1:HASH_END]
            if block_hash != last:
                last, name = block_hash, short(block_hash)
            if name in done:
                _note(self.seen.setdefault(name, {}), record)
            elif name in whole:
                _note(late.setdefault(whole[name], {}), record)
            else:
                new.setdefault(block_hash, []).append(record)
        for block_hash, seen in late.items():
            block = self.blocks[block_hash]
            higher = {where: max(offset, block.last.get(where, -1)) for where, offset in seen.items()}
            self.blocks[block_hash] = replace(block, last={**block.last, **higher})
        for block_hash, found in new.items():
            before = self.opened.get(block_hash)
            self.opened[block_hash] = self.open((*(before.records if before else ()), *found))
        return self._complete(sorted(new))

    def _complete(self, candidates: Iterable[bytes]) -> list[Whole]:
        reassembler = self._settings.reassembler(Contents.DIGESTS)
        found: list[Whole] = []
        for block_hash in candidates:
            opened = self.opened[block_hash]
            if opened.number is None or len(opened.records) < opened.need:
                continue
            for event in reassembler.receive(sorted(opened.records)):
                if isinstance(event, Completed):
                    found.append(self._whole_of(event, opened.records))
                    del self.opened[block_hash]
                    self.blocks[block_hash] = found[-1]
                    self._whole[short(block_hash)] = block_hash
                else:
                    self.events.append(event)
        return sorted(found, key=lambda block: block.height)

    def _whole_of(self, event: Completed, records: Iterable[Record]) -> Whole:
        header = event.payload
        if not isinstance(header, HeaderOnly):  # a reassembler of digests gives nothing else
            raise TypeError(header)
        ranges = {where: (event.positions[where], end) for where, end in sorted(event.ends.items())}
        last: dict[Partition, int] = {}
        first: dict[bytes, Record] = {}  # of several copies the one at the lowest position
        for record in sorted(records):
            _note(last, record)
            first.setdefault(record.key, record)
        marks = {
            path: kept_value(record)
            for key, record in first.items()
            if key[0] == BATCH_MSG and (path := key[HASH_END:]) in self._settings.keep
        }
        size = sum(map(size_of, first.values()))
        whole = replace(header, marks={**marks, **header.marks})
        return Whole(whole, ranges, event.published_ms, size, last)

    def open(self, records: tuple[Record, ...]) -> OpenBlock:
        """The open block that these records make."""
        lowest = _lowest(records)
        batches = [record for record in records if record.key[0] == BATCH]
        if not batches:
            return OpenBlock(records, lowest, None, 0)
        fields = avro.read_batch(min(batches).value)
        tracked = self._settings.tracked
        entries = [entry for entry in fields.entries.values() if tracked is None or tracked.entry(entry)]
        announced = {entry.sub_batch for entry in entries if entry.sub_batch != NO_ID}
        need = 1 + len(announced) + sum(entry.count for entry in entries)
        return OpenBlock(records, lowest, fields.number, need)


def _note(last: dict[Partition, int], record: Record) -> None:
    where = (record.topic, record.partition)
    if record.offset > last.get(where, -1):
        last[where] = record.offset


def _lowest(records: Iterable[Record]) -> dict[Partition, int]:
    lowest: dict[Partition, int] = {}
    for topic, partition, offset, *_ in records:
        if offset < lowest.get((topic, partition), offset + 1):
            lowest[topic, partition] = offset
    return lowest
