"""Policy ``quorum:k``: a block counts when k producers of an allow-list each supplied the same one.

It is made of one :class:`~.reassembler.Reassembler` for each producer, which gets that producer's records alone. So a
producer that lies, floods or contradicts itself spoils its own copy and nobody else's.

Rules:

1. A record's producer is what its header ``cardinal-producer`` says; no header is the id ``anonymous``. Anybody who
   may write to a topic may write that header: the policy is authentic only where the broker's access rules bind
   principals to topics.
2. Records of producers that are not in the list do not count; each is reported once (:class:`~.events.Untrusted`).
   Pings and announcements of reorg channels belong to no block: they are events whoever sent them.
3. A block is delivered when k producers agree on it (:mod:`.agreement`), once, with the positions of all of their
   copies. What any other producer supplied, or supplies later, is compared with it: what differs is a
   :class:`~.events.Divergence`, what is too much a :class:`~.events.Surplus`. Where the messages are no longer held a
   Divergence of the Batch's key holds both digests instead of values. A copy that others made needless, and that
   never becomes complete, is an :class:`~.events.Incomplete` with the state ``complete``, and is then let go.
4. The deadline of a block is counted in blocks that any producer completed on a known parent since its first message.
   An overdue block is reported once, with who agrees and what the others lack, after a Divergence for everything that
   producers disagree on.
5. What its Batch says of a block that is not delivered (its number here, its parent in a Quarantined) is told only
   where k producers say the same. So nobody is led on by one producer's lie.
6. Messages that are supplied complete the copies of producers that sent a Batch of their own, where these copies lack
   them. A Batch cannot be supplied: a block of which fewer than k producers supplied theirs is never delivered.
7. The bounds are divided among the producers. Each can use up its own share alone.
8. Nothing depends on the clock or on how records are cut into calls, and nothing that a record can hold raises.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

from cardinal.errors import ConfigurationError

from .accounts import Copy, as_a_whole, largest, told_of_delivered, told_of_open
from .agreement import Volatile, standing
from .block import Explanation, OpenBlock
from .contents import Contents, HeaderOnly
from .events import (
    Completed,
    Divergence,
    Incomplete,
    Overflow,
    Quarantined,
    ReassemblyEvent,
    Rejected,
    Stale,
    Surplus,
    Untrusted,
)
from .finished import FinishedBlock, FinishedBlocks
from .keys import HASH_END
from .messages import BATCH, BATCH_DELETE_MSG, BATCH_MSG
from .openblocks import Bounds
from .reassembler import Reassembler
from .reorgs import ANONYMOUS
from .standings import JointEnds, Standing, Standings, lowest
from .tombstones import TOMBSTONES_MAX
from .types import PRODUCER_HEADER, Partition, Record, Routed, Row, path_bytes, path_text

_BOUNDS: Final = Bounds()
_SUPPLIED: Final = -1
_SLACK: Final = 1000
_UNTRUSTED_MAX: Final = 64
_ID_SHOWN: Final = 128
"""Bytes of an unknown producer's id that are kept."""

_STANDINGS_SHARE: Final = 8
"""One part in so many of a producer's bytes is for its complete copies that wait for others."""


def parse_policy(policy: str) -> int | None:
    """How many producers have to agree: None for ``first``, k for ``quorum:k``.

    Raises:
        ConfigurationError: it is neither.

    """
    if policy == "first":
        return None
    name, _, k = policy.partition(":")
    if name != "quorum" or not (k.isascii() and k.isdigit()) or len(k) > _DIGITS_MAX or int(k) < 1:
        raise ConfigurationError(
            f"the policy {policy!r} is not known: use 'first', or 'quorum:k' with k producers that have to agree",
            setting="policy",
        )
    return int(k)


_DIGITS_MAX: Final = 4


class _Outcome(FinishedBlock):
    """A block that is finished with. ``agreed`` are the producers whose copies count, none where it was given up."""

    __slots__ = ("agreed", "copies", "digest", "seen_at")

    def __init__(self, number: int, seen_at: int = 0, agreed: tuple[int, ...] = (), reason: str = "") -> None:
        super().__init__(number, reason=reason)
        self.seen_at = seen_at
        self.agreed = agreed
        self.digest: bytes | None = None
        self.copies: dict[int, Copy] = dict.fromkeys(agreed, Copy.WHOLE)


