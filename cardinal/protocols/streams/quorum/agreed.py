"""Blocks on which enough producers agreed, or that were given up: what else comes of them is compared, and known.

Rules:

1. What any other producer supplied, or supplies later, is compared with the copy that was delivered: what differs is a
   :class:`~.events.Divergence`, what is too much a :class:`~.events.Surplus`. Where the messages are no longer held a
   Divergence of the Batch's key holds both digests instead of values.
2. A copy that others made needless, and that never becomes complete, is an :class:`~.events.Incomplete` with the state
   ``complete``, and is then let go.
3. A copy that begins when the chain is past its block is compared message by message and never assembled: nobody waits
   for it. One that began after delivery, and that the chain passes before its deadline, goes in silence: its producer
   is catching up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from cardinal.protocols.streams.assembly.block import Explanation, OpenBlock
from cardinal.protocols.streams.assembly.finished import FinishedBlock, FinishedBlocks
from cardinal.protocols.streams.events import Divergence, Incomplete, ReassemblyEvent, Rejected, Surplus
from cardinal.protocols.streams.types import Row
from cardinal.protocols.streams.wire.keys import HASH_END

from .accounts import Copy, as_a_whole, largest, told_of_delivered
from .deadlines import Deadlines, Due
from .standings import Standing
from .voters import Voter

_AWAITED: Final = (Copy.OPEN, Copy.AFTER)


class Outcome(FinishedBlock):
    """A block that is finished with. ``agreed`` are the producers whose copies count, none where it was given up."""

    __slots__ = ("agreed", "copies", "digest", "seen_at")

    def __init__(
        self,
        number: int,
        seen_at: int = 0,
        agreed: tuple[int, ...] = (),
        digest: bytes | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(number, reason=reason)
        self.seen_at = seen_at
        self.agreed = agreed
        self.digest = digest
        self.copies: dict[int, Copy] = dict.fromkeys(agreed, Copy.WHOLE)


class Agreed:
    """See the module.

    Arguments:
        voters: what each producer supplied.
        deadlines: where to say what is awaited.
        window: blocks below the head for which they are known.

    """

    def __init__(self, voters: Sequence[Voter], deadlines: Deadlines, window: int) -> None:
        self._voters = voters
        self._deadlines = deadlines
        self._blocks = FinishedBlocks(window, 0)
        self.forget = self._blocks.forget
        """Know nothing of this block any more."""
        self.head_moved = self._blocks.head_moved
        """Forget what lies more than the window below this number."""

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block is finished with."""
        return block_hash in self._blocks

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Number and hash of every one."""
        return iter(self._blocks)

    def get(self, block_hash: bytes) -> Outcome | None:
        """What became of a block; None where it is not finished with."""
        return cast("Outcome | None", self._blocks.get(block_hash))

    # --- decisions -------------------------------------------------------------------------------------------

    def give_up(self, block_hash: bytes, number: int, reason: str) -> None:
        """A block is finished with and was not delivered."""
        for voter in self._voters:
            voter.assembler.give_up(block_hash, reason)
        self._blocks.add(block_hash, Outcome(number, reason=reason))

    def deliver(self, block_hash: bytes, outcome: Outcome, before: dict[int, Standing]) -> list[ReassemblyEvent]:
        """A block is delivered; returns where copies differ that others supplied so far.

        Arguments:
            block_hash: the block.
            outcome: who agreed on what.
            before: the complete copies but the last one, by producer.

        """
        self._blocks.add(block_hash, outcome)
        kept = outcome.agreed[0]
        events: list[ReassemblyEvent] = []
        for index, voter in enumerate(self._voters):
            held = voter.held(block_hash)
            if index in outcome.agreed or held is None:
                continue
            events += self._differences(kept, index, block_hash)
            if isinstance(held, OpenBlock):
                outcome.copies[index] = Copy.OPEN
                self._deadlines.expect(block_hash, outcome.seen_at, index)
                continue
            outcome.copies[index] = Copy.LET_GO if held.reason else Copy.WHOLE
            comparable = voter.keeps(block_hash) and self._voters[kept].keeps(block_hash)
            if index in before and not comparable:
                events.append(as_a_whole(block_hash, outcome.digest, before[index]))
        return events

    # --- what comes later ------------------------------------------------------------------------------------

    def late(
        self, index: int, run: list[Row], outcome: Outcome, *, past: int
    ) -> Iterator[tuple[list[ReassemblyEvent], list[ReassemblyEvent]]]:
        """Records of a block that is finished with: what differs, then what came of the producer's own copy.

        Arguments:
            index: their producer.
            run: they. Where any of them differs they are dealt with one by one, so that the order of what is told does
                not depend on how they were cut.
            outcome: what became of their block.
            past: the chain is past blocks with a lower number.

        """
        if not outcome.agreed:
            return
        block_hash = run[0][3][1:HASH_END]
        copy, own, kept = outcome.copies.get(index), self._voters[index], outcome.agreed[0]
        if copy is Copy.WHOLE and own.held(block_hash) is not None:
            yield [], own.assembler.receive(run)  # it may contradict itself
            return
        against = self._against(kept, block_hash, run)
        if copy is Copy.LET_GO or (copy not in _AWAITED and outcome.number < past):
            yield against, []
        elif not against or len(run) == 1:
            yield against, self._assemble(index, run, outcome, told=bool(against))
        else:
            for record in run:
                against = self._against(kept, block_hash, [record])
                yield against, self._assemble(index, [record], outcome, told=bool(against))

    def _assemble(self, index: int, run: list[Row], outcome: Outcome, *, told: bool) -> list[ReassemblyEvent]:
        """A producer's own copy of a delivered block takes a run; ``told`` says whether that it differs was told."""
        block_hash = run[0][3][1:HASH_END]
        own = self._voters[index]
        found = own.assembler.receive(run)
        if found and self._voters[outcome.agreed[0]].keeps(block_hash):
            # Said already, of this record or of the one that it contradicts.
            said = (Divergence, Surplus, Rejected) if told else (Divergence, Surplus)
            found = [event for event in found if not isinstance(event, said)]
        if outcome.copies.get(index) not in _AWAITED and own.open(block_hash) is not None:
            outcome.copies[index] = Copy.AFTER
            self._deadlines.expect(block_hash, outcome.seen_at, index)
        return found

    def completed(self, index: int, block_hash: bytes, outcome: Outcome, own: Standing) -> list[ReassemblyEvent]:
        """A producer's copy of a delivered block became complete; returns what differs and was not told yet."""
        outcome.copies[index] = Copy.WHOLE
        if own.digest == outcome.digest or self._voters[outcome.agreed[0]].keeps(block_hash):
            return []
        return [as_a_whole(block_hash, outcome.digest, own)]

    def disagreements(self, block_hash: bytes, standings: Mapping[int, Standing]) -> list[ReassemblyEvent]:
        """Where producers differ on an undecided block from the most of those that completed it."""
        if not standings:
            return []
        agreeing = largest(standings)
        others = (index for index in range(len(self._voters)) if index not in agreeing)
        return [event for index in others for event in self._differences(agreeing[0], index, block_hash)]

    def _differences(self, kept: int, index: int, block_hash: bytes) -> list[ReassemblyEvent]:
        """Where a producer's messages differ from those of ``kept``, whose copy is complete."""
        found = self._voters[index].held(block_hash)
        if isinstance(found, FinishedBlock):
            block, candidate = found.held, found.candidate
        else:
            block, candidate = found, found.candidates[0] if found is not None and found.candidates else None
        if block is None:
            return []
        # What is surplus to its own Batch was reported when it came.
        surplus = frozenset() if candidate is None else candidate.surplus
        said = [record for key, record in block.messages.items() if key not in surplus]
        if candidate is not None:
            said.append(candidate.batch)
        return self._against(kept, block_hash, said)

    def _against(self, kept: int, block_hash: bytes, said: list[Row]) -> list[ReassemblyEvent]:
        """What differs: for the producer that is kept these are late copies. Never given to a copy that is open."""
        voter = self._voters[kept]
        return voter.assembler.receive(said) if voter.keeps(block_hash) else []

    # --- what never comes ------------------------------------------------------------------------------------

    def awaits(self, due: Due) -> Outcome | None:
        """The delivered block of which this producer's copy is still awaited; None where it is not."""
        outcome = self.get(due.block)
        if outcome is None or outcome.seen_at != due.seen_at or due.producer is None:
            return None
        return outcome if outcome.copies.get(due.producer) in _AWAITED else None

    def passed_over(self, floor: int) -> list[Incomplete]:
        """The chain is past blocks below ``floor``: wait no longer for any producer's copy of those."""
        events: list[Incomplete] = []
        for due in list(self._deadlines):
            outcome = self.awaits(due)
            if outcome is None or due.producer is None or outcome.number >= floor:
                continue
            began_after = outcome.copies[due.producer] is Copy.AFTER
            told = self.needless(due.producer, due.block)
            events += [] if began_after else [told]
        return events

    def needless(self, index: int, block_hash: bytes) -> Incomplete:
        """Wait no longer for a producer's copy of a delivered block."""
        own, outcome = self._voters[index], cast("Outcome", self.get(block_hash))
        names = ", ".join(repr(self._voters[other].name) for other in sorted(outcome.agreed))
        reason = f"producer {own.name!r} never supplied all of it; {names} agreed"
        lacks = own.assembler.explain(block_hash)
        own.assembler.give_up(block_hash, reason)
        outcome.copies[index] = Copy.LET_GO
        return Incomplete(replace(lacks, state="complete", reason=reason))

    def explain(self, block_hash: bytes, outcome: Outcome) -> Explanation:
        """What became of a block."""
        if not outcome.agreed:
            return Explanation(block_hash, outcome.number, "quarantined", reason=outcome.reason)
        names = [voter.name for voter in self._voters]
        reason = told_of_delivered(names, outcome.agreed, outcome.copies)
        return Explanation(block_hash, outcome.number, "complete", reason=reason)
