"""A consumer without its transport: records in, chain updates and reports out. No clock, no reading.

A step takes the records read and the reader's positions, and returns everything that came of it. A record goes from
the assembler (complete blocks) to the orderer (updates); what is missing, what was evicted and which channels are open
is queried afterwards. The driver reads from where ``begin_at`` says, calls ``step`` after every read, and does what its
:class:`Requests` name before the next one.

Resumed from a cursor it delivers nothing that the cursor's ring holds, and judges nothing until every partition has
passed the cursor's ``next``: until then complete blocks are collected, and then the orderer is restored with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

from cardinal.protocols.streams.assembly.digests import HeaderOnly
from cardinal.protocols.streams.assembly.evicted import EvictedBlock, EvictedBlocks, Link
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.cursor import CHANNELS_MAX, Cursor
from cardinal.protocols.streams.events import (
    BeganAbove,
    ChainUpdate,
    Completed,
    Event,
    Explanation,
    Incomplete,
    Overflow,
    ReorgBegan,
    Stale,
    Superseded,
    reorg_at,
)
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.ordering.orderer import PRUNED, REMOVED, Orderer
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.quorum.attribution import parse_policy
from cardinal.protocols.streams.quorum.reassembler import Assembler, QuorumReassembler
from cardinal.protocols.streams.types import BlockRef, Partition, Record, Routed, Row, lowest, short

from .cursors import CursorSnapshot, DeliveredChain
from .missing import MissingBlocks
from .reorg_channels import ChannelEvent, Graft, ReorgChannels
from .resume import Resume
from .rewind import Rewind
from .settings import FollowerSettings, OnIncomplete
from .start_wait import StartWait

__all__ = ["Follower", "FollowerSettings", "OnIncomplete", "Requests", "Step"]

Out: TypeAlias = list[ChainUpdate | Event]

_OPEN_MAX: Final = 64
"""Open blocks that a cursor names."""
_LOOK_BLOCKS: Final = 256
"""Held blocks up to which all of them are scanned in every step that brings records."""
_LOOK_RECORDS: Final = 8
"""Records read between two scans for each held block above these: a scan costs 0.45 µs a block."""
AGE_MAX: Final = 1_000_000
"""Offsets behind its partition's position after which a block that waits for its parent holds no cursor back."""
_REMEMBERED: Final = 4_096
"""Blocks delivered without content, or whose content may differ when re-read, until the chain has taken them."""
_LACKING: Final = frozenset({"open", "unknown"})


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to the driver, to fulfil before the next step.

    Attributes:
        watermarks: take new watermarks, unless a request is in flight, and pass them to a later step.
        rewind: re-read these partitions from these offsets on.
        channels: topics of reorg channels to read alongside the stream, from the cursor's offsets or from their start,
            and no others. One that the positions leave out counts as absent.
        history: look up older Batches, of the chain from ``orderer.history.lowest`` down to this number, in any number
            of steps; then pass the result, possibly nothing, to :meth:`Follower.recall`.

    """

    watermarks: bool = False
    rewind: Mapping[Partition, int] | None = None
    channels: tuple[str, ...] = ()
    history: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a step: updates and reports in the order in which they came about, and requests to the driver."""

    items: Sequence[ChainUpdate | Event]
    requests: Requests

    @property
    def updates(self) -> list[ChainUpdate]:
        """The updates."""
        return [item for item in self.items if isinstance(item, ChainUpdate)]

    @property
    def reports(self) -> list[Event]:
        """Everything that is not an update."""
        return [item for item in self.items if not isinstance(item, ChainUpdate)]


