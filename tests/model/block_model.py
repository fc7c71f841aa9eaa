"""A naive reference of the streams core, written from its rules: slow, clear, and sharing no code with it.

    model = Model(ModelRules(prefixes=tuple(SCHEMA), reorg_threshold=16))
    for record in records: model.receive(record)
    model.complete            # hash to Payload
    model.differing           # copies that contradict the one that counts
    model.chain.heaviest()    # the blocks of which one has to be the head

What it says is worked out anew from all messages of a block at every record; nothing is counted down. Only the message
types and ``decode`` are the core's. The ordering half is :mod:`.chain_model`.

Rules (``schemas/SPEC.md``, section 6):

1. Of the copies of one (block, key) seen before completion the one at the lowest position counts, one from a topic
   before one that was supplied.
2. A key counts under the longest counted prefix of its block that it starts with; beyond the count it counts nowhere.
3. A block is complete when every tracked entry of its Batch has all of its messages.
4. One path through several kinds of message: the Batch's value before a BatchMsg's before a sub batch's, of those the
   highest index, of several sub batches the highest id.
5. What does not decode is no message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from cardinal.errors import DecodeError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import NO_ID, Position, Record
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)

from .chain_model import ChainModel, ChainRules


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What the model needs to know; see :class:`~cardinal.protocols.streams.FollowerSettings`."""

    tracked: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ()
    chain: ChainRules = field(default_factory=ChainRules)


class Missing(NamedTuple):
    """What a block waits for; the fields of :class:`~cardinal.protocols.streams.assembly.block.Explanation`."""

    batch: bool
    counts: Mapping[str, int]
    headers: tuple[bytes, ...]
    parts: Mapping[bytes, tuple[int, ...]]

    @property
    def nothing(self) -> bool:
        """Whether the block is complete."""
        return not (self.batch or self.counts or self.headers or self.parts)


class Copy(NamedTuple):
    """One copy of a message: what it says, where it lies (partition -1: supplied), its bytes."""

    message: Message
    position: Position
    value: bytes

    @property
    def place(self) -> tuple[bool, Position]:
        """What copies are ordered by."""
        return self.position[1] < 0, self.position


class Differing(NamedTuple):
    """A copy that contradicts the one that counts."""

    block: bytes
    key: bytes
    seen: bytes


