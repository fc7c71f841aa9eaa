"""Policy ``quorum:k``: one :class:`Reassembler` for each producer, and a table of votes.

1. Each producer has a Reassembler of its own, with an equal share of the bounds, for its records alone. So a
   producer that forges, floods or contradicts itself spoils its own copies and uses up its own share.
2. A complete copy is a vote (:mod:`.digest`). When k votes for a block are equal it is delivered, once, with the
   positions of all copies. Every copy that differs from it is compared message by message: when the block is delivered,
   or later when that copy becomes complete or falls below the threshold.
3. Of too many votes of a producer those farthest from the head are evicted, and its Reassembler forgets those blocks:
   their records, re-read, make the vote again.
4. A block is overdue when its votes have waited, or a copy has been incomplete, for as many completed blocks as the
   deadline. It is reported once, with the producers that agree and what the others lack.
5. The header of such a block is accepted where k producers' Batches give the same: one producer cannot forge it.
6. Messages that are supplied complete the copies that producers began. A Batch cannot be supplied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

from cardinal.protocols.streams.assembly.block import OpenBlock
from cardinal.protocols.streams.assembly.digests import HeaderOnly
from cardinal.protocols.streams.assembly.evicted import Link
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds, RecentBlock, RecentBlocks, distance
from cardinal.protocols.streams.events import (
    Completed,
    Divergence,
    Explanation,
    Incomplete,
    Overflow,
    Quarantined,
    ReassemblyEvent,
    Stale,
)
from cardinal.protocols.streams.lazy import BoundedDict, LazyHeap
from cardinal.protocols.streams.types import BlockRef, Partition, Routed, Row, lowest
from cardinal.protocols.streams.wire.keys import HASH_END, block_key
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG
from cardinal.texts import Count

from .attribution import Attribution, check_quorum
from .digest import Vote, vote_of

_BOUNDS: Final = Bounds()
_SUPPLIED: Final = -1
_REPORTED_MAX: Final = 65_536
_VOTE_OVERHEAD: Final = 1000
_PARTITION_OVERHEAD: Final = 150
"""Bytes that a vote costs, and each partition that it names; measured on CPython 3.11."""
_STALE_SHARE: Final = 8


class QuorumProducer:
    """One producer of a quorum: its own Reassembler, and its votes for blocks that are not decided.

    ``most`` bounds the number of votes.
    """

    def __init__(self, name: str, own: Reassembler, most: int) -> None:
        self.name = name
        self.own = own
        self.votes: dict[bytes, Vote] = {}
        self._most = most
        self._numbers: LazyHeap[int, bytes] = LazyHeap()
        self._lowest: dict[Partition, int] = {}
        self._withdrawn = 0
        self.wanted: Container[bytes] = ()
        """Hashes of blocks that are re-read because the chain needs them: they are evicted last."""

    def open(self, block_hash: bytes) -> OpenBlock | None:
        """Its copy of a block that is not complete."""
        held = self.own.held(block_hash)
        return held if isinstance(held, OpenBlock) else None

    def is_complete(self, block_hash: bytes) -> bool:
        """True while the messages of its complete copy are held."""
        held = self.own.held(block_hash)
        return isinstance(held, RecentBlock) and held.candidate is not None

    def add(self, block_hash: bytes, vote: Vote, head: int) -> list[tuple[bytes, Vote]]:
        """Hold a vote; returns those that are evicted for it, those farthest from the head first."""
        self.votes[block_hash] = vote
        self._numbers.put(block_hash, vote.number)
        self._lowest = lowest(self._lowest, vote.positions)
        if len(self.votes) <= self._most:
            return []
        farthest = sorted(
            self.votes.items(), key=lambda item: (item[0] in self.wanted, -distance(item[1].number, head))
        )
        evicted = farthest[: len(farthest) - self._most * 9 // 10]
        for other, _ in evicted:
            self.withdraw(other)
            self.own.forget(other)
        return evicted

    def withdraw(self, block_hash: bytes) -> None:
        """Remove the vote for a block, if there is one."""
        vote = self.votes.pop(block_hash, None)
        if vote is not None:
            self._numbers.discard(block_hash)
            self._withdrawn += 1

    def pop_below(self, number: int) -> list[tuple[bytes, Vote]]:
        """Remove the votes for blocks with a lower number; returns them, the lowest first."""
        found = [(block_hash, self.votes[block_hash]) for block_hash in self._numbers.pop_below(number)]
        for block_hash, _ in found:
            self.withdraw(block_hash)
        return found

    def positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open copy or a vote still needs, or a lower one."""
        if self._withdrawn * _STALE_SHARE > len(self.votes):
            self._withdrawn = 0
            self._lowest = lowest(*(vote.positions for vote in self.votes.values()))
        return lowest(self._lowest, self.own.open_positions())

    @property
    def fullness(self) -> float:
        """The part of its bounds that is used."""
        return max(self.own.fullness, len(self.votes) / self._most)

    @property
    def held_bytes(self) -> int:
        """Bytes of its copies and votes."""
        positions = sum(len(vote.positions) for vote in self.votes.values())
        return self.own.held_bytes + _VOTE_OVERHEAD * len(self.votes) + _PARTITION_OVERHEAD * positions


