"""Blocks on which too few producers agree so far.

Rules:

1. A block is undecided from the first of its messages that anybody holds until k producers agree, until it is given
   up, or until nothing of it is held.
2. A complete copy waits for others as a :class:`~.standings.Standing`; of too many the lowest numbers go first, and
   where their messages lie is remembered, so that they can be read again.
3. The chain passes over a block when no producer has it open and all who completed it put it below the threshold. What
   came when the chain was past it is :class:`~.events.Stale`, told of each producer's copy alone: it was never waited
   for. Nor was what a restart read again of a block that was done with before. A block of which anything came in time
   is :class:`~.events.Quarantined`.
4. What its Batch says of such a block is believed where k producers say the same, and only then is it finished with.
   Where fewer do, their copies are forgotten, and what others send of it later counts: one that is first and lies
   about a number must not keep a block from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.assembly.contents import HeaderOnly
from cardinal.protocols.streams.assembly.finished import FinishedBlock, FinishedBlocks
from cardinal.protocols.streams.assembly.tombstones import TOMBSTONES_MAX
from cardinal.protocols.streams.events import Incomplete, Overflow, Quarantined, ReassemblyEvent, Stale
from cardinal.protocols.streams.following.floors import FadingPins
from cardinal.protocols.streams.types import BlockRef, Partition, short

from .accounts import told_of_open
from .deadlines import Deadlines
from .standings import Standing, all_below, lowest
from .voters import Voter

PAST: Final = "came when the chain was past it"


class PassedOver(NamedTuple):
    """A block that the chain is past; ``header`` is what enough producers' Batches say of it, if they do."""

    block: bytes
    header: HeaderOnly | None
    told: list[Stale | Quarantined]


