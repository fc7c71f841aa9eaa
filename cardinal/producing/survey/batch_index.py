"""Index of the Batches that a scan of the topics saw, and the chain that they make.

Rules:

1. A partition's tail begins at the lowest number among its Batches. One more than ``late`` blocks below the highest
   before it in its partition does not count there: it was sent again late, by a producer that is far behind.
   Nor does one of a repair, recognized by its producer's name (:func:`repairing`); of these the newest are held, since
   a repair may be as long as the stream.
2. The chain begins at the lowest block that no partition can lack because its tail begins later.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import DecodeError
from cardinal.protocols.streams.types import PRODUCER_HEADER, BlockRef, Partition, is_sealed
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG, REORG, Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams.types import Record

_REPAIR: Final = "-repair"
_REPAIR_BYTES: Final = _REPAIR.encode()
_REPAIRED_MAX: Final = 16_384
_BATCH: Final = bytes((BATCH,))
_REORG: Final = bytes((REORG,))
_LAST_CONTENT: Final = bytes((BATCH_DELETE_MSG,))


class BatchCopy(NamedTuple):
    """A Batch, and the time of one of its copies in milliseconds."""

    batch: Batch
    at_ms: int


@dataclass(slots=True)
class BatchIndex:
    """Result of a scan: Batches by hash, the complete blocks among them, and what else was seen.

    Attributes:
        late: distance in blocks below those before it from which a Batch is late.
        who: the header of the producer that starts; ``left`` is the time of its last Batch, in the life before.
        complete: hashes of the blocks that are complete: sealed, or counted by :mod:`.completeness`.
        lowest, highest: numbers by partition.
        times: the times of the first and the last copy of each Batch.
        repaired: blocks that only a repair has sent as far as was read, the newest last.
        reorgs: ancestors of the channels that were announced, the newest last.
        mentioned: by block, how many of its other messages were seen.
        newest: the time of the newest record of any kind.

    """

    late: int = 0
    who: tuple[str, bytes] | None = None
    batches: dict[bytes, Batch] = field(default_factory=dict)
    complete: set[bytes] = field(default_factory=set)
    lowest: dict[Partition, int] = field(default_factory=dict)
    highest: dict[Partition, int] = field(default_factory=dict)
    times: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    repaired: dict[bytes, None] = field(default_factory=dict)
    reorgs: dict[bytes, None] = field(default_factory=dict)
    mentioned: dict[bytes, int] = field(default_factory=dict)
    left: int | None = None
    newest: int | None = None

    def add(self, record: Record) -> None:
        """Take any record in."""
        self.newest = max(record.timestamp_ms, self.newest or 0)
        kind = record.key[:1]
        if len(record.key) < HASH_END:
            return
        if kind == _REORG and len(record.key) == HASH_END:
            self.reorgs.pop(record.key[1:], None)
            self.reorgs[record.key[1:]] = None
        elif kind == _BATCH:
            if (batch := batch_of(record)) is not None:
                self.add_batch(record, batch)
        elif kind <= _LAST_CONTENT:
            block_hash = record.key[1:HASH_END]
            self.mentioned[block_hash] = self.mentioned.get(block_hash, 0) + 1

    def add_batch(self, record: Record, batch: Batch) -> None:
        """Take a Batch of the default topic in."""
        if not _is_of_repair(record):
            self._track_height((record.topic, record.partition), batch.number)
            self.repaired.pop(batch.hash, None)
        elif batch.hash not in self.batches:
            self._keep_repaired(batch.hash)
        first, _ = self.times.get(batch.hash, (record.timestamp_ms, 0))
        self.times[batch.hash] = first, record.timestamp_ms
        self._note(record, batch)
        if is_sealed(record.headers):
            self.complete.add(batch.hash)

    def add_branch(self, record: Record, batch: Batch) -> None:
        """Take a Batch of a complete block of a reorg's channel in: no tail begins with one of these."""
        self._note(record, batch)
        self.complete.add(batch.hash)

    def _track_height(self, where: Partition, number: int) -> None:
        self.highest[where] = max(number, self.highest.get(where, number))
        if number >= self.highest[where] - self.late:
            self.lowest[where] = min(number, self.lowest.get(where, number))

    def _keep_repaired(self, block: bytes) -> None:
        self.repaired[block] = None
        if len(self.repaired) > _REPAIRED_MAX:
            oldest = next(iter(self.repaired))
            del self.repaired[oldest], self.batches[oldest], self.times[oldest]
            self.complete.discard(oldest)

    def _note(self, record: Record, batch: Batch) -> None:
        self.batches[batch.hash] = batch
        if self.who in record.headers:
            self.left = max(record.timestamp_ms, self.left or 0)

    def copies(self, *, sealed: bool = False) -> list[BatchCopy]:
        """The first and the last copy of every Batch of a block that is not complete; ``sealed``: of every block."""
        return [
            BatchCopy(self.batches[block_hash], at_ms)
            for block_hash, times in self.times.items()
            if sealed or block_hash not in self.complete
            for at_ms in sorted(set(times))
        ]

    def chain(self, starts: Mapping[Partition, int]) -> list[BlockRef]:
        """The newest complete blocks, one chain, oldest first; each partition was read from its start."""
        return complete_chain(self.batches.values(), self.complete, floor=self._floor(starts))

    def chain_above_retention(self) -> list[BlockRef]:
        """The same from the lowest complete block on: everything retained was read, and what is below is incomplete."""
        whole = [self.batches[block_hash].number for block_hash in self.complete]
        return complete_chain(self.batches.values(), self.complete, floor=min(whole, default=0)) if whole else []

    def ends_far_below(self, chain: list[BlockRef]) -> bool:
        """True if complete Batches are so far above the chain that it may begin with a late one."""
        top = max((self.batches[block_hash].number for block_hash in self.complete), default=0)
        return not chain or chain[-1].number < top - self.late

    def _floor(self, starts: Mapping[Partition, int]) -> int:
        # A partition that was read from its very first record lacks nothing.
        cut = [self.lowest[where] for where, start in starts.items() if start > 0 and where in self.lowest]
        return max(cut, default=0)


