"""Where the topics end: the chain that is complete on them, for a producer that starts.

The highest sealed Batch is not the answer: its producer handed it over after its parent's Batch, but to another
partition, and may have been killed in between. So the chain ends at the highest block from which *every* ancestor,
back to the start of what was looked at, is present and complete.

Rules:

1. A block is complete when its Batch is sealed: whoever sealed it had every other message acknowledged. A Batch
   without the seal comes from a producer that does not seal; its block counts when all its messages are found.
2. Only the tail of the default topic is read: so many records of every partition. The partitions' tails begin at
   different blocks, so the chain begins at the lowest block above which no Batch can be missing for that reason;
   where that one is not complete, more is read.
3. Nothing is written, and nothing is decided about the rest: blocks above the chain's end are sent again.
4. Half published is what is spoken of near the ends of the topics and is not complete: by a Batch without the rest, or
   by other messages without a Batch. "Near" is so many seconds before the newest Batch: what a producer that was
   killed had under way. Where others went on meanwhile, it is so many before the last Batch of the one that starts
   again, as far as that one is still in the tail.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cardinal.errors import DecodeError
from cardinal.producing.ranges import read_range
from cardinal.protocols.streams.codec import decode
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.keys import HASH_END
from cardinal.protocols.streams.messages import BATCH, BATCH_DELETE_MSG, Batch
from cardinal.protocols.streams.reassembler import Reassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, BlockRef, Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.producing.stream import Stream
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.base import Source

_TAIL: Final = 2_048
_MORE: Final = 4
_BEFORE_BATCH_MS: Final = 60_000
"""A producer sends a block's Batch right after the rest of the block; this is ample."""

_NEAR_MS: Final = 10_000
_NEAR_RECORDS: Final = 8_192


@dataclass(slots=True)
class _Tail:
    """What was found: Batches by hash, which of them are sealed, and the numbers per partition.

    ``left`` is when the producer that looks sent its last Batch, in the life before this one.
    """

    who: tuple[str, bytes] | None = None
    batches: dict[bytes, Batch] = field(default_factory=dict)
    complete: set[bytes] = field(default_factory=set)
    lowest: dict[Partition, int] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    left: int | None = None

    def add(self, record: Record) -> None:
        if record.key[:1] != bytes((BATCH,)):
            return
        try:
            batch = decode(record.key, record.value)
        except DecodeError:
            return  # no consumer can use it either
        if isinstance(batch, Batch):
            where = (record.topic, record.partition)
            self.batches[batch.hash] = batch
            self.lowest[where] = min(batch.number, self.lowest.get(where, batch.number))
            self.times.setdefault(batch.hash, record.timestamp_ms)
            if self.who in record.headers:
                self.left = max(record.timestamp_ms, self.left or 0)
            if any(name == SEALED_HEADER for name, _ in record.headers):
                self.complete.add(batch.hash)

    def unsealed_since(self) -> int | None:
        """When the first block without a seal got its Batch; None where all are sealed."""
        return min((time for block, time in self.times.items() if block not in self.complete), default=None)


@dataclass(frozen=True, slots=True)
class HalfPublished:
    """A block of which something is on the topics, and not all. Without its Batch its number is not known."""

    hash: bytes
    number: int | None
    messages: int


def place(one: HalfPublished) -> tuple[bool, int, bytes]:
    """Where it stands among others: the lowest first, those without a number last."""
    return one.number is None, one.number or 0, one.hash


@dataclass(frozen=True, slots=True)
class Survey:
    """What the topics' ends hold.

    Attributes:
        chain: the newest blocks that are complete, one chain, oldest first.
        batches: the Batches of these, and others, by hash.
        half: blocks that are half published, the lowest first, those without a number last.

    """

    chain: list[BlockRef]
    batches: Mapping[bytes, Batch]
    half: tuple[HalfPublished, ...]


def survey(source: Source, app: Stream, *, producer_id: str = "", tail: int = _TAIL) -> Survey:
    """Where the topics end, and what is half published there.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        tail: see :func:`published_chain`.
        producer_id: who starts again, and may have left something behind that others have gone on above.

    Raises:
        TransportError: the records do not arrive.

    """
    chain, found = _look(source, app, tail, (PRODUCER_HEADER, producer_id.encode()))
    newest = max(found.times.values(), default=None)
    near = newest if found.left is None else found.left
    spoken = {} if near is None else _spoken_of(source, app, near - _NEAR_MS, found)
    missing = [block for block in found.batches if block not in found.complete]
    half = [
        HalfPublished(block, found.batches[block].number if block in found.batches else None, spoken.get(block, 0))
        for block in {*missing, *(spoken.keys() - found.complete)}
    ]
    half.sort(key=place)
    return Survey(chain, found.batches, tuple(half))


def published_chain(source: Source, app: Stream, *, tail: int = _TAIL) -> list[BlockRef]:
    """The newest blocks that are complete on the topics, one chain, oldest first.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        tail: how many records of every partition to look at; more are looked at where these do not suffice.

    Raises:
        TransportError: the records do not arrive.

    """
    return _look(source, app, tail)[0]