class Follower:
    """Consumer of one stream. ``cursor`` resumes where an earlier follower with equal settings stopped.

    Raises:
        CursorMismatchError: the cursor is of another lineage, or the whitelist forbids what it delivered.

    """

    def __init__(self, settings: FollowerSettings, cursor: Cursor | None = None) -> None:
        self._settings = settings
        self._evicted = EvictedBlocks(settings.bounds.headless_distance)
        self.reassembler = assembler_of(settings, evicted=self._evicted)
        self.orderer = Orderer(
            settings.start, settings.start_weight, settings.reorg_threshold, settings.whitelist, settings
        )
        self._channels = ReorgChannels(settings, self.orderer, partial(assembler_of, settings, CHANNELS_MAX))
        self._missing = MissingBlocks()
        self._rewind = Rewind(self._evicted, settings.bounds.headless_distance)
        self._chain = DeliveredChain(settings, self.orderer, self._channels.is_channel)
        self._start = StartWait(settings.reorg_threshold) if settings.patient else None
        self._partial: BoundedDict[bytes, None] = BoundedDict(_REMEMBERED)
        self._bridged: BoundedDict[bytes, int] = BoundedDict(_REMEMBERED)
        self._watermarks: Mapping[Partition, int] | None = None
        self._seen_batch = self._caught_up = False
        self._waiting_at_opening: list[BlockRef] | None = None
        """Blocks that waited for their parents when everything was read; None before."""
        self._needed: tuple[Mapping[Partition, int], frozenset[bytes]] = {}, frozenset()
        self._look_at = 0
        self._snapshot_now = CursorSnapshot({}, frozenset(), ())
        self._needs_rewind = False
        cursor = cursor or Cursor(settings.fingerprint(), settings.app, settings.chain, 0, (), 0)
        self.orderer.admission.check_delivered(cursor.ring)
        self._resume = Resume(settings, cursor, self._channels.is_channel)
        self._chain.restore(cursor)
        self._next = dict(cursor.next)
        self._positions = dict(cursor.floor)
        for ancestor in cursor.channels:
            self._channels.announced(ancestor)
        topics = {topic for topic, _ in cursor.next if self._channels.is_channel(topic)}
        self._resume.channels = tuple(sorted(topics.difference(self._channels.topics())))
        # Above a configured start a block that waits shows that another is missing, the first block itself at first.
        self._judging = settings.start is not None and not cursor.ring
        if self._head_number >= 0:
            self.reassembler.head_moved(self._head_number)

    # --- queries -----------------------------------------------------------------------------------------------

    @property
    def resuming(self) -> bool:
        """True while blocks that were delivered before are re-read."""
        return self._resume.active

    @property
    def caught_up(self) -> bool:
        """True once everything that was on the topics at opening has been read."""
        return self._caught_up

    @property
    def rewinding(self) -> bool:
        """True while evicted blocks are being re-read, or are going to be."""
        return self._rewind.in_progress or (not self._rewind.in_vain and self._evicted.any(self._needs))

    @property
    def in_doubt(self) -> bool:
        """True when everything was read and the stream has not begun: blocks below its start may still come."""
        return self._start is not None and self._caught_up and self._missing.completed > 0

    @property
    def about_to_begin(self) -> bool:
        """True while blocks are complete, and the stream has not begun with any of them yet."""
        return self._missing.completed > 0 and self.head is None

    @property
    def leaves_blocks(self) -> bool:
        """True while complete blocks above the head that were on the topics at opening wait for their parents.

        Blocks that came later never count: a block that overtakes its parent changes nothing.
        """
        left, head = self._waiting_at_opening or [], self._head_number
        while left and not (left[-1].number > head and self.orderer.waits(left[-1].hash)):
            left.pop()
        return bool(left)

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        return self._chain.head

    @property
    def fullness(self) -> float:
        """The part of the capacity for open and for waiting blocks that is used, 0 to 1."""
        return max(self.reassembler.fullness, self.orderer.fullness)

    @property
    def channels(self) -> tuple[str, ...]:
        """The topics of reorg channels to read now, in addition to the application's topics."""
        return (*self._channels.topics(), *(self._resume.channels if self.resuming else ()))

    def explain(self, block_hash: bytes) -> Explanation:
        """The state of a block: what it waits for, its relation to the chain, or what became of it."""
        explanation = self.reassembler.explain(block_hash)
        state = self.orderer.state_of(block_hash)
        if self.resuming and any(ref.hash == block_hash for ref in self._resume.cursor.ring):
            state = "delivered"
        if self._channels.holds(block_hash):
            state = state or "complete, in a reorg channel"
        if state is None and explanation.state == "unknown" and (evicted := self._evicted.get(block_hash)) is not None:
            return replace(explanation, state="evicted", number=None if evicted.lowest < 0 else evicted.lowest)
        if state is None:
            return explanation
        number = self.orderer.removed_at(block_hash)
        if number is None:
            return replace(explanation, state=state)
        return replace(explanation, state=REMOVED, reason=reorg_at(number))  # says more than that it was pruned

    def awaited(self) -> list[Explanation]:
        """The blocks that the chain waits for, lowest first: parents of complete blocks, open blocks above the head."""
        orphans = {parent: replace(self.explain(parent), number=number) for parent, number in self.orderer.orphans()}
        above = (header.hash for header in self._open_headers() if header.number > self._head_number)
        found = {block_hash: self.explain(block_hash) for block_hash in above} | orphans
        awaited = [one for one in found.values() if not (self.orderer.state_of(one.block) or "").startswith(PRUNED)]
        return sorted(awaited, key=lambda one: (-1 if one.number is None else one.number, one.block))

    def cursor(self) -> Cursor:
        """The cursor of the current position."""
        if self.resuming:
            return self._resume.cursor
        update = ChainUpdate(self.orderer.seq, (), (), self.orderer.finality)
        self._look_at = 0
        snapshot = self._snapshot()
        snapshot.next = dict(self._next)
        return self._chain.cursor(update, self._chain.ring(), self.orderer.violation, snapshot)

    # --- driving -----------------------------------------------------------------------------------------------

    def begin_at(self, watermarks: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """The offset from which to read every partition.

        ``watermarks``: the lowest retained offset, and the one after the highest. CursorExpiredError where records
        expired that were not read yet; ``missing`` names them.
        """
        self._watermarks = {partition: high for partition, (_, high) in watermarks.items()}
        begin = self._resume.begin_at(watermarks)
        self._next = dict(self._resume.cursor.next)
        self._positions = dict(begin)
        return begin

    def step(
        self,
        records: Iterable[Row],
        positions: Mapping[Partition, int],
        watermarks: Mapping[Partition, int] | None = None,
        *,
        beyond: Mapping[Partition, int] | None = None,
        waited: bool = False,
        may_abandon: bool = True,
    ) -> Step:
        """Take the records that were read.

        Arguments:
            records: rows or records, in order within each partition.
            positions: the next offset of every partition that is read, after these records.
            watermarks: watermarks that were requested after a step that wanted them.
            beyond: ends of partitions that may lie above these, where a message that nobody can read yet may be: behind
                an open transaction. Only what lies nowhere below them is absent.
            waited: whether nothing came for long, or blocks below the start were waited for long enough.
            may_abandon: whether blocks that are proven absent may be abandoned now: not while their messages are
                requested from a node or an archive.

        Raises:
            CursorExpiredError: a partition ends before the cursor's position, or holds nothing of what was delivered:
                its topic was recreated.

        """
        out: Out = []
        records = records if isinstance(records, Sequence) else list(records)
        snapshot = self._begin_step(records, positions)
        self._receive(records, out)
        self._end_resume(positions, watermarks, out)
        self._check_caught_up(positions, watermarks)
        self._begin_stream(positions, out, waited=waited)
        if self._waiting_at_opening is None and self._caught_up and not self.resuming:
            self._waiting_at_opening = self.orderer.waiting()
        # While resuming nothing is judged: re-read records may belong to blocks that were delivered long ago.
        proof = watermarks if watermarks is None or beyond is None else {**watermarks, **beyond}
        for block_hash in () if self.resuming else self._missing.proven(positions, proof):
            self._judge_absent(block_hash, out, may_abandon=may_abandon)
        self._evicted.read(len(records))
        if self._rewind.is_back(positions):
            self._rewind.judge()
            self.reassembler.reread({}, ())
        waits = self.resuming or not self._caught_up
        self._channel_events(self._channels.progress(self._missing.completed, positions, proof, patient=waits), out)
        return self._end_step(snapshot, out, self._rewound(positions, at_rest=not records, waited=waited))

    def supply(self, messages: Iterable[Routed]) -> Step:
        """Take messages from a node or an archive: they count where no topic has a copy."""
        out: Out = []
        snapshot = self._begin_step((), self._positions)
        self._events(self.reassembler.supply(messages), out)
        return self._end_step(snapshot, out)

    def recall(self, parents: Mapping[bytes, bytes]) -> Step:
        """Take the result of a look-up for :attr:`Requests.history`: hash to parent hash, of older Batches."""
        out: Out = []
        snapshot = self._begin_step((), self._positions)
        self._channel_events(self._channels.recalled(parents), out)
        return self._end_step(snapshot, out)

    # --- a step ------------------------------------------------------------------------------------------------

    def _begin_step(self, records: Sequence[Row], positions: Mapping[Partition, int]) -> CursorSnapshot:
        """Take the snapshot, and then note the reader's positions."""
        if not self._next.keys() >= positions.keys():
            # A partition that is read for the first time begins with these records.
            for record in records:
                self._positions.setdefault((record[0], record[1]), record[2])
            for partition, offset in positions.items():
                self._positions.setdefault(partition, offset)
            self._look_at = 0
        snapshot = self._snapshot()
        self._positions = dict(positions)
        for partition, offset in positions.items():
            if offset > self._next.get(partition, -1):
                self._next[partition] = offset
        snapshot.next = dict(self._next)
        self._snapshot_now = snapshot
        return snapshot

    def _snapshot(self) -> CursorSnapshot:
        """The snapshot of what resuming needs now."""
        if self.resuming:
            return CursorSnapshot(self._resume.cursor.floor, self._resume.cursor.open, self._channels.open())
        if self._evicted.records >= self._look_at:
            self._look_at = self._evicted.records + 1 + max(0, self._look_at_blocks() - _LOOK_BLOCKS) * _LOOK_RECORDS
        floor, names = self._needed
        return CursorSnapshot(lowest(floor, self._channels.positions()), names, self._channels.open())

    def _look_at_blocks(self) -> int:
        """Find the lowest offset of any held or evicted block, and the names of open ones; returns their number.

        The result stays safe for a while, as a block that was opened since begins at the reader's position then, or
        above. Large numbers of blocks are scanned less often.
        """
        opened = self.reassembler.open_blocks()
        self._evicted.head_moved(self._head_number - self._settings.reorg_threshold)
        now, held = self._positions, self.orderer.positions()
        needed = (
            {tp: at for tp, at in first.items() if now.get(tp, at) - at <= AGE_MAX} if waits else first
            for first, waits in held
        )
        floor = lowest(now, self.reassembler.open_positions(), self._evicted.floor(now), *needed)
        # A quiet suspect stays quiet after the next restart: what is named there is reported.
        named = [block_hash for block_hash in opened if not self._missing.is_quiet(block_hash)]
        self._needed = floor, frozenset(map(short, named[:_OPEN_MAX]))
        return len(held) + len(opened) + len(self._evicted)

    def _end_step(self, snapshot: CursorSnapshot, out: Out, rewind: Mapping[Partition, int] | None = None) -> Step:
        snapshot.channels = tuple(dict.fromkeys((*snapshot.channels, *self._channels.open())))[:CHANNELS_MAX]
        watermarks = (
            self._missing.needs_watermarks
            or self._watermarks is None
            or self._channels.needs_watermarks(self._missing.completed)
        )
        return Step(out, Requests(watermarks, rewind, self.channels, self._channels.needs_history))

    def _receive(self, records: Sequence[Row], out: Out) -> None:
        if self._start is not None:
            self._start.read(records)
        if not self._channels.used or not any(map(self._channels.is_channel, {record[0] for record in records})):
            self._events(self.reassembler.receive(records), out)
            return
        for topic, run in groupby(records, key=self._channel_of):
            if topic:
                self._channel_events(self._channels.receive(map(Record._make, run)), out)
            else:
                self._events(self.reassembler.receive(run), out)

    def _channel_of(self, record: Row) -> str:
        """The channel that a record belongs to; none for one that only holds content of delivered blocks."""
        topic = record[0]
        content = self.resuming and topic in self._resume.channels
        return topic if self._channels.is_channel(topic) and not content else ""

    # --- events ------------------------------------------------------------------------------------------------

    def _events(self, events: Iterable[Event], out: Out) -> None:
        for event in events:
            if isinstance(event, Completed):
                self._complete(event, out)
                continue
            match event:
                case Incomplete():
                    self._missing.suspect(event.explanation.block)
                    continue
                case Superseded():
                    self._partial[event.block] = None
                case Overflow():
                    self._resume.seen(event.block)
                case Stale(producer=None):
                    self._missing.clear(event.block.hash)
                    self._evicted.discard(event.block.hash)
                case ReorgBegan() if event.position[0] == self._settings.default_topic:
                    self._announced(event, out)
            out.append(event)

    def _announced(self, event: ReorgBegan, out: Out) -> None:
        """Open a channel, or later where a part of it is being re-read as content of delivered blocks."""
        if self.resuming and reorg_topic(event.position[0], event.ancestor.hash) in self._resume.channels:
            if event.position[2] >= self._resume.until.get(event.position[:2], 0):
                self._resume.announced.append(event)  # otherwise it was announced before, and the switch was made
        else:
            self._channel_events(self._channels.announced(event.ancestor), out)

    def _channel_events(self, outcomes: Iterable[ChannelEvent], out: Out) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Graft):
                updates = self.orderer.graft(outcome.ancestor, outcome.blocks)
                self._order(updates, out)
            else:
                out.append(outcome)

    def _complete(self, event: Completed, out: Out) -> None:
        block = event.payload
        self._missing.completed += 1
        self._evicted.discard(block.hash)
        self._missing.clear(block.hash)
        if not event.positions:
            self._partial[block.hash] = None  # it was supplied: no topic has it
        if self._start is not None:
            self._start.completed(block.hash, event.published_ms)
        if self.resuming:
            for surplus in self._resume.collect(event, self._partial):
                self._evict(surplus.payload.hash, surplus.payload.number, surplus.payload.parent, surplus.positions)
            return
        updates = self.orderer.receive(event)
        if not updates and self._judging and self.orderer.awaited(block.parent):
            self._missing.suspect(block.parent, self._settings.reorg_threshold, block.number - 1)
        self._order(updates, out)

    def _order(self, updates: Sequence[ChainUpdate], out: Out) -> None:
        """Deliver updates and the orderer's reports."""
        for update in updates:
            self._chain.move(update, self._bridged, self._partial)
            ring, violation, won = self._chain.ring(), self.orderer.violation, self._channels.won()
            self._events(self.reassembler.head_moved(ring[-1].ref.number), out)
            out.append(
                update.with_cursor(partial(self._chain.cursor, update, ring, violation, self._snapshot_now, won))
            )
            self._rewind.delivered(len(update.added))
            for block in update.added:
                self._missing.clear(block.hash)
                self._partial.pop(block.hash, None)
        for report in self.orderer.take_reports():
            out.append(report)
            if isinstance(report, Overflow):
                self._evict(report.block, report.number or 0, report.parent, report.positions)
        if updates:
            self._channel_events(self._channels.judge(), out)
            self._begin_judging()

    def _evict(self, block_hash: bytes, number: int, parent: bytes, positions: Mapping[Partition, int]) -> None:
        """Note a complete block that was evicted for lack of capacity: it is going to be reassembled."""
        self.reassembler.forget(block_hash)
        self._evicted.add(block_hash, {(parent, number)}, positions)

    # --- the beginning -----------------------------------------------------------------------------------------

    def _check_caught_up(self, positions: Mapping[Partition, int], watermarks: Mapping[Partition, int] | None) -> None:
        """Judge whether everything that was on the topics has been read.

        A stream that was empty at opening is read at once. So the watermarks are taken once more when there is a block.
        """
        if not self._seen_batch and (self._missing.completed or self._lowest_open is not None):
            self._seen_batch = True
            if self.head is None:
                self._watermarks, self._caught_up, self._waiting_at_opening = None, False, None
        if self._watermarks is None:
            self._watermarks = watermarks
        if not self._caught_up and self._watermarks is not None:
            self._caught_up = all(positions.get(partition, 0) >= end for partition, end in self._watermarks.items())

    def _begin_stream(self, positions: Mapping[Partition, int], out: Out, *, waited: bool) -> None:
        """Choose the start when it is due."""
        if self._start is None:
            if self._caught_up and not self.resuming:
                self._order(self.orderer.caught_up(), out)
            return
        if self.resuming or not self._start.looks(caught_up=self._caught_up):
            return
        candidate = self.orderer.candidate(self._open_headers())
        if candidate is None or (self._caught_up and not waited and self._may_begin_lower(candidate.start)):
            return
        lowest_open, below = self._lowest_open, candidate.start.number
        doubt = candidate.lowest < below or (lowest_open is not None and lowest_open < below)
        watermarks = self._watermarks or {}
        unread = {partition: at for partition, at in positions.items() if at < watermarks.get(partition, at + 1)}
        if self._start.begins(
            candidate,
            unread,
            doubt=doubt,
            crowded=self.orderer.fullness >= 0.5,  # noqa: PLR2004 - half
            caught_up=self._caught_up,
            waited=waited,
        ):
            if doubt:
                bottom = min(candidate.lowest, below if lowest_open is None else lowest_open)
                out.append(BeganAbove(candidate.start, bottom))
            self._start = None
            self._order(self.orderer.begin(candidate.start), out)

    def _may_begin_lower(self, start: BlockRef) -> bool:
        """True when a rewind may find blocks below this one."""
        return self._rewind.reaches(start.number) and not self._rewind.in_vain

    def _begin_judging(self) -> None:
        """Begin to judge: from now on a block that waits shows that its parent is missing."""
        if not self._judging:
            self._judging = True
            for parent, number in self.orderer.orphans():
                self._missing.suspect(parent, self._settings.reorg_threshold, number)

    def _end_resume(
        self, positions: Mapping[Partition, int], watermarks: Mapping[Partition, int] | None, out: Out
    ) -> None:
        """Restore the orderer when the delivered blocks were re-read, or can no longer be read."""
        resume = self._resume
        if not resume.active:
            # A step later, so that the driver has dropped the channel and reads it from its beginning.
            announced, resume.announced = resume.announced, []
            self._events(announced, out)
            return
        if not resume.is_over(positions, watermarks):
            return
        if resume.lacks_content and not self._rewind.in_vain and self._evicted.any(self._needs):
            self._needs_rewind = True  # before anything is judged: delivered blocks are removed with their content
            return
        cursor = resume.cursor
        resume.refuse_other_topics(lambda block_hash: self.reassembler.explain(block_hash).state != "unknown")
        named = cursor.open if len(cursor.open) < _OPEN_MAX else None
        for header in self._open_headers():
            if named is not None and short(header.hash) not in named:
                self._missing.suspect(header.hash, quiet=True)
        resume.active = False
        updates = self.orderer.restore(cursor, resume.blocks())
        self._order(updates, out)
        self._begin_judging()
        self._channel_events(self._channels.judge(), out)

    # --- missing blocks ----------------------------------------------------------------------------------------

    def _judge_absent(self, block_hash: bytes, out: Out, *, may_abandon: bool) -> None:
        """Judge a suspect whose missing messages are on no topic, unless they were evicted, and are re-read first."""
        suspect = self._missing.get(block_hash)
        lacking = self.reassembler.explain(block_hash)
        if suspect is None or lacking.state not in _LACKING or self.orderer.holds(block_hash):
            self._missing.clear(block_hash)
            return
        threshold, completed = self._settings.reorg_threshold, self._missing.completed
        awaited = self.orderer.awaited(block_hash)
        evicted = self._evicted.get(block_hash)
        if (evicted is not None or self._evicted.unnamed) and self._needs(block_hash, evicted):
            self._needs_rewind = True
            self._missing.look_again(block_hash, completed + 1)
        elif evicted is not None and self._links(block_hash, evicted):
            self._missing.look_again(block_hash, completed + threshold)  # until its parent comes
        elif not suspect.reported:
            suspect.reported = awaited or not suspect.quiet
            if suspect.reported:
                unseen = lacking.state == "unknown"
                number = suspect.number if lacking.number is None else lacking.number
                out.append(Incomplete(replace(lacking, number=number, missing_batch=unseen or lacking.missing_batch)))
            due = suspect.since + threshold if suspect.reported else completed + threshold
            self._missing.look_again(block_hash, max(completed, due))
        elif not awaited or self._settings.on_incomplete is not OnIncomplete.SKIP:
            self._missing.look_again(block_hash, completed + threshold)
        elif not may_abandon:
            self._missing.look_again(block_hash, completed)
        else:
            self._abandon(block_hash, out)

    def _abandon(self, block_hash: bytes, out: Out) -> None:
        """Continue without a block that is absent, if it has a Batch; without one its parent is unknown."""
        header = self.reassembler.header_of(block_hash)
        if header is None:
            self._missing.look_again(block_hash, self._missing.completed + self._settings.reorg_threshold)
            return
        positions = self.reassembler.explain(block_hash).positions
        out += self.reassembler.abandon(block_hash, "its messages are not on the topics")
        self._missing.clear(block_hash)
        self._evicted.discard(block_hash)
        self._bridged[block_hash] = header.weight
        updates = self.orderer.bridge(header, positions)
        if not updates and self.orderer.awaited(header.parent):
            self._missing.suspect(header.parent, self._settings.reorg_threshold, header.number - 1)
        self._order(updates, out)

    def _needs(self, block_hash: bytes, evicted: EvictedBlock | None) -> bool:
        """True when an evicted block may continue the chain: its parent is delivered or on a side branch."""
        if self.resuming:
            return self._resume.lacks(block_hash)
        if self.orderer.head is None:
            return True
        links = self._links(block_hash, evicted)
        return not self.orderer.holds(block_hash) and any(self.orderer.links(*link) for link in links)

    def _links(self, block_hash: bytes, evicted: EvictedBlock | None) -> set[Link]:
        """Parent and number of an evicted block as its Batches give them; empty where none is on the topics."""
        return self.reassembler.links_of(block_hash).union(() if evicted is None else evicted.links)

    def _open_headers(self) -> list[HeaderOnly]:
        """The headers of the open blocks, oldest first, without those of which no Batch has come."""
        headers = map(self.reassembler.header_of, self.reassembler.open_blocks())
        return [header for header in headers if header is not None]

    @property
    def _lowest_open(self) -> int | None:
        """The lowest number of an open block by its Batches; None without one."""
        numbers = map(self.reassembler.number_of, self.reassembler.open_blocks())
        return min((number for number in numbers if number is not None), default=None)

    @property
    def _head_number(self) -> int:
        """The number of the newest delivered block, or of a configured start; -1 without one."""
        head = self.head or self.orderer.head
        return -1 if head is None else head.number

    def _rewound(
        self, positions: Mapping[Partition, int], *, at_rest: bool, waited: bool
    ) -> Mapping[Partition, int] | None:
        """Rewind to evicted blocks, where the chain may need them and everything readable was read."""
        wanted, self._needs_rewind = self._needs_rewind, False
        if not wanted and not (at_rest and self._caught_up and self._evicted.any(self._needs)):
            return None
        due = self._rewind.due(positions, self._needs, wanted=wanted, waited=waited)
        if due is None:
            return None
        begin, blocks = due
        self.reassembler.reread(begin, blocks)
        self._positions = lowest(self._positions, begin)
        self._look_at = 0
        return begin


def assembler_of(settings: FollowerSettings, share: int = 1, evicted: EvictedBlocks | None = None) -> Assembler:
    """The assembler of the main topics, or of one of ``share`` channels, which share its bounds."""
    k, bounds = parse_policy(settings.policy), settings.bounds.part(share)
    make = partial(
        Reassembler,
        settings.tracked,
        settings.reorg_threshold,
        prefixes=settings.prefixes,
        volatile=settings.volatile,
        inline=settings.inline,
        evicted=evicted,
    )
    if k is None:
        return make(contents=settings.contents, bounds=bounds)
    return QuorumReassembler(k, settings.producers, make, bounds)
