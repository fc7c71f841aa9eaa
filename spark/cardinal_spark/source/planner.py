"""Which blocks a batch delivers, and in what order. Pure: no clock, no I/O, no Spark.

A :class:`State` is a function of an offset and the log: the records of [floor, pos). ``plan`` takes the records of one
batch to the next state; ``rebuild`` takes an offset and the records of [floor, pos) to the same state that the
uninterrupted run had there. Both feed records sorted by position, so that it does not matter how they were fetched.

Rules:

1. An open block is the set of its records in [floor, pos); whether it is complete is a function of that set.
2. **floor** of a partition = the lowest offset that an open, waiting, side or delivered block (within the threshold)
   needs; a partition without one stands at its position. It never falls.
3. A block that is finished with is known again by its records while all that count lie at or above the floor, else by
   its entry in ``done``. An entry goes when its block is far below the chain and no record of it is left above the
   floor, so that no late copy opens it again; the oldest go first where there are too many.
4. What lies more than ``AGE_MAX`` offsets behind in its partition pins nothing unless it is part of the chain.
5. Blocks below ``top - threshold`` (``top``: the highest head ever) or below the start are never delivered.
6. The start is chosen when the caller says so, or when the heaviest linked chain is longer than the threshold.
7. It keeps no values but a Batch's own entries and the application's finality marks.
8. Open blocks are bounded in number and records: those without a Batch go first, the ones that lie farthest behind
   first. Only then can a rebuild see more of a block than the uninterrupted run, and a batch be refused.

One thing is not covered: where producers of different make put copies of one key into different partitions, or publish
more keys than a block's Batch counts, the content that a ``-1`` row or a late ``+1`` row repeats may be the other copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams.events import (
    ChainUpdate,
    Event,
    ForkBelowStart,
    OrderingEvent,
    Overflow,
    Quarantined,
    Stale,
)
from cardinal.protocols.streams.ordering.orderer import Evicted, Orderer, OrderingSettings, Past, Ties
from cardinal.protocols.streams.types import BlockRef, FinalityViolated, Partition, Record, short

from .index import Index
from .offsets import DoneBlock, PlanOffset, lineage
from .state import OpenBlock, Plan, PlannedBlock, PlanSettings, State, Whole

__all__ = ["AGE_MAX", "DONE_MAX", "initial_offset", "plan", "rebuild"]

AGE_MAX: Final = 1_000_000
"""Offsets behind its partition's position after which a block outside the chain pins nothing."""

OPEN_MAX: Final = 50_000
"""Incomplete blocks that are held at most."""

OPEN_RECORDS_MAX: Final = 4_000_000
"""Their records, about 350 bytes each."""

DONE_MAX: Final = 384
"""Entries of ``done`` that an offset holds at most: below 8 kB with everything else."""

_height: Final = attrgetter("height")


def initial_offset(settings: PlanSettings, pos: Mapping[Partition, int], first: int | None = None) -> PlanOffset:
    """An offset with nothing before it. ``first``: the number of the lowest block to deliver."""
    top = -1 if first is None else first + settings.follower.reorg_threshold
    return PlanOffset(settings.options, dict(pos), dict(pos), top=top)


# --- plan ---------------------------------------------------------------------------------------------------------


def plan(
    settings: PlanSettings, state: State, records: Iterable[Record], pos: Mapping[Partition, int], *, caught_up: bool
) -> Plan:
    """The batch from ``state`` to ``pos``.

    Arguments:
        settings: the same for all batches of a stream.
        state: where the batch begins.
        records: all usable records (see :mod:`.digested`) of [start, ``pos``) of every partition, in any order.
        pos: for every partition the offset at which the batch ends.
        caught_up: whether the start may be chosen although the chain is short.

    """
    index = Index(settings, state)
    fresh = index.add(sorted(records))
    ordering = _Ordering(settings, state, index)
    ordering.run(fresh, caught_up=caught_up)
    reached = replace(
        state.offset,
        pos=dict(pos),
        seq=ordering.orderer.seq,
        top=ordering.top,
        head=ordering.orderer.head if ordering.started else None,
        start=ordering.start,
        origin=ordering.origin,
        judge=False,
        finality=ordering.orderer.finality,
    )
    rows, updates = ordering.rows(), len(ordering.updates)
    return Plan(_settle(settings, reached, index, ordering), rows, updates, (*index.events, *ordering.events))