def _look(source: Source, app: Stream, tail: int, who: tuple[str, bytes] | None = None) -> tuple[list[BlockRef], _Tail]:
    """The chain, and what was found on the way."""
    marks = source.watermarks()
    default = {where: ends for where, ends in marks.items() if where[0] == app.default_topic}
    ends = {where: high for where, (_, high) in marks.items()}
    while True:
        starts = {where: max(low, high - tail) for where, (low, high) in default.items()}
        found = _Tail(who)
        read_range(source, starts, ends, found.add)
        since = found.unsealed_since()
        if since is not None:
            found.complete |= _found_whole(source, app, {**_others(source, app, since), **starts}, ends)
        chain = complete_chain(found.batches.values(), found.complete, floor=_floor(found, starts))
        if chain or all(starts[where] == low for where, (low, _) in default.items()):
            return chain or _above_what_retention_took(found), found
        tail *= _MORE


def _spoken_of(source: Source, app: Stream, since_ms: int, found: _Tail) -> dict[bytes, int]:
    """How many messages there are, besides Batches, of each block that is spoken of since this time.

    A block whose Batch lies farther back than what was found so far is looked for on the way, and is no half one.
    """
    marks = source.watermarks()
    starts = {
        where: offset if where[0] == app.default_topic else max(offset, marks[where][1] - _NEAR_RECORDS)
        for where, offset in source.offsets_for_time(max(0, since_ms)).items()
    }
    spoken: dict[bytes, int] = defaultdict(int)

    def take(record: Record) -> None:
        if len(record.key) >= HASH_END and record.key[0] <= BATCH_DELETE_MSG:
            if record.key[0] == BATCH:
                found.add(record)
            else:
                spoken[record.key[1:HASH_END]] += 1

    read_range(source, starts, {where: high for where, (_, high) in marks.items()}, take)
    return spoken


def complete_blocks(source: Source, app: Stream, first: int, last: int) -> tuple[dict[bytes, Batch], set[bytes]]:
    """Every kept Batch on the topics, and which blocks of these heights are complete.

    Arguments:
        source: reads all topics of the application; it is assigned anew.
        app: the application.
        first: the lowest block number.
        last: the highest, included.

    Raises:
        TransportError: the records do not arrive.

    """
    marks = source.watermarks()
    ends = {where: high for where, (_, high) in marks.items()}
    found = _Tail()
    read_range(
        source, {where: low for where, (low, _) in marks.items() if where[0] == app.default_topic}, ends, found.add
    )
    wanted = {block for block, batch in found.batches.items() if first <= batch.number <= last}
    complete = found.complete & wanted
    times = [found.times[block] for block in wanted - complete]
    if times:
        starts = source.offsets_for_time(max(0, min(times) - _BEFORE_BATCH_MS))
        complete |= _found_whole(source, app, starts, ends) & wanted
    return found.batches, complete


def _others(source: Source, app: Stream, since_ms: int) -> dict[Partition, int]:
    """Where to begin in the other topics to find all of a block whose Batch has this time."""
    found = source.offsets_for_time(max(0, since_ms - _BEFORE_BATCH_MS))
    return {where: offset for where, offset in found.items() if where[0] != app.default_topic}


def _found_whole(
    source: Source, app: Stream, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> set[bytes]:
    """Hashes of the blocks all of whose messages lie between these offsets."""
    reassembler = Reassembler(tuple(app.topics) or None, prefixes=tuple(app.topics))
    whole: set[bytes] = set()

    def take(record: Record) -> None:
        whole.update(event.payload.hash for event in reassembler.receive((record,)) if isinstance(event, Completed))

    read_range(source, starts, ends, take)
    return whole


def _floor(found: _Tail, starts: Mapping[Partition, int]) -> int:
    """The lowest block that no partition can lack because its tail begins later."""
    # A partition that was read from its very first record lacks nothing.
    cut = [found.lowest[where] for where, start in starts.items() if start > 0 and where in found.lowest]
    return max(cut, default=0)


def _above_what_retention_took(found: _Tail) -> list[BlockRef]:
    """Everything that is kept was read and the lowest blocks are not whole: begin at the lowest that is."""
    whole = [found.batches[block_hash].number for block_hash in found.complete]
    return complete_chain(found.batches.values(), found.complete, floor=min(whole, default=0)) if whole else []


def complete_chain(batches: Iterable[Batch], complete: set[bytes], *, floor: int) -> list[BlockRef]:
    """The chain to the highest complete block all of whose ancestors, down to ``floor`` or the lowest, are complete.

    Of several highest ones the heaviest is taken, then the one with the lowest hash.

    Arguments:
        batches: what was found.
        complete: hashes of the blocks that are complete.
        floor: the number of the lowest block whose absence would mean something.

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
    head = min(linked, key=lambda batch: (-batch.number, -batch.weight, batch.hash))
    chain = [BlockRef(head.number, head.hash)]
    while (parent := known.get(head.parent)) is not None and parent.number < head.number:
        head = parent
        chain.append(BlockRef(head.number, head.hash))
    return chain[::-1]
