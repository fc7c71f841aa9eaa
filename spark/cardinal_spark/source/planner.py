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
5. Blocks below ``top - threshold`` (``top``: the highest head ever) are never delivered.
6. The start is chosen when the caller says so, or when the heaviest linked chain is longer than the threshold.
7. It keeps no values but a Batch's own entries.

One thing is not covered: where producers of different make put copies of one key into different partitions, or publish
more keys than a block's Batch counts, the content that a ``-1`` row or a late ``+1`` row repeats may be the other copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams import avro
from cardinal.protocols.streams.events import ChainUpdate, Completed, Event, Quarantined, Stale
from cardinal.protocols.streams.keys import HASH_END
from cardinal.protocols.streams.messages import BATCH, BATCH_MSG
from cardinal.protocols.streams.prefixes import Tracked
from cardinal.protocols.streams.reassembler import Contents, HeaderOnly, Reassembler
from cardinal.protocols.streams.types import NO_ID, Partition, Record

from .chain import PlanOrderer
from .digested import kept_value, size_of
from .offsets import SHORT, DoneBlock, PlanOffset, lineage, option_digests

if TYPE_CHECKING:
    from cardinal.protocols.streams.follower import FollowerSettings

AGE_MAX: Final = 1_000_000
"""Offsets behind its partition's position after which a block outside the chain pins nothing."""

DONE_MAX: Final = 384
"""Entries of ``done`` that an offset holds at most: below 8 kB with everything else."""

_UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True)
class PlanSettings:
    """What planning depends on.

    ``follower``: the application's settings, as a consumer has them; its ``finality_of`` is asked about headers.
    ``keep``: the paths of BatchMsgs whose values a header carries among its marks.
    """

    follower: FollowerSettings
    keep: frozenset[bytes] = frozenset()

    @cached_property
    def options(self) -> bytes:
        """The digests that offsets carry."""
        settings = self.follower
        return option_digests(
            {
                "app": settings.app,
                "chain": settings.chain,
                "tracked": None if settings.tracked is None else sorted(settings.tracked),
                "prefixes": sorted(settings.prefixes),
                "reorg_threshold": settings.reorg_threshold,
                "whitelist": sorted((number, block.hex()) for number, block in settings.whitelist.items()),
                "on_finality_violation": settings.on_finality_violation.value,
            }
        )

    @cached_property
    def tracked(self) -> Tracked | None:
        """The tracked expressions, compiled."""
        return None if self.follower.tracked is None else Tracked(self.follower.tracked)

    def reassembler(self, contents: Contents) -> Reassembler:
        """A reassembler that never drops anything: whoever feeds it bounds what it gets."""
        return Reassembler(
            self.follower.tracked,
            self.follower.reorg_threshold,
            prefixes=self.follower.prefixes,
            contents=contents,
            max_open_bytes=_UNBOUNDED,
            max_open_blocks=_UNBOUNDED,
        )


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """The records of an incomplete block, copies and all.

    ``lowest`` is their lowest offset in every partition, ``number`` its Batch's, None without one; ``need`` the records
    that it takes at least.
    """

    records: tuple[Record, ...]
    lowest: Mapping[Partition, int]
    number: int | None
    need: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete block: its header, and in which ranges of offsets its messages lie.

    ``last`` is the highest offset of every partition at which any record of it was seen; ``size`` its bytes, about.
    """

    header: HeaderOnly
    ranges: Mapping[Partition, tuple[int, int]]
    published_ms: int
    size: int
    last: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the next batch depends on.

    Attributes:
        offset: what a checkpoint keeps of it.
        opened: incomplete blocks.
        blocks: complete blocks that can be known again from [floor, pos).
        seen: for entries of ``offset.done`` the highest offsets at which a record of theirs was seen, where any of
            them lies at or above the floor.

    """

    offset: PlanOffset
    opened: Mapping[bytes, OpenBlock] = field(default_factory=dict)
    blocks: Mapping[bytes, Whole] = field(default_factory=dict)
    seen: Mapping[bytes, Mapping[Partition, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One row: a block that joins (+1) or leaves (-1) the chain, and where to read it."""

    seq: int
    change: int
    update_id: int
    lineage: str
    block: Whole


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch delivers: ``rows`` in order, cut into ``updates`` updates; the state behind it; reports."""

    state: State
    rows: tuple[PlannedBlock, ...]
    updates: int
    events: tuple[Event, ...]


def initial_offset(settings: PlanSettings, pos: Mapping[Partition, int]) -> PlanOffset:
    """An offset with nothing before it."""
    return PlanOffset(settings.options, dict(pos), dict(pos))


# --- the three steps of both ways -------------------------------------------------------------------------------


class _Index:
    """Records sorted to their blocks: a working copy of a state's maps."""

    def __init__(self, settings: PlanSettings, state: State) -> None:
        self._settings = settings
        self.opened = dict(state.opened)
        self.blocks = dict(state.blocks)
        self.seen = {prefix: dict(last) for prefix, last in state.seen.items()}
        self._done = {block.prefix for block in state.offset.done}
        self._whole = {block_hash[:SHORT]: block_hash for block_hash in self.blocks}
        self.events: list[Event] = []

    def add(self, records: Iterable[Record]) -> list[Whole]:
        """Take records; returns the blocks that they complete, in order of number and hash."""
        new: dict[bytes, list[Record]] = {}
        done, whole = self._done, self._whole
        late: dict[bytes, dict[Partition, int]] = {}
        for record in records:
            block_hash = record.key[1:HASH_END]
            short = block_hash[:SHORT]
            if short in done:
                _note(self.seen.setdefault(short, {}), record)
            elif short in whole:
                _note(late.setdefault(whole[short], {}), record)
            else:
                new.setdefault(block_hash, []).append(record)
        for block_hash, last in late.items():
            block = self.blocks[block_hash]
            higher = {where: max(offset, block.last.get(where, -1)) for where, offset in last.items()}
            self.blocks[block_hash] = replace(block, last={**block.last, **higher})
        for block_hash, found in new.items():
            before = self.opened.get(block_hash)
            self.opened[block_hash] = self.open((*(before.records if before else ()), *found))
        return self._complete(sorted(new))

    def _complete(self, candidates: Iterable[bytes]) -> list[Whole]:
        reassembler = self._settings.reassembler(Contents.DIGESTS)
        found: list[Whole] = []
        for block_hash in candidates:
            opened = self.opened[block_hash]
            if opened.number is None or len(opened.records) < opened.need:
                continue
            for event in reassembler.receive(sorted(opened.records)):
                if isinstance(event, Completed):
                    found.append(self._whole_of(event, opened.records))
                    del self.opened[block_hash]
                    self.blocks[block_hash] = found[-1]
                    self._whole[block_hash[:SHORT]] = block_hash
                else:
                    self.events.append(event)
        return sorted(found, key=_height)

    def _whole_of(self, event: Completed, records: Iterable[Record]) -> Whole:
        header = event.payload
        if not isinstance(header, HeaderOnly):  # a reassembler of digests gives nothing else
            raise TypeError(header)
        ranges = {where: (event.positions[where], end) for where, end in sorted(event.ends.items())}
        last: dict[Partition, int] = {}
        marks: dict[bytes, bytes] = {}
        size = 0
        for record in sorted(records):
            _note(last, record)
            size += size_of(record)
            path = record.key[HASH_END:]
            if record.key[0] == BATCH_MSG and path in self._settings.keep:
                marks.setdefault(path, kept_value(record))  # of several copies the one at the lowest position
        whole = replace(header, marks={**marks, **header.marks})
        return Whole(whole, ranges, event.published_ms, size, last)

    def open(self, records: tuple[Record, ...]) -> OpenBlock:
        """The open block that these records make."""
        lowest = _lowest(records)
        batches = [record for record in records if record.key[0] == BATCH]
        if not batches:
            return OpenBlock(records, lowest, None, 0)
        fields = avro.read_batch(min(batches).value)
        tracked = self._settings.tracked
        entries = [entry for entry in fields.entries.values() if tracked is None or tracked.entry(entry.path)]
        announced = {entry.sub_batch for entry in entries if entry.sub_batch != NO_ID}
        need = 1 + len(announced) + sum(entry.count for entry in entries)
        return OpenBlock(records, lowest, fields.number, need)


def _note(last: dict[Partition, int], record: Record) -> None:
    where = (record.topic, record.partition)
    if record.offset > last.get(where, -1):
        last[where] = record.offset


def _height(block: Whole) -> tuple[int, bytes]:
    return block.header.number, block.header.hash


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
    index = _Index(settings, state)
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
        judge=False,
        finality=ordering.orderer.finality,
    )
    rows, updates = ordering.rows(), len(ordering.updates)
    return Plan(_settle(settings, reached, index, ordering), rows, updates, (*index.events, *ordering.events))


class _Ordering:
    """The order of one batch's blocks."""

    def __init__(self, settings: PlanSettings, state: State, index: _Index) -> None:
        self._follower = settings.follower
        self._settings = settings
        self._blocks = dict(index.blocks)
        self._before = state
        offset = state.offset
        self.top = offset.top
        self.start = offset.start
        self.dead: set[bytes] = set()
        self.updates: list[ChainUpdate] = []
        self.events: list[Event] = []
        self.orderer = PlanOrderer(
            self._follower.reorg_threshold,
            finality_of=self._follower.finality_of,
            on_finality_violation=self._follower.on_finality_violation,
            seq=offset.seq,
        )
        if offset.head is not None and offset.start is not None:
            held = sorted((b for b in state.blocks.values() if b.header.number >= self.base), key=_height)
            headers = (block.header for block in held)
            if not self.orderer.restore(headers, offset.head, offset.start, self.base, offset.finality):
                raise AssertionError("a state whose head is not among its blocks")

    @property
    def base(self) -> int:
        """Blocks below this number are gone for good."""
        return self.top - self._follower.reorg_threshold

    @property
    def started(self) -> bool:
        """Whether the stream has delivered anything."""
        return self.start is not None

    def run(self, fresh: Sequence[Whole], *, caught_up: bool) -> None:
        """Order the blocks that this batch completes; before the start, all that are there."""
        if self._before.offset.judge:
            self._take(self.orderer.judge())
        for block in fresh if self.started else sorted(self._blocks.values(), key=_height):
            header = block.header
            if header.number < self.base:
                continue
            pinned = self._follower.whitelist.get(header.number)
            if pinned is not None and pinned != header.hash:
                self.dead.add(header.hash)
                self.events.append(Quarantined(header.hash, header.number, "the whitelist pins another block"))
            else:
                self._take(self.orderer.receive(header))
        if caught_up and not self.started:
            self._take(self.orderer.caught_up())
        for event in self.orderer.take_events():
            self.events.append(event)
            if isinstance(event, Quarantined):
                self.dead.add(event.block)
            elif isinstance(event, Stale):
                self.dead.add(event.block.hash)

    def _take(self, updates: Iterable[ChainUpdate]) -> None:
        for update in updates:
            self.updates.append(update)
            self.start = self.start or self.orderer.start
            head = self.orderer.head
            self.top = max(self.top, -1 if head is None else head.number)

    def rows(self) -> tuple[PlannedBlock, ...]:
        """The batch's rows."""
        if self.start is None:
            return ()
        line = lineage(self._settings.options, self.start)
        rows: list[PlannedBlock] = []
        for update in self.updates:
            changes = [*((-1, block) for block in update.removed), *((1, block) for block in update.added)]
            for at, (change, block) in enumerate(changes):
                whole = self._blocks[block.hash]
                rows.append(PlannedBlock(update.first_seq + at, change, update.first_seq, line, whole))
        return tuple(rows)


# --- what stays ---------------------------------------------------------------------------------------------------


def _settle(settings: PlanSettings, reached: PlanOffset, index: _Index, ordering: _Ordering) -> State:
    """The state at the end of a batch: the floor raised, and what it leaves behind let go."""
    base = ordering.base
    dead = sorted((index.blocks.pop(block) for block in ordering.dead if block in index.blocks), key=_height)
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
        seen[block.header.hash[:SHORT]] = block.last
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


def _pins(index: _Index, ordering: _Ordering, pos: Mapping[Partition, int]) -> Iterator[Mapping[Partition, int]]:
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
    return [DoneBlock(block.header.number, block.header.hash[:SHORT]) for block in blocks]


def _above(index: _Index, floor: Mapping[Partition, int]) -> dict[bytes, OpenBlock]:
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


def _lowest(records: Iterable[Record]) -> dict[Partition, int]:
    lowest: dict[Partition, int] = {}
    for topic, partition, offset, *_ in records:
        if offset < lowest.get((topic, partition), offset + 1):
            lowest[topic, partition] = offset
    return lowest


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
    index = _Index(settings, State(offset))
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
