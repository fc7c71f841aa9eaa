"""A consumer without its transport: records in, chain updates and reports out.

It joins an Assembler, an Orderer and :class:`~.reorg_channels.Reorgs`, and keeps what a
cursor needs (:mod:`.whereabouts`). It is pure; whoever drives it reads records and says where the reading stands.

Rules for the driver:

1. ``receive`` takes records in any order across partitions, in order within each.
2. ``progress`` is called after every read with the position of every partition; with the high watermarks while the
   stream is not caught up, and with newly taken ones whenever ``wants_ends`` is true.
3. Between two calls of ``progress`` the driver begins to read the topics that ``channels`` names, from their
   beginning or from where the cursor says, and drops the channels that it names no longer. A channel that the
   positions leave out counts as one that is not there.
4. Where ``wants_history`` names a number, older Batches of the default topic are looked up, of the chain from
   ``orderer.lowest`` down to that number. This may take many steps; then all that was found, or nothing, goes to
   ``recall``. No channel that needs it is given up before.
5. What :class:`~.events.Incomplete` reports may be read again (``reread``, then ``receive``) or supplied (``supply``).

Resumed from a cursor (``begin_at`` says where to read), it delivers nothing that the cursor's ring holds, and judges
nothing until every partition has passed the cursor's ``next``. A partition that is gone holds nothing up: what was
only there is delivered, where it has to be removed, as :class:`~.payload.MissingPayload`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import (
    ChainUpdate,
    Completed,
    Event,
    Incomplete,
    Overflow,
    Quarantined,
    ReorgBegan,
    Stale,
    Superseded,
)
from cardinal.protocols.streams.ordering.orderer import Past
from cardinal.protocols.streams.ordering.patience import Patience
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.types import Partition, Record, Routed, Row, short

from .missing import Gaps
from .opening import Opening
from .parts import assembler_of, orderer_of, reorgs_of
from .reorg_channels import Graft, Outcome
from .rest import Rest
from .resume import begin_at, check, left, refuse_other, refuse_shorter, whole, without
from .settings import FollowerSettings, OnIncomplete
from .whereabouts import Whereabouts

__all__ = ["Follower", "FollowerSettings", "OnIncomplete"]

Out: TypeAlias = list[ChainUpdate | Event]

_NOT_HELD: Final = frozenset({"unknown", "dropped"})


class Follower:
    """See the module. ``cursor`` resumes where an earlier follower with equal settings stood.

    Raises:
        CursorMismatchError: the cursor is of another lineage, or the whitelist forbids what it delivered.

    """

    def __init__(self, settings: FollowerSettings, cursor: Cursor | None = None) -> None:
        self._settings = settings
        self._cursor = cursor
        self._whole = False
        self._resume: dict[Partition, int] = {}
        self._reread: tuple[str, ...] = ()
        self._later: list[Event] = []
        self._patience = Patience(settings.reorg_threshold) if settings.patient else None
        self._ends: Mapping[Partition, int] = {}
        self._completed = 0
        self._gaps = Gaps(settings.reorg_threshold, settings.max_waiting // 2, settings.max_bytes // 4)
        self.reassembler = assembler_of(settings)
        self._rest = Rest(self.reassembler, self._gaps)
        self.orderer = orderer_of(settings)
        self.opening = Opening(self.orderer, settings.reorg_threshold)
        self._reorgs = reorgs_of(settings, self.orderer)
        self._where = Whereabouts(settings, self.reassembler, self.orderer, self._reorgs)
        if cursor is not None:
            self._restore(cursor)
        # Above a given start whatever waits shows that something is lacking, the first block itself at first.
        self._judging = settings.start is not None and not self._resume

    def _restore(self, cursor: Cursor) -> None:
        if cursor.ring:
            past = Past(cursor.start, cursor.finality, cursor.violation, cursor.missing, cursor.root)
            self.orderer.resume(cursor.ring, cursor.weight, cursor.seq, past)
            self._resume = dict(cursor.next)
            self.reassembler.head_moved(cursor.ring[0].number)  # nothing is open yet: what comes below is known as old
        check(self._settings, cursor)
        self._where.restore(cursor)
        ring = {short(ref.hash) for ref in cursor.ring if ref.hash not in cursor.missing}
        self.reassembler.ignore(cursor.done - ring - cursor.open)
        for ancestor in cursor.channels:
            self._reorgs.announced(ancestor)
        topics = sorted({topic for topic, _ in cursor.next if self._reorgs.is_channel(topic)})
        self._reread = tuple(topic for topic in topics if topic not in self._reorgs.topics())

    # --- what the driver should do ---------------------------------------------------------------------------

    def begin_at(self, marks: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Where to read every partition from.

        Arguments:
            marks: for every partition the lowest offset that is kept, and the one after the highest.

        Raises:
            CursorExpiredError: records are gone that were not read yet; ``missing`` says which.

        """
        if self._cursor is None:
            return {partition: low for partition, (low, _) in marks.items()}
        begin = begin_at(self._cursor, marks, self._reorgs.is_channel)
        self._whole = whole(self._cursor, marks)
        if away := left(self._cursor, marks, self._reorgs.is_channel):
            self._cursor = without(self._cursor, away)
            self._where.restore(self._cursor)
            self._resume = {place: at for place, at in self._resume.items() if place not in away}
        return begin

    def channels(self) -> tuple[str, ...]:
        """The topics of reorg channels to read now, beside the application's topics."""
        return (*self._reorgs.topics(), *self._reread)

    @property
    def wants_ends(self) -> bool:
        """Whether the driver should take new watermarks and give them to the next :meth:`progress`."""
        skips = self._settings.on_incomplete is OnIncomplete.SKIP
        return (skips and self._gaps.wants_ends) or self._reorgs.wants_ends(self._completed)

    @property
    def wants_history(self) -> int | None:
        """A reorg channel's ancestor lies deeper than the delivered chain is remembered: its number; None if not."""
        return self._reorgs.wants_history

    @property
    def resuming(self) -> bool:
        """Whether what was delivered before is still being read again."""
        return bool(self._resume)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at opening has been read."""
        return self.opening.is_read

    @property
    def in_doubt(self) -> bool:
        """Whether everything was read and the stream has not begun, because blocks below its start may still come.

        A driver to which nothing comes any more says so (:meth:`settle`).
        """
        return self._patience is not None and self.caught_up and self.orderer.may_begin

    @property
    def about_to_begin(self) -> bool:
        """Whether blocks are complete, and the stream has not begun with any of them yet."""
        return self._completed > 0 and self.orderer.head is None

    def settle(self) -> None:
        """Nothing comes any more: begin at the next :meth:`progress` with what is there."""
        if self._patience is not None:
            self._patience.exhausted = True

    def not_caught_up(self) -> None:
        """The driver has looked at the watermarks again."""
        self.opening.look_again()

    # --- driving ---------------------------------------------------------------------------------------------

    def receive(self, records: Iterable[Row]) -> Out:
        """Take records; returns updates and reports in the order in which they came about."""
        out: Out = []
        records = records if isinstance(records, Sequence) else list(records)
        self._where.read(len(records))
        if self._patience is not None:
            self._patience.read(records)
        if records:
            self._rest.stirred()
        if not self._reorgs.used or not any(map(self._reorgs.is_channel, {record[0] for record in records})):
            self._events(self.reassembler.receive(records), out)
            return out
        for topic, run in groupby(records, key=self._channel_of):
            if topic:
                found = list(map(Record._make, run))
                # The driver may drop the channel in this step.
                self._where.at({record[:2]: record.offset + 1 for record in found})
                self._outcomes(self._reorgs.receive(found), out)
            else:
                self._events(self.reassembler.receive(run), out)
        return out

    def _channel_of(self, record: Row) -> str:
        """The channel that a record belongs to; none for one that only holds content of delivered blocks."""
        topic = record[0]
        return topic if self._reorgs.is_channel(topic) and topic not in self._reread else ""

    def supply(self, messages: Iterable[Routed]) -> Out:
        """Take messages that a node or an archive had: they count where no topic brought a copy."""
        out: Out = []
        self._rest.stirred()
        self._events(self.reassembler.supply(messages), out)
        return out

    def reread(self, block_hash: bytes) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped; returns where its messages begin, None where that is not known.

        The driver reads from there, and gives what it finds to :meth:`receive` as well.
        """
        self._rest.stirred()
        known = self._gaps.reread(block_hash)
        found = self.reassembler.reread(block_hash, known)
        self._where.reread()
        return known if known is not None else found

    def recall(self, parents: Mapping[bytes, bytes]) -> Out:
        """Learn more of the delivered chain: what was asked for by :attr:`wants_history` is looked up, or cannot be.

        Arguments:
            parents: hash to parent hash, as older Batches of the default topic say (:class:`~.history.Parents`).

        """
        out: Out = []
        self._outcomes(self._reorgs.recalled(parents), out)
        return out

    def progress(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None = None, *, at_rest: bool = False
    ) -> Out:
        """Say where the reading stands.

        Arguments:
            positions: the next offset of every partition.
            ends: the offsets at which every partition ended: when the stream was opened, again when the first
                Batch was seen, and newly taken where :attr:`wants_ends` is true; None when not known.
            at_rest: nothing has come for a while, of any kind: no block is to be counted on any more.

        Raises:
            CursorExpiredError: a partition ends before the cursor's position, or holds nothing of what was delivered:
                its topic was made anew.

        """
        out: Out = []
        self._where.at(positions)
        if not self._resume and self._later:
            # A step later, so that the driver drops the channel and begins anew.
            later, self._later = self._later, []
            self._events(later, out)
        if self._resume:
            self._go_on_resuming(positions, ends, out)
        # Those of the opening prove nothing of what was read beyond them: it may have been written since.
        fresh = ends if self.caught_up else None
        self.opening.progress(positions, ends)
        self._begin(positions, ends, out)
        self._look_for_gaps(positions, fresh, out, at_rest=at_rest)
        waits = self.resuming or not self.caught_up
        self._outcomes(self._reorgs.progress(self._completed, positions, fresh, patient=waits), out)
        self._where.step_ends()
        return out

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, how it stands to the chain, or what became of it."""
        explanation = self.reassembler.explain(block_hash)
        standing = self.orderer.standing(block_hash)
        if self._reorgs.holds(block_hash):
            standing = standing or "complete, in a reorg channel"
        return explanation if standing is None else replace(explanation, state=standing)

    @property
    def lineage(self) -> bytes:
        """What ``seq`` belongs to: the options, and the first block of the stream once it is known."""
        return self._where.lineage

    def cursor(self) -> Cursor:
        """Where the follower stands now."""
        return self._where.cursor()

    # --- inside ----------------------------------------------------------------------------------------------

    def _begin(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None, out: Out) -> None:
        """Choose the start when it is time to; asked again until there is a block to start with."""
        if self._patience is None:
            if self.caught_up:
                self._order(self.orderer.caught_up(), out)
            return
        self._ends = self._ends if ends is None else ends
        dropped = self.reassembler.recovers
        if not self._patience.looks(caught_up=self.caught_up, dropped=dropped):
            return
        candidate = self.orderer.candidate()
        if candidate is not None and self._patience.begins(
            candidate,
            self.reassembler.lowest_open,
            positions,
            self._ends,
            caught_up=self.caught_up,
            crowded=self.orderer.crowded,
            dropped=dropped,
        ):
            self._order(self.orderer.begin(candidate.start), out)
        if self.orderer.head is not None:
            self._patience = None

    def _events(self, events: Iterable[Event], out: Out) -> None:
        for event in events:
            if isinstance(event, Completed):
                self._complete(event, out)
                continue
            out.append(event)
            if isinstance(event, Superseded):
                self._where.superseded(event.block)
                self.orderer.doubt(event.block)
            elif isinstance(event, Incomplete) and event.explanation.state == "open":
                block = event.explanation.block
                self._gaps.overdue(block, awaited=self.orderer.awaited(block))
            elif isinstance(event, Quarantined | Overflow):
                self._gone(event)
            elif isinstance(event, Stale):
                self._gaps.settled(event.block.hash)
                if event.producer is None:
                    self._where.finished(event.block.number, event.block.hash)
            elif isinstance(event, ReorgBegan) and event.position[0] == self._settings.default_topic:
                self._announced(event, out)

    def _gone(self, event: Quarantined | Overflow) -> None:
        """A block is under assembly no longer.

        Of one without a number that is given up too few producers told: others may send it, after a restart too. Where
        a block was dropped that others wait for, with its Batch or without, nothing else will show that it is lacking.
        """
        self._gaps.settled(event.block)
        if isinstance(event, Quarantined):
            if event.number is not None:
                self._where.finished(event.number, event.block)
        elif self.orderer.awaited(event.block):
            self._gaps.awaited(event.block, event.number)

    def _announced(self, event: ReorgBegan, out: Out) -> None:
        """Open a channel, or later where a part of it is being read again as content of delivered blocks."""
        if reorg_topic(event.position[0], event.ancestor.hash) not in self._reread:
            self._outcomes(self._reorgs.announced(event.ancestor), out)
        elif event.position[2] >= self._resume.get(event.position[:2], 0):
            self._later.append(event)  # else it was announced before, and the switch was made

    def _outcomes(self, outcomes: Iterable[Outcome], out: Out) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Graft):
                self._where.completed(*outcome.blocks)
                updates = self.orderer.graft(outcome.ancestor, outcome.blocks)
                self._order(updates, out, *(block.payload.hash for block in outcome.blocks))
            else:
                out.append(outcome)

    def _complete(self, event: Completed, out: Out) -> None:
        block = event.payload
        self._completed += 1
        if self._patience is not None:
            self._patience.completed(block.hash, event.published_ms)
        self._gaps.completed(block.hash)
        self._rest.completed(block.hash)
        self._where.completed(event)
        updates = self.orderer.receive(event)
        if self._judging and self.orderer.waits(block.hash) and self.orderer.awaited(block.parent):
            self._gaps.awaited(block.parent, block.number - 1)
        self._order(updates, out, block.hash)

    def _order(self, updates: Sequence[ChainUpdate], out: Out, *taken: bytes) -> None:
        """Give out updates, after these blocks were given to the orderer; it may hold them or not."""
        for update in updates:
            self._rest.stirred()
            ring, make = self._where.delivered(update)
            self._events(self.reassembler.head_moved(ring[-1].ref.number), out)
            out.append(update.with_cursor(make))
            self.opening.delivered(len(update.added))
            for block in update.added:
                self._rest.delivered(block.hash)
                out += map(Incomplete, self._gaps.delivered(block.hash))
        let_go: list[Explanation] = []
        for ref, parent, size in self.orderer.take_evicted():
            self._rest.stirred()
            let_go.append(Explanation(ref.hash, ref.number, "dropped", positions=self._where.places(ref.hash)))
            self._gaps.let_go(parent, let_go[-1], size)
        self._where.released(self.orderer.take_released())
        for floor, block_hash in self.orderer.take_cut():
            self._where.cut(floor, block_hash)
        self._where.released(block_hash for block_hash in taken if not self.orderer.holds(block_hash))
        self._where.let_go(let_go)
        out += self.orderer.take_events()
        if updates:
            self._outcomes(self._reorgs.judge(), out)
            self._begin_judging()

    def _begin_judging(self) -> None:
        """From now on a block that waits shows that its parent is lacking."""
        if not self._judging:
            self._judging = True
            for parent, number in self.orderer.orphans():
                self._gaps.awaited(parent, number)

    def _go_on_resuming(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None, out: Out
    ) -> None:
        """Judge as soon as what was delivered before is read again, or can no longer be read."""
        refuse_shorter(self._resume, ends or {})
        if any(positions.get(partition, end) < end for partition, end in self._resume.items()):
            return
        if self._whole and self._cursor is not None:
            refuse_other(self._cursor, lambda block: self.reassembler.explain(block).state != "unknown")
        self._resume, self._reread = {}, ()
        self._where.resumed()
        self._order(self.orderer.release(), out)
        self._begin_judging()
        self._outcomes(self._reorgs.judge(), out)

    def _look_for_gaps(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None, out: Out, *, at_rest: bool
    ) -> None:
        if at_rest and (self._gaps.open_ended or self._patience is not None):
            out += map(Incomplete, self._rest.due(self._completed))
        for block_hash, number in self._gaps.unseen():
            if not self.orderer.awaited(block_hash):
                continue
            lacking = self._lacking(block_hash)
            if lacking.state in _NOT_HELD:
                known = lacking.number if number is None else number
                out.append(Incomplete(replace(lacking, number=known, missing_batch=lacking.state == "unknown")))
            else:  # it was whole, and let go
                out += map(Incomplete, self._gaps.lowest_let_go())
        if self._settings.on_incomplete is OnIncomplete.SKIP:
            for block_hash in self._gaps.progress(positions, ends):
                self._give_up(block_hash, out)
            return
        for block_hash in self._gaps.due():
            self._gaps.again(block_hash)
            if self.reassembler.dropped(block_hash):
                out.append(Incomplete(self._lacking(block_hash)))

    def _lacking(self, block_hash: bytes) -> Explanation:
        """What a block lacks; dropped is also one of which, under a quorum, other producers' copies are held."""
        lacking = self.reassembler.explain(block_hash)
        return replace(lacking, state="dropped") if self.reassembler.dropped(block_hash) else lacking

    def _give_up(self, block_hash: bytes, out: Out) -> None:
        """Pass over a block that is provably lost, where what its Batch says leads on.

        The proof says nothing of what was read and dropped: that is read again first.
        """
        explanation = self._lacking(block_hash)
        if explanation.state == "dropped" and (explanation.missing_batch or self._gaps.retries(block_hash)):
            self._gaps.again(block_hash)
            out.append(Incomplete(explanation))
            return
        if explanation.missing_batch:
            self._gaps.again(block_hash)
            return
        events = self.reassembler.give_up(block_hash, "its messages are not on the topics")
        out += events
        for header in [event.header for event in events if isinstance(event, Quarantined) and event.header]:
            self._gaps.settled(block_hash)
            self._where.bridged(header, explanation.positions)
            updates = self.orderer.bridge(header)
            if self.orderer.waits(block_hash) and self.orderer.awaited(header.parent):
                self._gaps.awaited(header.parent, header.number - 1)
            self._order(updates, out, block_hash)