def batch_of(record: Record) -> Batch | None:
    """The Batch of a record; None where it holds another message, or one that no consumer can use."""
    if record.key[:1] != _BATCH:
        return None
    try:
        message = decode(record.key, record.value)
    except DecodeError:
        return None
    return message if isinstance(message, Batch) else None


def repairing(producer_id: str) -> str:
    """The name under which blocks are sent again long after their time."""
    return producer_id if is_repairing(producer_id) else producer_id + _REPAIR


def is_repairing(producer_id: str) -> bool:
    """Such a name: starts read past what was sent under it, so that no producer may have it."""
    return producer_id.endswith(_REPAIR)


def _is_of_repair(record: Record) -> bool:
    return any(name == PRODUCER_HEADER and value.endswith(_REPAIR_BYTES) for name, value in record.headers)


def complete_chain(batches: Iterable[Batch], complete: set[bytes], *, floor: int) -> list[BlockRef]:
    """The chain to the best complete block all of whose ancestors, down to ``floor`` or the lowest, are complete.

    Of several ends the heaviest is taken, as consumers do, then the highest, then the one with the lowest hash.
    ``floor``: the number of the lowest block whose absence would mean something.
    """
    known = {batch.hash: batch for batch in batches if batch.number >= floor}
    if not known:
        return []
    bottom = min(batch.number for batch in known.values())
    children: dict[bytes, list[Batch]] = defaultdict(list)
    for batch in known.values():
        children[batch.parent].append(batch)
    linked = [batch for batch in known.values() if batch.number == bottom and batch.hash in complete]
    for batch in linked:  # grows while it is walked
        linked += [child for child in children[batch.hash] if child.hash in complete and child.number > batch.number]
    if not linked:
        return []
    head = min(linked, key=lambda batch: (-batch.weight, -batch.number, batch.hash))
    chain = [BlockRef(head.number, head.hash)]
    while (parent := known.get(head.parent)) is not None and parent.number < head.number:
        head = parent
        chain.append(BlockRef(head.number, head.hash))
    return chain[::-1]