class _Due(NamedTuple):
    """When a block is overdue or, where ``producer`` is not None, this producer's copy of a delivered one."""

    at: int
    block: bytes
    seen_at: int
    producer: int | None = None


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
        _check(k, producers)
        prefixes, volatile = tuple(prefixes), tuple(volatile)
        share = bounds.part(len(producers))
        waiting, most = share.open_bytes // _STANDINGS_SHARE, max(1, share.open_blocks // 2)
        own = replace(share, open_bytes=share.open_bytes - waiting, open_blocks=most)
        self._copies = [
            Reassembler(
                tracked,
                reorg_threshold,
                prefixes=prefixes,
                volatile=volatile,
                inline=inline,
                contents=contents,
                deadline=deadline,
                bounds=own,
            )
            for _ in producers
        ]
        self._standings = [Standings(most, waiting) for _ in producers]
        self._k = k
        self._names = tuple(producers)
        self._producers = {path_bytes(name): index for index, name in enumerate(producers)}
        # Most records have one header; the others are looked through.
        self._by_headers: dict[tuple[tuple[str, bytes], ...], int] = {
            ((PRODUCER_HEADER, name),): index for name, index in self._producers.items()
        }
        self._volatile = Volatile(volatile)
        self._threshold = reorg_threshold
        self._deadline = max(1, reorg_threshold // 4) if deadline is None else deadline
        self._open: dict[bytes, int] = {}
        """The blocks of which a producer has messages, or a standing, and when they were first seen."""
        self._done = FinishedBlocks(2 * reorg_threshold, 0)
        self._dropped: dict[bytes, dict[Partition, int]] = {}
        """Where the messages of standings lay that were dropped."""
        self._due: deque[_Due] = deque()
        self._due_most = _SLACK
        self._opened = 0
        self._completed = 0
        self._trimmed = -1
        self._untrusted: dict[bytes, None] = {}

    # --- reading ---------------------------------------------------------------------------------------------

    def receive(self, records: Iterable[Row]) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order.

        New values of one open block from one producer go to its reassembler together, as long as they cannot complete
        the block: what is done then must find everything as it is at that record, however records are cut.
        """
        events: list[ReassemblyEvent] = []
        run: list[Row] = []
        last: bytes | None = None
        headers: tuple[tuple[str, bytes], ...] = ()
        index = left = 0
        for record in records:
            head = record[3][:HASH_END]
            if head != last or record[6] != headers:
                if run:
                    self._several(index, run, events)
                    run, last = [], None
                if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                    events += self._copies[0].receive([record])  # it belongs to no block
                    continue
                found = self._by_headers.get(record[6])
                if found is None and (found := self._producer_of(record, events)) is None:
                    continue
                index = found
                if head[0] != BATCH_MSG or (left := self._room(index, head[1:])) == 0:
                    self._one(index, record, events)
                    continue
                last, headers = head, record[6]
            run.append(record)
            left -= 1
            if left == 0:
                self._several(index, run, events)
                run, last = [], None
        if run:
            self._several(index, run, events)
        return events

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had: they complete what producers began (rule 6)."""
        events: list[ReassemblyEvent] = []
        for topic, key, value in messages:
            if len(key) < HASH_END or not BATCH < key[0] <= BATCH_DELETE_MSG:
                continue
            record = Record(topic, _SUPPLIED, _SUPPLIED, key, value)
            for index, copy in enumerate(self._copies):
                if key[1:HASH_END] in self._open and self._assembles(index, key[1:HASH_END]):
                    self._take(index, copy.receive([record]), events)
        return events

    def _producer_of(self, record: Row, events: list[ReassemblyEvent]) -> int | None:
        """Whose copy a record belongs to; None where it belongs to none, which is reported."""
        producer = next((value for name, value in record[6] if name == PRODUCER_HEADER), ANONYMOUS)
        index = self._producers.get(producer)
        if index is None:
            shown = (producer or b"")[:_ID_SHOWN]  # Kafka's headers may have no value at all
            if shown not in self._untrusted and len(self._untrusted) < _UNTRUSTED_MAX:
                self._untrusted[shown] = None
                events.append(Untrusted(path_text(shown), record[:3]))
        return index

    def _room(self, index: int, block_hash: bytes) -> int:
        """How many values of a block can be taken together; 0: one by one, below 0: any number."""
        if block_hash not in self._open:
            return 0
        block = self._copies[index].held(block_hash)
        if not isinstance(block, OpenBlock) or block.counters is None:
            return -1
        return 0 if block.careful else block.counters.outstanding or -1

    def _several(self, index: int, run: list[Row], events: list[ReassemblyEvent]) -> None:
        if found := self._copies[index].receive(run):
            self._take(index, found, events)
            self._know(index, run[0][3][1:HASH_END])

    def _one(self, index: int, record: Row, events: list[ReassemblyEvent]) -> None:
        block_hash = record[3][1:HASH_END]
        outcome = self._outcome(block_hash)
        if outcome is not None:
            self._late(index, record, outcome, events)
            return
        found = self._copies[index].receive([record])
        self._know(index, block_hash)
        self._take(index, found, events)

    def _know(self, index: int, block_hash: bytes) -> None:
        """Note a block of which this producer holds messages."""
        if block_hash not in self._open and self._assembles(index, block_hash):
            self._begin(block_hash)

    def _begin(self, block_hash: bytes) -> int:
        """A block that was not seen before; returns what tells it from a later one of the same hash."""
        self._opened += 1
        self._open[block_hash] = self._opened
        self._expect(block_hash, self._opened)
        return self._opened

    def _assembles(self, index: int, block_hash: bytes) -> bool:
        return isinstance(self._copies[index].held(block_hash), OpenBlock)

    def _anybody_assembles(self, block_hash: bytes) -> bool:
        return any(self._assembles(index, block_hash) for index in range(len(self._copies)))

    def _outcome(self, block_hash: bytes) -> _Outcome | None:
        return cast("_Outcome | None", self._done.get(block_hash))

    # --- what one producer's copies give -----------------------------------------------------------------------

    def _take(self, index: int, found: Iterable[ReassemblyEvent], events: list[ReassemblyEvent]) -> None:
        for event in found:
            if isinstance(event, Completed):
                self._complete(index, event, events)
            elif isinstance(event, Incomplete):
                # That one copy is overdue says nothing; one that was dropped is of use for an open block.
                block_hash = event.explanation.block
                if event.explanation.state == "dropped" and block_hash not in self._done:
                    events.append(event)
            elif isinstance(event, Overflow):
                events.append(replace(event, reason=f"{event.reason}, of producer {self._names[index]!r}"))
                self._lost(index, event.block)
            else:
                events.append(event)

    def _complete(self, index: int, event: Completed, events: list[ReassemblyEvent]) -> None:
        block = event.payload
        finished = cast("FinishedBlock", self._copies[index].held(block.hash))
        own = standing(event, finished, self._volatile, past=0)
        outcome = self._outcome(block.hash)
        if outcome is not None:
            outcome.copies[index] = Copy.WHOLE
            if own.digest != outcome.digest and not self._keeps(outcome.agreed[0], block.hash):
                events.append(as_a_whole(block.hash, outcome.digest, own))
            return
        seen_at = self._open.get(block.hash) or self._begin(block.hash)
        before = self._of(block.hash)
        agreed = [other for other, said in before.items() if said.digest == own.digest and other != index]
        if own.digest is not None and len(agreed) + 1 >= self._k:
            self._deliver(event, own, (index, *agreed), seen_at, events)
        else:
            if (places := self._dropped.get(block.hash)) is not None:
                reason = "what another producer supplied was dropped before others supplied theirs"
                events.append(Incomplete(Explanation(block.hash, None, "dropped", positions=places, reason=reason)))
            self._wait(index, block.hash, own, events)
        if not before and (block.parent in self._open or block.parent in self._done):
            self._completed += 1
            self._look_at_deadlines(events)

    def _of(self, block_hash: bytes) -> dict[int, Standing]:
        """The standings of a block by producer."""
        held = ((index, standings.get(block_hash)) for index, standings in enumerate(self._standings))
        return {index: said for index, said in held if said is not None}

    def _wait(self, index: int, block_hash: bytes, own: Standing, events: list[ReassemblyEvent]) -> None:
        """Hold a complete copy until others agree."""
        for other, said in self._standings[index].add(block_hash, own):
            reason = f"complete blocks that wait for others are over their bound, of producer {self._names[index]!r}"
            events.append(Overflow(other, said.number, dict(said.positions), reason))
            self._dropped[other] = lowest(said.positions, self._dropped.get(other, {}))
            if len(self._dropped) > TOMBSTONES_MAX:
                del self._dropped[next(iter(self._dropped))]
            self._lost(index, other)

    def _lost(self, index: int, block_hash: bytes) -> None:
        """A producer's copy was dropped."""
        outcome = self._outcome(block_hash)
        if outcome is not None:
            outcome.copies[index] = Copy.LET_GO
        elif block_hash in self._open:
            if self._of(block_hash) or self._anybody_assembles(block_hash):
                self._expect(block_hash, self._open[block_hash])  # once more: whoever hears of it forgets the block
            else:
                del self._open[block_hash]

    # --- delivered blocks --------------------------------------------------------------------------------------

    def _deliver(
        self, event: Completed, own: Standing, agreed: tuple[int, ...], seen_at: int, events: list[ReassemblyEvent]
    ) -> None:
        block_hash = event.payload.hash
        before = self._of(block_hash)
        copies = [own, *(before[index] for index in agreed[1:])]
        self._release(block_hash)
        outcome = _Outcome(own.number, seen_at, agreed)
        outcome.digest = own.digest
        self._done.add(block_hash, outcome)
        events.append(
            replace(
                event,
                positions=lowest(*(copy.positions for copy in copies)),
                ends=JointEnds(tuple(copy.ends for copy in copies)),
                published_ms=min(copy.published_ms for copy in copies),
                sealed=any(copy.sealed for copy in copies),
            )
        )
        for index, copy in enumerate(self._copies):
            if index in agreed or (held := copy.held(block_hash)) is None:
                continue
            self._compare(agreed[0], index, block_hash, events)
            if isinstance(held, OpenBlock):
                outcome.copies[index] = Copy.OPEN
                self._expect(block_hash, seen_at, index)
                continue
            outcome.copies[index] = Copy.WHOLE
            comparable = self._keeps(index, block_hash) and self._keeps(agreed[0], block_hash)
            if index in before and not comparable:
                events.append(as_a_whole(block_hash, own.digest, before[index]))

    def _release(self, block_hash: bytes) -> None:
        """A block is open no longer."""
        del self._open[block_hash]
        for standings in self._standings:
            standings.discard(block_hash)
        self._dropped.pop(block_hash, None)

    def _keeps(self, index: int, block_hash: bytes) -> bool:
        """Whether the messages of a producer's complete copy are still held."""
        block = self._copies[index].held(block_hash)
        return isinstance(block, FinishedBlock) and block.held is not None

    def _compare(self, kept: int, index: int, block_hash: bytes, events: list[ReassemblyEvent]) -> None:
        """Report where a producer's messages differ from those of ``kept``, whose copy is complete."""
        found = self._copies[index].held(block_hash)
        if isinstance(found, FinishedBlock):
            block, candidate = found.held, found.candidate
        else:
            block, candidate = found, found.candidates[0] if found is not None and found.candidates else None
        if block is None:
            return
        # What is surplus to its own Batch was reported when it came.
        surplus = frozenset() if candidate is None else candidate.surplus
        said = [record for key, record in block.messages.items() if key not in surplus]
        if candidate is not None:
            said.append(candidate.batch)
        events += self._against(kept, block_hash, said)

    def _against(self, kept: int, block_hash: bytes, said: list[Row]) -> list[ReassemblyEvent]:
        """What differs: for the producer that is kept these are late copies. Never given to a copy that is open."""
        return self._copies[kept].receive(said) if self._keeps(kept, block_hash) else []

    def _late(self, index: int, record: Row, outcome: _Outcome, events: list[ReassemblyEvent]) -> None:
        """A record of a block that is finished with."""
        if not outcome.agreed:
            return
        block_hash = record[3][1:HASH_END]
        copy, own = outcome.copies.get(index), self._copies[index]
        if copy is Copy.WHOLE and own.held(block_hash) is not None:
            self._take(index, own.receive([record]), events)  # it may contradict itself
            return
        against = self._against(outcome.agreed[0], block_hash, [record])
        events += against
        if copy is Copy.LET_GO:
            return
        found = own.receive([record])
        if self._keeps(outcome.agreed[0], block_hash):
            # Said already, of this record or of the one that it contradicts.
            said = (Divergence, Surplus, Rejected) if against else (Divergence, Surplus)
            found = [event for event in found if not isinstance(event, said)]
        if copy is not Copy.OPEN and self._assembles(index, block_hash):
            outcome.copies[index] = Copy.OPEN
            self._expect(block_hash, outcome.seen_at, index)
        self._take(index, found, events)

    def _needless(self, index: int, block_hash: bytes, outcome: _Outcome, events: list[ReassemblyEvent]) -> None:
        """Wait no longer for a producer's copy of a delivered block."""
        names = ", ".join(repr(self._names[other]) for other in sorted(outcome.agreed))
        reason = f"producer {self._names[index]!r} never supplied all of it; {names} agreed"
        lacks = self._copies[index].explain(block_hash)
        self._copies[index].give_up(block_hash, reason)
        outcome.copies[index] = Copy.LET_GO
        events.append(Incomplete(replace(lacks, state="complete", reason=reason)))

    # --- deadlines ---------------------------------------------------------------------------------------------

    def _expect(self, block_hash: bytes, seen_at: int, producer: int | None = None) -> None:
        self._due.append(_Due(self._completed + self._deadline, block_hash, seen_at, producer))
        if len(self._due) > self._due_most:
            self._due = deque(due for due in self._due if self._is_awaited(due))
            self._due_most = 2 * len(self._due) + _SLACK

    def _is_awaited(self, due: _Due) -> bool:
        if due.producer is None:
            return self._open.get(due.block) == due.seen_at
        return self._awaited_copy(due) is not None

    def _awaited_copy(self, due: _Due) -> _Outcome | None:
        outcome = self._outcome(due.block)
        if outcome is None or outcome.seen_at != due.seen_at or due.producer is None:
            return None
        return outcome if outcome.copies.get(due.producer) is Copy.OPEN else None

    def _look_at_deadlines(self, events: list[ReassemblyEvent]) -> None:
        while self._due and self._due[0].at <= self._completed:
            due = self._due.popleft()
            if due.producer is not None:
                if (outcome := self._awaited_copy(due)) is not None:
                    self._needless(due.producer, due.block, outcome, events)
                continue
            if not self._is_awaited(due):
                continue
            if standings := self._of(due.block):
                agreeing = largest(standings)
                for index in range(len(self._copies)):
                    if index not in agreeing:
                        self._compare(agreeing[0], index, due.block, events)
            events.append(Incomplete(self.explain(due.block)))

    # --- blocks as a whole -------------------------------------------------------------------------------------

    def give_up(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block."""
        if block_hash not in self._open:
            return []
        header = self._header(block_hash)
        number = min(number for number, _, _ in self._batches(block_hash) or [(0, b"", 0)])
        if header is not None:
            number = header.number
        for copy in self._copies:
            copy.give_up(block_hash, reason)
        self._release(block_hash)
        self._done.add(block_hash, _Outcome(number, reason=reason))
        return [Quarantined(block_hash, None if header is None else number, reason, header)]

    def reread(self, block_hash: bytes) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped, or finished and then dropped by whoever orders blocks.

        Copies that need not be read again stay as they are.
        """
        outcome = self._outcome(block_hash)
        kept = set(self._of(block_hash)) if outcome is None else outcome.copies.keys() - set(outcome.agreed)
        found = [copy.reread(block_hash) for index, copy in enumerate(self._copies) if index not in kept]
        self._done.forget(block_hash)
        return lowest(self._dropped.pop(block_hash, {}), *(places for places in found if places)) or None

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """The chain's head is at ``number``: give up what lies below the threshold, forget old late copies.

        A block is given up when no producer has it open and all who completed it put it below the threshold.
        """
        events: list[ReassemblyEvent] = []
        step = max(1, self._threshold // 8)
        head = number - number % step
        if head == self._trimmed:
            return events
        self._trimmed = head
        floor = head - self._threshold
        for due in list(self._due):
            outcome = self._awaited_copy(due)
            if outcome is not None and outcome.number < floor:
                self._needless(cast("int", due.producer), due.block, outcome, events)
        for index, copy in enumerate(self._copies):
            for event in cast("list[Quarantined | Stale]", copy.head_moved(number)):
                block_hash = event.block.hash if isinstance(event, Stale) else event.block
                outcome = self._outcome(block_hash)
                if outcome is not None:
                    self._needless(index, block_hash, outcome, events)
        for block_hash in list(self._open):
            said = self._of(block_hash).values()
            if all(own.number < floor for own in said) and not self._anybody_assembles(block_hash):
                why = self.explain(block_hash).reason
                events += self.give_up(block_hash, f"{why}, {self._threshold} blocks later")
        self._done.head_moved(head)
        return events

    # --- what the rest of the room needs -----------------------------------------------------------------------

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs, of any producer's copy."""
        waiting = (own.positions for standings in self._standings for own in standings)
        return lowest(*(copy.open_positions() for copy in self._copies), *waiting)

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        return list(self._open)

    @property
    def lowest_open(self) -> int | None:
        """The number of the lowest block of which any producer's copy is open and has a Batch; None without one."""
        return min((number for copy in self._copies if (number := copy.lowest_open) is not None), default=None)

    @property
    def held_bytes(self) -> int:
        """What open blocks of all producers, and finished ones that are kept to compare with, cost in bytes."""
        return sum(copy.held_bytes for copy in self._copies) + sum(standings.bytes for standings in self._standings)

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the blocks that were delivered or given up, and are still recognised."""
        return list(self._done)

    def ignore(self, names: Iterable[bytes]) -> None:
        """Treat blocks whose hash has one of these short names as done (resuming: late copies of old blocks)."""
        names = frozenset(names)
        for copy in self._copies:
            copy.ignore(names)

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for, or what became of it; the reason tells how every producer stands."""
        outcome = self._outcome(block_hash)
        if outcome is not None:
            if not outcome.agreed:
                return Explanation(block_hash, outcome.number, "quarantined", reason=outcome.reason)
            reason = told_of_delivered(self._names, outcome.agreed, outcome.copies)
            return Explanation(block_hash, outcome.number, "complete", reason=reason)
        copies = [copy.explain(block_hash) for copy in self._copies]
        if block_hash in self._open:
            return told_of_open(self._names, self._k, self._of(block_hash), copies, self._header(block_hash))
        if copies[0].state == "done":  # every copy was told the same
            return copies[0]
        places = lowest(self._dropped.get(block_hash, {}), *(copy.positions for copy in copies))
        return Explanation(block_hash, None, "dropped" if places else "unknown", positions=places)

    def _header(self, block_hash: bytes) -> HeaderOnly | None:
        """What k producers' Batches say of an open block; None where fewer say the same."""
        for (number, parent, weight), producers in self._batches(block_hash).items():
            if producers >= self._k:
                return HeaderOnly(number, block_hash, parent, weight, {})
        return None

    def _batches(self, block_hash: bytes) -> Counter[tuple[int, bytes, int]]:
        """Number, parent and weight, and how many producers' Batches say so."""
        said = Counter((own.number, own.parent, own.weight) for own in self._of(block_hash).values())
        for copy in self._copies:
            block = copy.held(block_hash)
            if isinstance(block, OpenBlock) and block.fields is not None:
                said[block.fields.number, block.fields.parent, block.fields.weight] += 1
        return said


def _check(k: int, producers: Sequence[str]) -> None:
    if not producers or not all(producers) or len(set(producers)) < len(producers):
        raise ConfigurationError(
            "a quorum needs the ids of the producers that count, each once and none of them empty", setting="producers"
        )
    if not 1 <= k <= len(producers):
        raise ConfigurationError(
            f"a quorum of {k} cannot be had of {len(producers)} producers: choose 1 to {len(producers)}",
            setting="policy",
        )