class _Ordering:
    """The order of one batch's blocks.

    The orderer is restored for every batch, so that it holds nothing that a restart would not find again.
    """

    def __init__(self, settings: PlanSettings, state: State, index: Index) -> None:
        self._follower = settings.follower
        self._settings = settings
        self._blocks = dict(index.blocks)
        self._before = state
        offset = state.offset
        self.top = offset.top
        self.start = offset.start
        self.origin = offset.origin
        self.dead: set[bytes] = set()
        self.updates: list[ChainUpdate] = []
        self.events: list[Event] = []
        ordering = OrderingSettings(
            finality_of=self._follower.finality_of,
            on_finality_violation=self._follower.on_finality_violation,
            ties=Ties.HASH,
            seq=offset.seq,
        )
        self.orderer = Orderer(None, None, self._follower.reorg_threshold, self._follower.whitelist, ordering)
        if offset.head is not None and offset.start is not None:
            self._restore(offset.head, offset.start)

    def _restore(self, head: BlockRef, start: BlockRef) -> None:
        """Stand at the offset's head: all blocks that may still be delivered or removed, by number and hash."""
        held = {block.header.hash: block.header for block in sorted(self._blocks_before(), key=_height)}
        ring, current = [head], held[head.hash]
        while (parent := held.get(current.parent)) is not None and parent.number < current.number:
            current = parent
            ring.append(BlockRef(current.number, current.hash))
        offset = self._before.offset
        # The fork point below the start: a heavier chain may replace the start itself.
        root = current.parent if current.number == start.number else b""
        past = Past(start, offset.finality, root=root)
        self._take(self.orderer.restore(ring, held[head.hash].weight, offset.seq, past, held.values()))
        for report in self.orderer.take_reports():
            # Where blocks were judged before, these were reported in the batch that completed them.
            if offset.judge or not isinstance(report, ForkBelowStart | FinalityViolated):
                self._report(report)

    def _blocks_before(self) -> Iterator[Whole]:
        return (block for block in self._before.blocks.values() if block.header.number >= self.base)

    @property
    def base(self) -> int:
        """Blocks below this number are gone for good: below the threshold, or below the start."""
        lowest = self.top - self._follower.reorg_threshold
        return lowest if self.start is None else max(lowest, self.start.number)

    @property
    def started(self) -> bool:
        """Whether the stream has delivered anything."""
        return self.start is not None

    def run(self, fresh: Sequence[Whole], *, caught_up: bool) -> None:
        """Order the blocks that this batch completes; before the start, all that are there."""
        gone = {block.prefix for block in self._before.offset.done}
        for block in fresh if self.started else sorted(self._blocks.values(), key=_height):
            header = block.header
            if header.number < self.base:
                continue
            if short(header.parent) in gone:
                self.dead.add(header.hash)
                self.events.append(Quarantined(header.hash, header.number, "its parent is refused or forgotten"))
            else:
                self._take(self.orderer.receive(header))
        if caught_up and not self.started:
            self._take(self.orderer.caught_up())
        for report in self.orderer.take_reports():
            self._report(report)

    def _report(self, report: OrderingEvent | Evicted) -> None:
        event = Stale(report.ref, report.reason) if isinstance(report, Evicted) else report
        self.events.append(event)
        if isinstance(event, Quarantined):
            self.dead.add(event.block)
        elif isinstance(event, Stale):
            self.dead.add(event.block.hash)

    def _take(self, updates: Iterable[ChainUpdate]) -> None:
        for update in updates:
            self.updates.append(update)
            if self.start is None:
                self.start = self.orderer.start
                self.origin = short(update.added[0].hash)
            head = self.orderer.head
            self.top = max(self.top, -1 if head is None else head.number)

    def rows(self) -> tuple[PlannedBlock, ...]:
        """The batch's rows."""
        line = lineage(self._settings.options, self.origin)
        rows: list[PlannedBlock] = []
        for update in self.updates:
            changes = [*((-1, block) for block in update.removed), *((1, block) for block in update.added)]
            for at, (change, block) in enumerate(changes):
                whole = self._blocks[block.hash]
                rows.append(PlannedBlock(update.first_seq + at, change, update.first_seq, line, whole))
        return tuple(rows)


# --- what stays ---------------------------------------------------------------------------------------------------


