"""A naive reference of policy ``quorum:k``: what each producer said, and what enough of them did.

Rules (:mod:`cardinal.protocols.streams.quorum.reassembler`):

1. Every producer of the list has copies of its own; they follow :mod:`.block_model` alone. Records of others,
   and of nobody, are nothing.
2. A block is complete, as one of them says it is, when k producers' complete copies have the same Batch and content.
   Nothing that comes later changes it.
3. What contradicts it has to be reported, of every producer that did not agree and whose copy is complete: each message
   that another value stands under in the copy that counts, but for what is surplus to its own Batch. Nothing has to
   where they agreed only when the chain was past the block, and nothing of whose own Batch puts the block where the
   chain was past it by then. A copy that never becomes complete is compared when the chain has passed it, which no
   schedule waits for.
4. A supplied message completes the copies of all producers that have begun the block, as long as too few agree on it.
5. A block lacks what any producer's copy that has begun lacks; its Batch, as long as fewer than k say where it lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import PRODUCER_HEADER, Position, Record
from cardinal.protocols.streams.wire.messages import Batch

from .block_model import BlockModel, Copy, Differing, Missing, Model, ModelRules, part_of_block
from .chain_model import ChainModel


class QuorumBlock(BlockModel):
    """What all producers said of one block."""

    def __init__(self, block_hash: bytes, rules: ModelRules, k: int) -> None:
        super().__init__(block_hash, rules)
        self._k = k
        self.copies: dict[str, BlockModel] = {}
        """Each producer's own."""
        self.agreed: frozenset[str] = frozenset()
        self.floor = -1
        """Below it the chain was past everything when they agreed."""

    def say(self, producer: str, key: bytes, copy: Copy) -> None:
        """One producer says one thing."""
        own = self.copies.setdefault(producer, BlockModel(self.hash, self._rules))
        was = own.payload
        own.take(key, copy)
        if self.payload is None and was is None and own.payload is not None:
            alike = [name for name, other in self.copies.items() if _same(own, other)]
            if len(alike) >= self._k:
                self.agreed, self.payload = frozenset(alike), own.payload

    @property
    def batch(self) -> Batch | None:
        """The Batch of which k say where it lies; None where fewer do."""
        said = [own.batch for own in self.copies.values() if own.batch is not None]
        places = Counter((batch.number, batch.parent, batch.weight) for batch in said)
        believed = (batch for batch in said if places[batch.number, batch.parent, batch.weight] >= self._k)
        return next(believed, None)

    @property
    def lowest(self) -> int | None:
        """The lowest number that anybody gives to it: where the chain is past that, nobody has to know more of it."""
        return min((own.batch.number for own in self.copies.values() if own.batch is not None), default=None)

    def missing(self) -> Missing:
        """What any copy waits for (rule 5)."""
        if self.payload is not None:
            return Missing(batch=False, counts={}, headers=(), parts={})
        waiting = [own.missing() for own in self.copies.values() if own.payload is None]
        counts: dict[str, int] = {}
        parts: dict[bytes, set[int]] = {}
        for lacks in waiting:
            for prefix, left in lacks.counts.items():
                counts[prefix] = max(left, counts.get(prefix, 0))
            for batch_id, indexes in lacks.parts.items():
                parts.setdefault(batch_id, set()).update(indexes)
        return Missing(
            batch=self.batch is None,
            counts=counts,
            headers=tuple(sorted({batch_id for lacks in waiting for batch_id in lacks.headers})),
            parts={batch_id: tuple(sorted(indexes)) for batch_id, indexes in parts.items()},
        )

    def contradictions(self) -> Iterator[tuple[bytes, Copy]]:
        """What the others say that is not what counts (rule 3); nothing as long as nothing counts."""
        if self.payload is None or self.payload.number <= self.floor:
            return
        counts = self.copies[min(self.agreed)]
        used = counts.keys()
        for name, own in self.copies.items():
            if name in self.agreed or own.payload is None or own.payload.number <= self.floor:
                continue
            said = own.keys()
            for key, copy in own.kept.items():
                if key in used and key in said and copy.message != counts.kept[key].message:
                    yield key, copy


class QuorumModel(Model):
    """A consumer that believes a quorum, naively. See the module.

    Arguments:
        rules, chain: see :class:`~.model.Model`.
        k: how many have to agree.
        producers: the ids of those that count.

    """

    def __init__(self, rules: ModelRules, chain: ChainModel, k: int, producers: tuple[str, ...]) -> None:
        super().__init__(rules, chain)
        self._k = k
        self._names = {name.encode(): name for name in producers}
        self._together: dict[bytes, QuorumBlock] = {}

    def receive(self, record: Record) -> bool:
        """Take one record; returns whether it completed a block."""
        message = part_of_block(record)
        if message is None:
            return False
        block = self._together.get(message.hash)
        speakers = self._speakers(record, block)
        if not speakers:
            return False
        if block is None:
            block = self.blocks[message.hash] = self._together[message.hash] = QuorumBlock(
                message.hash, self.rules, self._k
            )
        was = block.payload
        position = (record.topic, record.partition, record.offset)
        if (lowest := block.lowest) is not None and not self.chain.within_window(lowest):
            self._uncertain.add((record.key, position))
        for name in speakers:
            block.say(name, record.key, Copy(message, position, record.value))
        if was is None and block.payload is not None:
            block.floor = self.chain.floor
            self.chain.complete(block.payload)
            return True
        return False

    def supersede(self, block_hash: bytes, position: Position) -> None:
        """Nobody contradicts himself here."""
        raise ValueError(f"no producer said two things of {block_hash.hex()} at {position}")

    @property
    def differing(self) -> list[Differing]:
        """The copies that have to be reported: of messages that make up their block, read within the window."""
        return [
            Differing(block.hash, key, copy.value)
            for block in self._together.values()
            for key, copy in block.contradictions()
            if (key, copy.position) not in self._uncertain and copy.position[1] >= 0
        ]

    def _speakers(self, record: Record, block: QuorumBlock | None) -> list[str]:
        """Whose word a record is: its producer's, where that one counts; of what is supplied, of all who began."""
        if record.partition < 0:
            if block is None or block.payload is not None:
                return []
            return [name for name, own in block.copies.items() if own.payload is None]
        name = self._names.get(dict(record.headers).get(PRODUCER_HEADER, b""))
        return [] if name is None else [name]


def _same(one: BlockModel, other: BlockModel) -> bool:
    """Whether two producers' copies are complete and alike."""
    payload: Payload | None = other.payload
    return payload is not None and payload == one.payload and other.batch == one.batch


def model_of(rules: ModelRules, k: int | None = None, producers: tuple[str, ...] = ()) -> Model:
    """The model of a consumer; ``k`` is None where the first copy counts."""
    chain = ChainModel(rules.chain)
    return Model(rules, chain) if k is None else QuorumModel(rules, chain, k, producers)