@dataclass(slots=True, eq=False)
class Decision(RecentBlock):
    """A block that was delivered, or abandoned where there is a reason; ``agreed`` are the producers that agreed."""

    agreed: Sequence[int] = ()
    digest: bytes = b""


class QuorumReassembler:
    """Blocks under assembly of several producers, ``k`` of which have to agree. It has a Reassembler's methods.

    Arguments:
        producers: the ids of those that count.
        make: makes the Reassembler of one producer, for its share of the bounds. All are alike, and hold values.
        bounds: of all producers together.

    Raises:
        ConfigurationError: ``k`` of these producers cannot agree.

    """

    def __init__(
        self,
        k: int,
        producers: Sequence[str],
        make: Callable[..., Reassembler] = Reassembler,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        check_quorum(k, producers)
        share = bounds.part(len(producers))
        self._producers = [QuorumProducer(name, make(bounds=share), bounds.votes) for name in producers]
        own = self._producers[0].own
        self._evicted = own.evicted
        self._volatile = own.volatile
        self._deadline = own.deadline
        self._threshold = own.threshold
        self._k = k
        self._attribution = Attribution(producers)
        self._decided: RecentBlocks[Decision] = RecentBlocks(2 * self._threshold, 0)
        self._due: LazyHeap[int, bytes] = LazyHeap()
        self._reported: BoundedDict[bytes, None] = BoundedDict(_REPORTED_MAX)
        self._completed = 0
        self._past = 0
        """The chain is past blocks with a lower number."""
        self._head = -1

    # --- records ---------------------------------------------------------------------------------------------

    def receive(self, records: Iterable[Row]) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order.

        Records of one block from one producer that follow one another are taken together. No run holds two blocks: what
        a Reassembler keeps when one is complete must not depend on how records are cut into calls.
        """
        events: list[ReassemblyEvent] = []
        run: list[Row] = []
        last: bytes | None = None
        last_headers: object = None
        index = 0
        for record in records:
            head = record[3][:HASH_END]
            if head != last or record[6] != last_headers:
                if run:
                    self._feed(index, run, events)
                    run, last = [], None
                if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                    events += self._producers[0].own.receive([record])
                    continue
                found = self._attribution.index_of(record, events)
                if found is None:
                    continue
                index, last, last_headers = found, head, record[6]
            run.append(record)
        if run:
            self._feed(index, run, events)
        return events

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had: they complete copies that producers began (rule 6)."""
        events: list[ReassemblyEvent] = []
        for message in messages:
            key = message[1]
            if len(key) >= HASH_END and BATCH < key[0] <= BATCH_DELETE_MSG:
                for index, producer in enumerate(self._producers):
                    if producer.open(key[1:HASH_END]) is not None:
                        self._take(index, producer.own.supply([message]), events)
        return events

    def _feed(self, index: int, run: list[Row], events: list[ReassemblyEvent]) -> None:
        decision = self._decided.get(run[0][3][1:HASH_END])
        if decision is None or decision.agreed:
            self._take(index, self._producers[index].own.receive(run), events)

    def _take(self, index: int, found: Iterable[ReassemblyEvent], events: list[ReassemblyEvent]) -> None:
        """Take what came of one producer's records."""
        for event in found:
            if isinstance(event, Completed):
                self._vote(index, event, events)
            elif isinstance(event, Incomplete):
                number = event.explanation.number
                if number is None or number >= self._past:
                    self._overdue(event.explanation.block, events)
            elif not isinstance(event, Overflow):
                events.append(event)
            elif event.block not in self._decided:
                events.append(replace(event, reason=f"{event.reason}, of producer {self._producers[index].name!r}"))
            else:
                self._evicted.discard(event.block)  # a copy of a decided block is not read again

    # --- votes -----------------------------------------------------------------------------------------------

    def _vote(self, index: int, event: Completed, events: list[ReassemblyEvent]) -> None:
        """A producer's copy is complete."""
        block = event.payload
        vote = vote_of(event, cast("RecentBlock", self._producers[index].own.held(block.hash)), self._volatile)
        decision = self._decided.get(block.hash)
        if decision is not None:
            if vote.digest != decision.digest:
                events += self._differences(block.hash, decision, index, vote)
            return
        before = self._votes(block.hash)
        agreed = [index, *(other for other, one in before.items() if one.digest == vote.digest and other != index)]
        if len(agreed) >= self._k:
            self._decide(event, vote, agreed, events)
        else:
            for other, evicted in self._producers[index].add(block.hash, vote, self._head):
                self._evicted.add(other, {(evicted.parent, evicted.number)}, evicted.positions)
                reason = (
                    f"complete copies that wait for others are over their bound, of {self._producers[index].name!r}"
                )
                events.append(Overflow(other, evicted.number, dict(evicted.positions), reason))
            if vote.number >= self._past and block.hash not in self._due:
                self._due.put(block.hash, self._completed + self._deadline)
        # A late block, or one whose parent is not held, says nothing about deadlines.
        if not before and vote.number >= self._past and (block.parent in self._decided or self._is_held(block.parent)):
            self._completed += 1
            for due in self._due.pop_below(self._completed + 1):
                if self._votes(due):
                    self._overdue(due, events)

    def _decide(self, event: Completed, vote: Vote, agreed: list[int], events: list[ReassemblyEvent]) -> None:
        """Deliver a block on which enough producers agree, the first of them just now."""
        block_hash = event.payload.hash
        votes = self._votes(block_hash)
        opened = (copy.first for producer in self._producers if (copy := producer.open(block_hash)) is not None)
        copies = [vote, *(votes[other] for other in agreed[1:])]
        events.append(
            replace(
                event,
                positions=lowest(event.positions, *(one.positions for one in votes.values()), *opened),
                published_ms=min(one.published_ms for one in copies),
            )
        )
        decision = Decision(vote.number, agreed=agreed, digest=vote.digest)
        self._close(block_hash, decision)
        for other, producer in enumerate(self._producers):
            # A copy that is open is compared when it is complete, or falls below the threshold.
            if other not in agreed and producer.open(block_hash) is None:
                events += self._differences(block_hash, decision, other, votes.get(other))

    def _close(self, block_hash: bytes, decision: Decision) -> None:
        self._decided.add(block_hash, decision)
        for producer in self._producers:
            producer.withdraw(block_hash)
        self._due.discard(block_hash)
        self._reported.pop(block_hash, None)

    def _votes(self, block_hash: bytes) -> dict[int, Vote]:
        """The votes for a block, by producer."""
        found = ((index, producer.votes.get(block_hash)) for index, producer in enumerate(self._producers))
        return {index: vote for index, vote in found if vote is not None}

    def _is_held(self, block_hash: bytes) -> bool:
        """True when an undecided block has a copy, complete or not."""
        return any(
            producer.votes.get(block_hash) is not None or producer.open(block_hash) is not None
            for producer in self._producers
        )

    def _differences(self, block_hash: bytes, kept: Decision, index: int, vote: Vote | None) -> list[ReassemblyEvent]:
        """The differences of a producer's copy from one that counts; one for all where messages are no longer held."""
        mine = self._producers[index].own.held(block_hash)
        owns = (self._producers[other] for other in kept.agreed)
        reference = next((one.own for one in owns if one.is_complete(block_hash)), None)
        found = [] if mine is None or reference is None else reference.compare(block_hash, mine)
        if found or vote is None:
            return found
        # A copy that was supplied completely has no positions.
        (topic, partition), offset = min(vote.positions.items(), default=(("", _SUPPLIED), _SUPPLIED))
        key = block_key(BATCH, block_hash)
        return [Divergence(block_hash, key, kept.digest, vote.digest, (None, (topic, partition, offset)))]

    # --- deadlines -------------------------------------------------------------------------------------------

    def _overdue(self, block_hash: bytes, events: list[ReassemblyEvent]) -> None:
        """Report an undecided block once, after the differences between the complete copies."""
        if block_hash in self._decided or block_hash in self._reported:
            return
        self._reported[block_hash] = None
        votes = self._votes(block_hash)
        agreeing = _largest(votes)
        if agreeing:
            most = Decision(0, agreed=agreeing, digest=votes[agreeing[0]].digest)
            for other in range(len(self._producers)):
                if other not in agreeing:
                    events += self._differences(block_hash, most, other, votes.get(other))
        events.append(Incomplete(self.explain(block_hash)))

    # --- complete and abandoned blocks -----------------------------------------------------------------------

    def abandon(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Abandon an open block, also for copies that come later."""
        if block_hash in self._decided or not self._is_held(block_hash):
            return []
        header, number = self.header_of(block_hash), self.number_of(block_hash)
        for producer in self._producers:
            producer.own.abandon(block_hash, reason)
        self._close(block_hash, Decision(number or 0, reason=reason))
        return [Quarantined(block_hash, None if header is None else header.number, reason, header)]

    def forget(self, block_hash: bytes) -> None:
        """Forget that a block was completed or abandoned: its records, re-read, assemble it again."""
        self._decided.forget(block_hash)
        self._due.discard(block_hash)
        self._reported.pop(block_hash, None)
        for producer in self._producers:
            producer.withdraw(block_hash)
            producer.own.forget(block_hash)

    def reread(self, begin: Mapping[Partition, int], wanted: Container[bytes]) -> None:
        """Note that records are re-read from ``begin`` on, because these blocks are wanted."""
        for producer in self._producers:
            producer.own.reread(begin, wanted)
            producer.wanted = wanted

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """Prune copies below the threshold, and forget old decisions; the chain's head is at ``number``."""
        self._head = number
        self._past = number - self._threshold
        events: list[ReassemblyEvent] = []
        for block_hash, decided in self._decided.head_moved(number):
            # A copy without a Batch has no number of its own: it is pruned with its block.
            for index, producer in enumerate(self._producers):
                if producer.open(block_hash) is not None:
                    events += self._differences(block_hash, decided, index, None)
                    producer.own.abandon(block_hash, "its block was decided")
                    producer.own.forget(block_hash)
        for index, producer in enumerate(self._producers):
            for stale in cast("list[Stale]", producer.own.head_moved(number)):
                decision = self._decided.get(stale.block.hash)
                if decision is None:
                    events.append(replace(stale, producer=producer.name))
                else:
                    events += self._differences(stale.block.hash, decision, index, None)
            for block_hash, vote in producer.pop_below(self._past):
                reason = f"not agreed on {Count(self._threshold, 'block')} below the head"
                events.append(Stale(BlockRef(vote.number, block_hash), reason, producer.name))
        return events

    # --- queries ---------------------------------------------------------------------------------------------

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open copy still needs, or a vote, or a lower one."""
        return lowest(*(producer.positions() for producer in self._producers))

    def open_blocks(self) -> list[bytes]:
        """The hashes of the blocks on which too few agree, those with votes first, then the oldest of each producer."""
        found = dict.fromkeys(block_hash for producer in self._producers for block_hash in producer.votes)
        for producer in self._producers:
            found |= dict.fromkeys(one for one in producer.own.open_blocks() if one not in self._decided)
        return list(found)

    def header_of(self, block_hash: bytes) -> HeaderOnly | None:
        """The header of an open block on which k producers' Batches agree; None where fewer agree."""
        for (number, parent, weight), producers in self._batches(block_hash).items():
            if producers >= self._k:
                return HeaderOnly(number, block_hash, parent, weight)
        return None

    def links_of(self, block_hash: bytes) -> set[Link]:
        """Parent and number by any producer's Batch of an open block."""
        votes = {(vote.parent, vote.number) for vote in self._votes(block_hash).values()}
        return votes.union(*(producer.own.links_of(block_hash) for producer in self._producers))

    def _batches(self, block_hash: bytes) -> Counter[tuple[int, bytes, int]]:
        """Number, parent and weight by the Batches of an undecided block, and the count of producers for each."""
        found: Counter[tuple[int, bytes, int]] = Counter()
        if block_hash not in self._decided:
            for producer in self._producers:
                said = producer.votes.get(block_hash) or producer.own.header_of(block_hash)
                if said is not None:
                    found[said.number, said.parent, said.weight] += 1
        return found

    def number_of(self, block_hash: bytes) -> int | None:
        """The number of a block: before delivery the lowest of any producer's Batch; None without a Batch."""
        decision = self._decided.get(block_hash)
        if decision is not None:
            return decision.number
        return min((number for number, _, _ in self._batches(block_hash)), default=None)

    @property
    def undecided(self) -> int:
        """The complete copies on which too few producers agree, of the producer with the most."""
        return max(len(producer.votes) for producer in self._producers)

    @property
    def fullness(self) -> float:
        """The part of its share that the fullest producer has used."""
        return max(producer.fullness for producer in self._producers)

    @property
    def held_bytes(self) -> int:
        """Bytes of all copies and votes."""
        return sum(producer.held_bytes for producer in self._producers)

    def explain(self, block_hash: bytes) -> Explanation:
        """The state of a block and what it lacks; the reason has the state of every producer's copy."""
        copies = [producer.own.explain(block_hash) for producer in self._producers]
        decision = self._decided.get(block_hash)
        if decision is not None:
            others = [(at, copy) for at, copy in enumerate(copies) if at not in decision.agreed]
            said = [f"the copy of {self._names([at])} is {one.state}" for at, one in others if one.state != "unknown"]
            agreed = "; ".join([f"agreed on by {self._names(decision.agreed)}", *said])
            state = "abandoned" if decision.reason else "complete"
            return Explanation(block_hash, decision.number, state, reason=decision.reason or agreed)
        if self._is_held(block_hash):
            return self._explain_open(block_hash, copies)
        abandoned = any(copy.state == "abandoned" for copy in copies)
        return Explanation(block_hash, None, "abandoned" if abandoned else "unknown")

    def _explain_open(self, block_hash: bytes, copies: list[Explanation]) -> Explanation:
        """Missing messages of all open copies; the reason has the state of every producer's copy."""
        votes, header = self._votes(block_hash), self.header_of(block_hash)
        agreeing = _largest(votes)
        by_whom = f" ({self._names(agreeing)})" if agreeing else ""
        said = [f"{len(agreeing)} of {self._k} producers agree{by_whom}"]
        counts: Counter[str] = Counter()
        headers: set[bytes] = set()
        parts: dict[bytes, set[int]] = {}
        for at, copy in enumerate(copies):
            what = "supplied nothing" if copy.state == "unknown" else f"supplied what is {copy.state}"
            if copy.state == "open":
                what = copy.lacks
                counts |= Counter(copy.missing_counts)
                headers.update(copy.missing_headers)
                for batch_id, indexes in copy.missing_parts.items():
                    parts.setdefault(batch_id, set()).update(indexes)
            if at not in agreeing:
                said.append(f"{self._names([at])} {'supplied another block' if at in votes else what}")
        return Explanation(
            block_hash,
            None if header is None else header.number,
            "open",
            missing_batch=header is None,
            missing_counts=counts,
            missing_headers=tuple(sorted(headers)),
            missing_parts={batch_id: tuple(sorted(indexes)) for batch_id, indexes in parts.items()},
            positions=lowest(*(copy.positions for copy in copies), *(vote.positions for vote in votes.values())),
            reason="; ".join(said),
        )

    def _names(self, indexes: Sequence[int]) -> str:
        return ", ".join(repr(self._producers[index].name) for index in sorted(indexes))


Assembler: TypeAlias = Reassembler | QuorumReassembler
"""An assembler of blocks out of records, by policy ``first`` or ``quorum:k``."""


def _largest(votes: Mapping[int, Vote]) -> tuple[int, ...]:
    """The producers of the largest group that agrees; of several groups the first one."""
    groups: dict[bytes, list[int]] = {}
    for index, vote in votes.items():
        groups.setdefault(vote.digest, []).append(index)
    found: list[int] = max(groups.values(), key=len, default=[])
    return tuple(found)
