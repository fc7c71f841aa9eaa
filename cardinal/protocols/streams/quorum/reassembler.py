"""Policy ``quorum:k``: a block counts when k producers of an allow-list each supplied the same one.

It joins what each producer supplied (:mod:`.voters`), the blocks on which too few agree so far (:mod:`.undecided`) and
those on which enough did (:mod:`.agreed`). Whose record a record is says :mod:`.attribution`.

Rules:

1. A block is delivered when k producers agree on it (:mod:`.digest`), once, with the positions of all that was seen
   of it. What any other producer supplied, or supplies later, is compared with it.
2. Records of producers that are not in the list do not count. Pings and announcements of reorg channels belong to no
   block: they are events whoever sent them.
3. The deadline of a block is counted in blocks that any producer completed on a known parent, in time, since its first
   message. An overdue block is reported once, with who agrees and what the others lack, after a Divergence for
   everything that producers disagree on. What came when the chain was past it is not waited for.
4. What its Batch says of a block that is not delivered (its number here, its parent in a Quarantined) is told only
   where k producers say the same; a Stale tells it of one producer's copy, and whose. So nobody is led on by one
   producer's lie.
5. Messages that are supplied complete the copies of producers that sent a Batch of their own, where these copies lack
   them. A Batch cannot be supplied: a block of which fewer than k producers supplied theirs is never delivered.
6. The bounds are divided among the producers. Each can use up its own share alone.
7. Nothing depends on the clock or on how records are cut into calls, and nothing that a record can hold raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, cast

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.assembly.contents import Contents
from cardinal.protocols.streams.assembly.finished import FinishedBlock
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Completed, Incomplete, Overflow, Quarantined, ReassemblyEvent, Stale
from cardinal.protocols.streams.types import Partition, Record, Routed, Row
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG

from .accounts import Copy
from .agreed import Agreed, Outcome
from .attribution import Attribution
from .deadlines import Deadlines, Due
from .digest import Volatile, standing
from .policy import check_quorum, parse_policy
from .runs import NOBODY, runs
from .standings import joined, lowest
from .undecided import Undecided
from .voters import voters_of

__all__ = ["QuorumReassembler", "parse_policy"]

_BOUNDS: Final = Bounds()
_SUPPLIED: Final = -1


class QuorumReassembler:
    """Blocks under assembly. It is an :class:`~.assembler.Assembler`, as a Reassembler is.

    Arguments:
        k: how many producers have to agree.
        producers: the ids of those that count.

    The others are the Reassembler's.

    Raises:
        ConfigurationError: ``k`` or ``producers`` cannot work together, or what the Reassembler raises.

    """

    def __init__(
        self,
        k: int,
        producers: Sequence[str],
        tracked: Sequence[str] | None = None,
        reorg_threshold: int = 128,
        *,
        prefixes: Iterable[str] = (),
        volatile: Iterable[str] = (),
        inline: bool = False,
        contents: Contents = Contents.VALUES,
        deadline: int | None = None,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        check_quorum(k, producers)
        prefixes, volatile = tuple(prefixes), tuple(volatile)
        make = partial(
            Reassembler,
            tracked,
            reorg_threshold,
            prefixes=prefixes,
            volatile=volatile,
            inline=inline,
            contents=contents,
            deadline=deadline,
        )
        self._voters = voters_of(producers, lambda own: make(bounds=own), bounds)
        self._k = k
        self._names = tuple(producers)
        self._attribution = Attribution(producers)
        self._volatile = Volatile(volatile)
        self._threshold = reorg_threshold
        self._deadlines = Deadlines(max(1, reorg_threshold // 4) if deadline is None else deadline, self._awaits)
        self._undecided = Undecided(k, self._voters, self._deadlines, reorg_threshold, bounds.headless_distance)
        self._agreed = Agreed(self._voters, self._deadlines, 2 * reorg_threshold)
        self._past = 0
        """The chain is past blocks with a lower number."""
        self._trimmed = -1
        self._records = 0

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(self, records: Iterable[Row]) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order."""
        events: list[ReassemblyEvent] = []
        for index, run in runs(records, self._attribution, self._room, events):
            self._records += len(run)
            if index == NOBODY:
                events += self._voters[0].assembler.receive(run)
                continue
            block_hash = run[0][3][1:HASH_END]
            outcome = self._agreed.get(block_hash)
            if outcome is None:
                found = self._voters[index].assembler.receive(run)
                self._undecided.know(index, block_hash)
                self._take(index, found, events)
                continue
            for differs, own in self._agreed.late(index, run, outcome, past=self._past):
                events += differs
                self._take(index, own, events)
        return events

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had: they complete what producers began (rule 5)."""
        events: list[ReassemblyEvent] = []
        for topic, key, value in messages:
            if len(key) < HASH_END or not BATCH < key[0] <= BATCH_DELETE_MSG:
                continue
            record = Record(topic, _SUPPLIED, _SUPPLIED, key, value)
            block_hash = key[1:HASH_END]
            for index, voter in enumerate(self._voters):
                if block_hash in self._undecided and voter.open(block_hash) is not None:
                    self._take(index, voter.assembler.receive([record]), events)
        return events

    def _room(self, index: int, block_hash: bytes) -> int:
        """How many values of a block can be taken together; 0: one by one, below 0: any number."""
        known = block_hash in self._undecided or block_hash in self._agreed
        return self._voters[index].room(block_hash) if known else 0

    # --- what one producer's copies give -----------------------------------------------------------------------

    def _take(self, index: int, found: Iterable[ReassemblyEvent], events: list[ReassemblyEvent]) -> None:
        for event in found:
            if isinstance(event, Completed):
                self._complete(index, event, events)
            elif isinstance(event, Incomplete):
                # That one copy is overdue says nothing; one that was dropped is of use for a block that is undecided.
                if event.explanation.state == "dropped" and event.explanation.block not in self._agreed:
                    events.append(event)
            elif isinstance(event, Overflow):
                events.append(replace(event, reason=f"{event.reason}, of producer {self._names[index]!r}"))
                self._lost(index, event.block)
            else:
                events.append(event)

    def _complete(self, index: int, event: Completed, events: list[ReassemblyEvent]) -> None:
        block = event.payload
        finished = cast("FinishedBlock", self._voters[index].held(block.hash))
        own = standing(event, finished, self._volatile, past=self._past)
        outcome = self._agreed.get(block.hash)
        if outcome is not None:
            events += self._agreed.completed(index, block.hash, outcome, own)
            return
        before = self._undecided.standings(block.hash)
        agreed = [other for other, said in before.items() if said.digest == own.digest and other != index]
        if own.digest is not None and len(agreed) + 1 >= self._k:
            outcome = Outcome(own.number, self._undecided.begin(block.hash), (index, *agreed), own.digest)
            copies = [own, *(before[other] for other in agreed)]
            events.append(joined(event, copies, self._undecided.places(block.hash)))
            self._undecided.release(block.hash)
            events += self._agreed.deliver(block.hash, outcome, before)
        else:
            self._undecided.begin(block.hash)
            for other in self._undecided.wait(index, block.hash, own, events):
                self._lost(index, other)
        if not before and not own.late and (block.parent in self._undecided or block.parent in self._agreed):
            for due in self._deadlines.progress():
                self._overdue(due, events)

    def _lost(self, index: int, block_hash: bytes) -> None:
        """A producer's copy was dropped."""
        if (outcome := self._agreed.get(block_hash)) is not None:
            outcome.copies[index] = Copy.LET_GO
            self._voters[index].assembler.needless(block_hash)
        else:
            self._undecided.lost(block_hash)

    # --- deadlines -------------------------------------------------------------------------------------------

    def _awaits(self, due: Due) -> bool:
        if due.producer is None:
            return self._undecided.seen_at(due.block) == due.seen_at
        return self._agreed.awaits(due) is not None

    def _overdue(self, due: Due, events: list[ReassemblyEvent]) -> None:
        if due.producer is not None:
            events.append(self._agreed.needless(due.producer, due.block))
        elif self._undecided.is_late(due.block):
            self._deadlines.expect(due.block, due.seen_at)  # unless it goes when the head moves on
        else:
            events += self._agreed.disagreements(due.block, self._undecided.standings(due.block))
            events.append(Incomplete(self.explain(due.block)))

    # --- blocks as a whole -------------------------------------------------------------------------------------

    def give_up(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block, whatever others may send of it."""
        if block_hash not in self._undecided:
            return []
        header = self._undecided.header(block_hash)
        number = self._undecided.number_of(block_hash) if header is None else header.number
        self._undecided.release(block_hash)
        self._agreed.give_up(block_hash, number or 0, reason)
        return [Quarantined(block_hash, None if header is None else number, reason, header)]

    def reread(self, block_hash: bytes, known: Mapping[Partition, int] | None = None) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped, or finished and then dropped by whoever orders blocks.

        Copies that need not be read again stay as they are. See :class:`~.assembler.Assembler`.
        """
        outcome = self._agreed.get(block_hash)
        undecided = self._undecided.standings(block_hash)
        kept = set(undecided) if outcome is None else outcome.copies.keys() - set(outcome.agreed)
        again = [voter.assembler for index, voter in enumerate(self._voters) if index not in kept]
        found = [assembler.reread(block_hash, known) for assembler in again]
        self._agreed.forget(block_hash)
        return lowest(self._undecided.lift(block_hash), *(places for places in found if places)) or None

    def resumed(self, until: Mapping[Partition, int], waited: Collection[bytes]) -> frozenset[bytes]:
        """What was delivered before is read again: see :class:`~.assembler.Assembler`."""
        return self._undecided.resumed(until, waited)

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """The chain's head is at ``number``: give up what lies below the threshold, forget old late copies."""
        events: list[ReassemblyEvent] = []
        step = max(1, self._threshold // 8)
        head = number - number % step
        if head == self._trimmed:
            return events
        self._trimmed = head
        self._past = head - self._threshold
        events += self._agreed.passed_over(self._past)
        for index, voter in enumerate(self._voters):
            for event in cast("list[Quarantined | Stale]", voter.assembler.head_moved(number)):
                block_hash = event.block.hash if isinstance(event, Stale) else event.block
                if block_hash in self._agreed:
                    events.append(self._agreed.needless(index, block_hash))
                else:
                    events += self._undecided.given_up(index, block_hash, event)
        for block_hash, header, told in self._undecided.passed_over(self._past):
            events += told
            if header is not None:
                self._agreed.give_up(block_hash, header.number, told[-1].reason)
        self._agreed.head_moved(head)
        return events

    # --- what the rest of the room needs -----------------------------------------------------------------------

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open or dropped block still needs, of any producer's copy."""
        return lowest(self._undecided.positions(self._records), *(voter.open_positions() for voter in self._voters))

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return list(self._undecided)

    def dropped_blocks(self) -> Collection[bytes]:
        """The hashes of the blocks of which a copy was dropped and can be read again, oldest first.

        Another producer's copy of them may be held: it waits for the one that was dropped.
        """
        found = dict.fromkeys(self._undecided.dropped)
        for voter in self._voters:
            found.update(dict.fromkeys(voter.assembler.dropped_blocks()))
        undecided, explain = self._undecided, self.explain
        return {each: None for each in found if each in undecided or explain(each).state == "dropped"}.keys()

    def dropped(self, block_hash: bytes) -> bool:
        """Whether this is one of :meth:`dropped_blocks`."""
        if block_hash not in self._undecided:
            return self.explain(block_hash).state == "dropped"
        held = (voter.assembler for voter in self._voters)
        return block_hash in self._undecided.dropped or any(assembler.dropped(block_hash) for assembler in held)

    @property
    def recovers(self) -> bool:
        """Whether a producer has blocks that were dropped and are not whole yet, read again or not."""
        return any(voter.assembler.recovers for voter in self._voters)

    @property
    def fullness(self) -> float:
        """How much of its share of the room for open blocks that producer has taken which has taken most."""
        return max(voter.assembler.fullness for voter in self._voters)

    @property
    def lowest_open(self) -> int | None:
        """The lowest number that a Batch gives to an open block, complete in too few copies or none; None without."""
        return self._undecided.lowest

    @property
    def held_bytes(self) -> int:
        """What open blocks of all producers, and finished ones that are kept to compare with, cost in bytes."""
        return sum(voter.held_bytes for voter in self._voters)

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the blocks that were delivered or given up, and are still recognised."""
        return list(self._agreed)

    def ignore(self, names: Iterable[bytes]) -> None:
        """Treat blocks whose hash has one of these short names as done (resuming: late copies of old blocks)."""
        names = frozenset(names)
        for voter in self._voters:
            voter.assembler.ignore(names)

    def number_of(self, block_hash: bytes) -> int | None:
        """The number of a block, the lowest that any producer's Batch gives to it before enough agree; None without."""
        outcome = self._agreed.get(block_hash)
        return self._undecided.number_of(block_hash) if outcome is None else outcome.number

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for, or what became of it; the reason tells how every producer stands."""
        outcome = self._agreed.get(block_hash)
        return self._undecided.explain(block_hash) if outcome is None else self._agreed.explain(block_hash, outcome)