def _settle(settings: PlanSettings, reached: PlanOffset, index: Index, ordering: _Ordering) -> State:
    """The state at the end of a batch: the floor raised, and what it leaves behind let go."""
    base = ordering.base
    dead = sorted((index.blocks.pop(block) for block in ordering.dead if block in index.blocks), key=_height)
    _bound(index, reached.pos)
    floor = dict(reached.pos)
    for pin in _pins(index, ordering, reached.pos):
        for where, offset in pin.items():
            floor[where] = min(offset, floor[where])
    gone = [
        block for block in index.blocks.values() if any(block.ranges[where][0] < floor[where] for where in block.ranges)
    ]
    for block in gone:
        del index.blocks[block.header.hash]
    done = [*reached.done, *_entries(dead), *_entries(sorted(gone, key=_height))]
    seen: dict[bytes, Mapping[Partition, int]] = dict(index.seen)
    for block in (*dead, *gone):
        seen[short(block.header.hash)] = block.last
    seen = _at_least(seen, floor)
    forgotten = base - settings.follower.reorg_threshold
    entries = tuple(block for block in done if block.number >= forgotten or block.prefix in seen)[-DONE_MAX:]
    left = {block.prefix for block in entries}
    return State(
        replace(reached, floor=floor, done=entries),
        _above(index, floor),
        index.blocks,
        {prefix: last for prefix, last in seen.items() if prefix in left},
    )


def _bound(index: Index, pos: Mapping[Partition, int]) -> None:
    """Drop open blocks over the bounds."""
    held = sum(len(block.records) for block in index.opened.values())
    if len(index.opened) <= OPEN_MAX and held <= OPEN_RECORDS_MAX:
        return

    def order(item: tuple[bytes, OpenBlock]) -> tuple[bool, int, bytes]:
        block_hash, block = item
        return block.number is not None, -max(pos[where] - at for where, at in block.lowest.items()), block_hash

    for block_hash, block in sorted(index.opened.items(), key=order):
        if len(index.opened) <= OPEN_MAX and held <= OPEN_RECORDS_MAX:
            return
        del index.opened[block_hash]
        held -= len(block.records)
        index.events.append(Overflow(block_hash, block.number, block.lowest, "open blocks are over their bound"))


def _pins(index: Index, ordering: _Ordering, pos: Mapping[Partition, int]) -> Iterator[Mapping[Partition, int]]:
    """The lowest offsets that each block needs that may still be delivered or removed."""
    for opened in index.opened.values():
        if (opened.number is None or opened.number >= ordering.base) and not _aged(opened.lowest, pos):
            yield opened.lowest
    for block in index.blocks.values():
        if block.header.number < ordering.base:
            continue
        pin = {where: low for where, (low, _) in block.ranges.items()}
        on_chain = ordering.orderer.waits(block.header.hash) is False
        if on_chain or not ordering.started or not _aged(pin, pos):
            yield pin


def _at_least(
    seen: Mapping[bytes, Mapping[Partition, int]], floor: Mapping[Partition, int]
) -> dict[bytes, Mapping[Partition, int]]:
    """The highest offsets of each entry that lie at or above the floor; entries without any are left out."""
    return {
        prefix: kept
        for prefix, last in seen.items()
        if (kept := {where: offset for where, offset in last.items() if offset >= floor.get(where, 0)})
    }


def _entries(blocks: Iterable[Whole]) -> list[DoneBlock]:
    return [DoneBlock(block.header.number, short(block.header.hash)) for block in blocks]


def _above(index: Index, floor: Mapping[Partition, int]) -> dict[bytes, OpenBlock]:
    """The open blocks without the records that the floor has passed."""
    left: dict[bytes, OpenBlock] = {}
    for block_hash, block in index.opened.items():
        if all(offset >= floor[where] for where, offset in block.lowest.items()):
            left[block_hash] = block
            continue
        records = tuple(record for record in block.records if record.offset >= floor[record.topic, record.partition])
        if records:
            left[block_hash] = index.open(records)
    return left


def _aged(pin: Mapping[Partition, int], pos: Mapping[Partition, int]) -> bool:
    return any(pos[where] - offset > AGE_MAX for where, offset in pin.items())


# --- rebuild ------------------------------------------------------------------------------------------------------


def rebuild(settings: PlanSettings, offset: PlanOffset, chunks: Iterable[Iterable[Record]]) -> State:
    """The state at an offset.

    Arguments:
        settings: those that the offset was made with.
        offset: where to stand.
        chunks: all usable records of [floor, pos), cut anywhere, in any order of partitions.

    Raises:
        CursorExpiredError: the delivered chain is not in these records any more.

    """
    index = Index(settings, State(offset))
    for chunk in chunks:
        index.add(sorted(chunk))
    if offset.head is not None and offset.head.hash not in index.blocks:
        raise CursorExpiredError(
            f"block {offset.head.number} (0x{offset.head.hash.hex()}), the last one that this checkpoint delivered, is "
            "not complete on the topics any more: they were made anew or retention has cut into it; start with a new "
            "checkpoint, with restartFrom=sink where there is a lake",
            missing={},
        )
    return State(offset, index.opened, index.blocks, _at_least(index.seen, offset.floor))