class Undecided:
    """See the module.

    Arguments:
        k: how many producers have to agree.
        voters: what each of them supplied.
        deadlines: where to say what is awaited.
        threshold: blocks below the head. What became of blocks is known for twice as many.
        distance: records after which what was dropped pins no positions any more.

    """

    def __init__(self, k: int, voters: Sequence[Voter], deadlines: Deadlines, threshold: int, distance: int) -> None:
        self._k = k
        self._voters = voters
        self._deadlines = deadlines
        self._threshold = threshold
        self._names = [voter.name for voter in voters]
        self._seen = 0
        self._blocks: dict[bytes, int] = {}
        """When each was first seen: what tells it from a later one of the same hash."""
        self._timely: set[bytes] = set()
        """Those of which a part came in time and was given up."""
        self._old: set[bytes] = set()
        """Those of which a part was read again after a restart."""
        self._gone = FinishedBlocks(2 * threshold, 0)
        """Those that were passed over and forgotten: only what to tell of them."""
        self._dropped: dict[bytes, dict[Partition, int]] = {}
        """Where the messages of standings lie that were dropped."""
        self._pins = FadingPins(distance)
        """Where they lie of undecided blocks, read again or not."""
        self.positions = self._pins.lowest
        """Where what was dropped begins in every partition, so many records after the first of all."""
        self.seen_at = self._blocks.get
        """When this block was first seen; None where it is not undecided."""

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block is one of them."""
        return block_hash in self._blocks

    def __iter__(self) -> Iterator[bytes]:
        """Their hashes, oldest first."""
        return iter(self._blocks)

    @property
    def dropped(self) -> Collection[bytes]:
        """Those of which a complete copy was dropped, oldest first."""
        return self._dropped.keys()

    # --- coming in -------------------------------------------------------------------------------------------

    def know(self, index: int, block_hash: bytes) -> None:
        """Note a block of which this producer may hold messages."""
        if block_hash not in self._blocks and self._voters[index].open(block_hash) is not None:
            self.begin(block_hash)

    def begin(self, block_hash: bytes) -> int:
        """Wait for a block, if nobody does; returns what tells it from a later one of the same hash."""
        seen_at = self._blocks.get(block_hash)
        if seen_at is None:
            self._seen = seen_at = self._seen + 1
            self._blocks[block_hash] = seen_at
            self._gone.forget(block_hash)
            self._deadlines.expect(block_hash, seen_at)
        return seen_at

    def wait(self, index: int, block_hash: bytes, own: Standing, events: list[ReassemblyEvent]) -> list[bytes]:
        """Hold a complete copy until others agree; returns the blocks of which this producer's had to go."""
        if (places := self._dropped.get(block_hash)) is not None:
            reason = "what another producer supplied was dropped before others supplied theirs"
            events.append(Incomplete(Explanation(block_hash, None, "dropped", positions=places, reason=reason)))
        name = self._names[index]
        gone = self._voters[index].standings.add(block_hash, own)
        for other, said in gone:
            if said.late:
                events.append(Stale(BlockRef(said.number, other), PAST, name))
                continue
            reason = f"complete blocks that wait for others are over their bound, of producer {name!r}"
            events.append(Overflow(other, said.number, dict(said.positions), reason))
            self._dropped[other] = lowest(said.positions, self._dropped.get(other, {}))
            self._pins.put(other, self._dropped[other], said.number)
            if len(self._dropped) > TOMBSTONES_MAX:
                del self._dropped[next(iter(self._dropped))]
        return [other for other, _ in gone]

    # --- going out -------------------------------------------------------------------------------------------

    def lost(self, block_hash: bytes) -> None:
        """A producer's copy was dropped, of a block that may be one of these."""
        if block_hash in self._blocks:
            if self.standings(block_hash) or self._anybody_assembles(block_hash):
                # Once more: whoever hears of the loss forgets the block.
                self._deadlines.expect(block_hash, self._blocks[block_hash])
            else:
                self._forget(block_hash)

    def given_up(self, index: int, block_hash: bytes, event: Stale | Quarantined) -> list[ReassemblyEvent]:
        """A producer's copy lies below the threshold and will not become complete."""
        if isinstance(event, Stale):
            return [Stale(event.block, event.reason, self._names[index])]
        if event.block in self._old and event.number is not None:
            return [Stale(BlockRef(event.number, event.block), PAST, self._names[index])]
        if block_hash in self._blocks:
            self._timely.add(block_hash)
        return []

    def release(self, block_hash: bytes) -> None:
        """A block is decided."""
        self._forget(block_hash)
        for voter in self._voters:
            voter.standings.discard(block_hash)
            voter.assembler.needless(block_hash)
        self._dropped.pop(block_hash, None)
        self._pins.discard(block_hash)

    def _forget(self, block_hash: bytes) -> None:
        del self._blocks[block_hash]
        self._timely.discard(block_hash)
        self._old.discard(block_hash)

    def resumed(self, until: Mapping[Partition, int], waited: Collection[bytes]) -> frozenset[bytes]:
        """What was delivered before is read again: see :class:`~.assembler.Assembler`."""
        unnamed = (block_hash for block_hash in self._blocks if short(block_hash) not in waited)
        self._old = {block_hash for block_hash in unnamed if all_below(self.places(block_hash), until)}
        return frozenset(self._old)

    def passed_over(self, floor: int) -> list[PassedOver]:
        """The chain is past blocks below ``floor``: those that it passes over (rules 3 and 4)."""
        found = []
        self._pins.passed(floor)
        for block_hash in list(self._blocks):
            standings = self.standings(block_hash)
            if all(own.number < floor for own in standings.values()) and not self._anybody_assembles(block_hash):
                found.append(self._pass_over(block_hash, standings))
        self._gone.head_moved(floor + self._threshold)
        return found

    def _pass_over(self, block_hash: bytes, standings: Mapping[int, Standing]) -> PassedOver:
        header = self.header(block_hash)
        why = f"{self._told(block_hash).reason}, {self._threshold} blocks later"
        old = block_hash in self._old
        timely = not old and (block_hash in self._timely or not all(own.late for own in standings.values()))
        self.release(block_hash)
        told: list[Stale | Quarantined] = []
        if header is None:
            late = {index: own.number for index, own in standings.items() if own.late or old}
            told += [Stale(BlockRef(number, block_hash), PAST, self._names[index]) for index, number in late.items()]
            self._gone.add(
                block_hash, FinishedBlock(max((own.number for own in standings.values()), default=0), reason=why)
            )
        elif not timely:
            told.append(Stale(BlockRef(header.number, block_hash), PAST))
        if timely:
            told.append(Quarantined(block_hash, None if header is None else header.number, why, header))
        return PassedOver(block_hash, header, told)

    # --- what is known of them -------------------------------------------------------------------------------

    def standings(self, block_hash: bytes) -> dict[int, Standing]:
        """The complete copies of a block, by producer."""
        held = ((index, voter.standings.get(block_hash)) for index, voter in enumerate(self._voters))
        return {index: said for index, said in held if said is not None}

    def _anybody_assembles(self, block_hash: bytes) -> bool:
        return any(voter.open(block_hash) is not None for voter in self._voters)

    def is_late(self, block_hash: bytes) -> bool:
        """Whether everything that is held of a block came when the chain was past it: nobody waits for that."""
        copies = [copy for voter in self._voters if (copy := voter.open(block_hash)) is not None]
        return all(copy.late for copy in copies) and all(own.late for own in self.standings(block_hash).values())

    def places(self, block_hash: bytes) -> dict[Partition, int]:
        """For every partition the lowest offset of a message of this block that was seen, of any producer's."""
        return lowest(self._dropped.get(block_hash, {}), *(voter.places(block_hash) for voter in self._voters))

    def lift(self, block_hash: bytes) -> Mapping[Partition, int]:
        """Forget that complete copies of a block were dropped, or passed over; returns where their messages lie."""
        self._gone.forget(block_hash)
        return self._dropped.pop(block_hash, {})

    def header(self, block_hash: bytes) -> HeaderOnly | None:
        """What k producers' Batches say of a block; None where fewer say the same."""
        for (number, parent, weight), producers in self._batches(block_hash).items():
            if producers >= self._k:
                return HeaderOnly(number, block_hash, parent, weight, {})
        return None

    def _batches(self, block_hash: bytes) -> Counter[tuple[int, bytes, int]]:
        """Number, parent and weight, and how many producers' Batches say so."""
        said = Counter((own.number, own.parent, own.weight) for own in self.standings(block_hash).values())
        for voter in self._voters:
            block = voter.open(block_hash)
            if block is not None and block.fields is not None:
                said[block.fields.number, block.fields.parent, block.fields.weight] += 1
        return said

    def number_of(self, block_hash: bytes) -> int | None:
        """The lowest number that any producer's Batch gives to a block; None without a Batch."""
        return min((number for number, _, _ in self._batches(block_hash)), default=None)

    @property
    def lowest(self) -> int | None:
        """The lowest number that a Batch gives to any of them; None without one."""
        numbers = map(self.number_of, self._blocks)
        return min((number for number in numbers if number is not None), default=None)

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, or waited for until it was passed over, or where its messages lie."""
        if block_hash in self._blocks:
            return self._told(block_hash)
        if (gone := self._gone.get(block_hash)) is not None:
            return Explanation(block_hash, None, "quarantined", reason=gone.reason)
        copies = [voter.assembler.explain(block_hash) for voter in self._voters]
        if copies[0].state == "done":  # every copy was told the same
            return copies[0]
        places = lowest(self._dropped.get(block_hash, {}), *(copy.positions for copy in copies))
        return Explanation(block_hash, None, "dropped" if places else "unknown", positions=places)

    def _told(self, block_hash: bytes) -> Explanation:
        copies = [voter.assembler.explain(block_hash) for voter in self._voters]
        return told_of_open(self._names, self._k, self.standings(block_hash), copies, self.header(block_hash))