class BlockModel:
    """All messages of one block, in the order read."""

    def __init__(self, block_hash: bytes, rules: ModelRules) -> None:
        self.hash = block_hash
        self.payload: Payload | None = None
        self.kept: dict[bytes, Copy] = {}
        """The copy that counts, by key, in the order in which the keys were first seen."""
        self.differing: list[tuple[bytes, Copy]] = []
        self._rules = rules
        self._instead: Message | None = None

    def take(self, key: bytes, copy: Copy) -> None:
        """One more copy."""
        kept = self.kept.get(key)
        if kept is not None and kept.message != copy.message:
            self.differing.append((key, copy))
        if self.payload is not None:
            return
        if kept is None or copy.place < kept.place:
            self.kept[key] = copy
            if self.missing().nothing:
                self.payload = self.assemble()

    def supersede(self, position: Position) -> None:
        """The Batch that lies there is delivered in the first one's place."""
        batches = (copy for _, copy in self.differing if isinstance(copy.message, Batch))
        self._instead = next(copy.message for copy in batches if copy.position == position)
        if self.missing().nothing:
            self.payload = self.assemble()

    @property
    def batch(self) -> Batch | None:
        """The Batch that counts."""
        if isinstance(self._instead, Batch):
            return self._instead
        return next((copy.message for copy in self.kept.values() if isinstance(copy.message, Batch)), None)

    @property
    def lowest(self) -> int | None:
        """The lowest number that a Batch gives to the block."""
        return None if self.batch is None else self.batch.number

    def entries(self) -> dict[str, Update]:
        """The entries of the Batch that are followed."""
        tracked, batch = self._rules.tracked, self.batch
        everything = dict(batch.updates) if batch else {}
        if tracked is None:
            return everything
        return {path: entry for path, entry in everything.items() if any(re.search(one, path) for one in tracked)}

    def counted(self) -> dict[str, list[Message]]:
        """For every counted prefix that is followed the messages that count under it."""
        batch = self.batch
        counts = {
            path: entry.count
            for path, entry in (batch.updates.items() if batch else ())
            if entry.count > 0 or (entry == Update() and self._is_prefix(path))
        }
        found: dict[str, list[Message]] = {prefix: [] for prefix in counts}
        for copy in self.kept.values():
            if isinstance(message := copy.message, BatchMsg | BatchDeleteMsg):
                under = [prefix for prefix in counts if message.path.startswith(prefix)]
                longest = max(under, key=len, default=None)
                if longest is not None and len(found[longest]) < counts[longest]:
                    found[longest].append(message)
        followed = self.entries()
        return {prefix: messages for prefix, messages in found.items() if prefix in followed}

    def parts(self, batch_id: bytes) -> tuple[int | None, dict[int, SubBatchMsg]]:
        """A sub batch: its header's count and the parts below it."""
        messages = [copy.message for copy in self.kept.values()]
        headers = [m for m in messages if isinstance(m, SubBatchHeader) and m.batch_id == batch_id]
        count = headers[0].count if headers else None
        parts = {m.index: m for m in messages if isinstance(m, SubBatchMsg) and m.batch_id == batch_id}
        return count, {index: parts[index] for index in sorted(parts) if count is None or index < count}

    def announced(self) -> list[bytes]:
        """The ids of the sub batches that are followed."""
        return sorted({entry.sub_batch for entry in self.entries().values()} - {NO_ID})

    def missing(self) -> Missing:
        """What the block waits for."""
        if self.batch is None:
            return Missing(batch=True, counts={}, headers=(), parts={})
        entries = self.entries()
        counts = {prefix: entries[prefix].count - len(there) for prefix, there in self.counted().items()}
        subs = {batch_id: self.parts(batch_id) for batch_id in self.announced()}
        return Missing(
            batch=False,
            counts={prefix: left for prefix, left in counts.items() if left},
            headers=tuple(batch_id for batch_id, (count, _) in subs.items() if count is None),
            parts={
                batch_id: absent
                for batch_id, (count, parts) in subs.items()
                if (absent := tuple(index for index in range(count or 0) if index not in parts))
            },
        )

    def assemble(self) -> Payload:
        """The block; nothing is missing."""
        batch = self.batch
        if batch is None:
            raise ValueError("a block without a Batch has no content")
        updates: dict[str, bytes] = {}
        deletes: set[str] = set()
        for batch_id in self.announced():
            for part in self.parts(batch_id)[1].values():
                updates |= part.updates
                deletes |= set(part.deletes)
        for message in (message for there in self.counted().values() for message in there):
            if isinstance(message, BatchMsg):
                updates[message.path] = message.value
            elif isinstance(message, BatchDeleteMsg):
                deletes.add(message.path)
        for path, entry in self.entries().items():
            if entry.delete:
                deletes.add(path)
            if entry.value or (entry == Update() and not self._is_prefix(path)):
                updates[path] = entry.value
        return Payload(batch.number, self.hash, batch.parent, batch.weight, updates, frozenset(deletes))

    def _is_prefix(self, path: str) -> bool:
        """Whether the application counts under this path: an entry there that says nothing is a count of 0."""
        return any(re.match(one, path) for one in self._rules.prefixes)

    def keys(self) -> set[bytes]:
        """The keys of the messages that make up the block, as far as they came."""
        there = {id(message) for messages in self.counted().values() for message in messages}
        announced = set(self.announced())
        return {
            key
            for key, copy in self.kept.items()
            if isinstance(copy.message, Batch)
            or id(copy.message) in there
            or (isinstance(copy.message, SubBatchHeader | SubBatchMsg) and copy.message.batch_id in announced)
        }


OfBlock: TypeAlias = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg


def part_of_block(record: Record) -> OfBlock | None:
    """The message of a block that a record holds; None where it is none (rule 5)."""
    try:
        message = decode(record.key, record.value)
    except DecodeError:
        return None
    return message if isinstance(message, OfBlock) else None


class Model:
    """A consumer, naively. See the module."""

    def __init__(self, rules: ModelRules, chain: ChainModel | None = None) -> None:
        self.rules = rules
        self.blocks: dict[bytes, BlockModel] = {}
        self.chain = chain or ChainModel(rules.chain)
        self._uncertain: set[tuple[bytes, Position]] = set()

    @property
    def complete(self) -> dict[bytes, Payload]:
        """The complete blocks."""
        return {block.hash: block.payload for block in self.blocks.values() if block.payload is not None}

    def receive(self, record: Record) -> bool:
        """Take one record; returns whether it completed a block."""
        message = part_of_block(record)
        if message is None:
            return False
        block = self.blocks.get(message.hash)
        if block is None:
            block = self.blocks[message.hash] = BlockModel(message.hash, self.rules)
        was = block.payload
        position = (record.topic, record.partition, record.offset)
        if (batch := block.batch) is not None and not self.chain.within_window(batch.number):
            self._uncertain.add((record.key, position))
        block.take(record.key, Copy(message, position, record.value))
        if was is None and block.payload is not None:
            self.chain.complete(block.payload)
            return True
        return False

    def supersede(self, block_hash: bytes, position: Position) -> None:
        """The core delivers another Batch of this block than the first; ValueError where that one is not complete."""
        block = self.blocks[block_hash]
        if block.payload is not None:
            raise ValueError("the block was complete as its first Batch says")
        block.supersede(position)
        if block.payload is None:
            raise ValueError("the Batch that was delivered instead is not complete")
        self.chain.complete(block.payload)

    @property
    def differing(self) -> list[Differing]:
        """The copies that have to be reported: of messages that make up their block, read within the window."""
        return [
            Differing(block.hash, key, copy.value)
            for block in self.blocks.values()
            if block.differing
            for used in [block.keys()]
            for key, copy in block.differing
            if key in used and (key, copy.position) not in self._uncertain and copy.position[1] >= 0
        ]
