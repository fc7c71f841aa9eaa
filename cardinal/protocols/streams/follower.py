"""A consumer without its transport: records in, chain updates and reports out.

It joins :class:`~.reassembler.Reassembler` and :class:`~.ordering.Orderer` and keeps what a cursor needs. It is
pure; whoever drives it reads records and says where the reading stands.

Rules:

1. ``receive`` takes records in any order across partitions, in order within each.
2. The driver calls ``progress`` after every read with the position of every partition, and with the high
   watermarks while the stream is not caught up.
3. **floor** of a partition = the lowest offset of any message of a block that is open, waiting, on a side branch,
   or delivered within the threshold; a partition without one stands at its position.
4. Resumed from a cursor, it delivers nothing that the cursor's ring holds, and judges nothing until every
   partition has passed the cursor's ``next``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from cardinal.errors import CursorMismatchError

from .block import Explanation
from .cursor import Cursor
from .events import ChainUpdate, Completed, Event, Header
from .ordering import OnFinalityViolation, Orderer
from .reassembler import Contents, Reassembler
from .types import BlockRef, Finality, Partition, Record

_OPEN_MAX: Final = 64
_SHORT: Final = 8


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """What a follower needs to know of its application and of its reader's wishes.

    Attributes:
        app: the application's name; chain: its name for the chain. Both stand in cursors.
        tracked: see :class:`~.reassembler.Reassembler`.
        prefixes: the expressions under which the application counts.
        reorg_threshold: blocks.
        whitelist: number to the only hash that may stand there.
        finality_of: the marks that a block carries.
        on_finality_violation: what to do with a switch below a finalized block.
        start: the last block not to deliver; None starts by the rule of :mod:`.ordering`.

    """

    app: str
    chain: str
    tracked: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ()
    reorg_threshold: int = 128
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    finality_of: Callable[[Header], Finality | None] | None = None
    on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT
    start: BlockRef | None = None

    def fingerprint(self) -> bytes:
        """Eight bytes that stand for every option that changes which blocks are delivered under which number."""
        pinned = sorted((number, block.hex()) for number, block in self.whitelist.items())
        start = None if self.start is None else (self.start.number, self.start.hash.hex())
        facts = (self.app, self.chain, sorted(self.tracked or ()), self.reorg_threshold, pinned, start)
        return blake2b(repr(facts).encode(), digest_size=_SHORT, person=b"cardinal-line").digest()


class _Delivered(NamedTuple):
    """A delivered block and where its messages begin."""

    ref: BlockRef
    places: Mapping[Partition, int]


class _Standing:
    """Where the reading stood after one call of ``receive`` and ``progress``; the updates of that call share it.

    Only references are kept: what they lead to does not change after a block is complete.
    """

    __slots__ = ("next", "open", "open_floor", "places")

    def __init__(self) -> None:
        self.next: dict[Partition, int] = {}
        self.open: frozenset[bytes] = frozenset()
        self.open_floor: dict[Partition, int] = {}
        self.places: list[Mapping[Partition, int]] = []


class Follower:
    """See the module. ``cursor`` resumes where an earlier follower with equal settings stood."""

    def __init__(self, settings: FollowerSettings, cursor: Cursor | None = None) -> None:
        self._settings = settings
        self._lineage_start = b""
        self._resume: dict[Partition, int] = {}
        self._next: dict[Partition, int] = {}
        self._places: dict[bytes, Mapping[Partition, int]] = {}
        self._delivered: list[_Delivered] = []
        self._standing: _Standing | None = None
        self._caught_up = False
        self.reassembler = Reassembler(
            settings.tracked, settings.reorg_threshold, prefixes=settings.prefixes, contents=Contents.VALUES
        )
        self.orderer = Orderer(
            settings.start,
            None,
            settings.reorg_threshold,
            settings.whitelist,
            finality_of=settings.finality_of,
            on_finality_violation=settings.on_finality_violation,
        )
        if cursor is not None:
            self._restore(cursor)

    def _restore(self, cursor: Cursor) -> None:
        expected = (self._settings.app, self._settings.chain)
        if (cursor.app, cursor.chain) != expected:
            raise CursorMismatchError(
                f"this cursor belongs to {cursor.app} on {cursor.chain}, not to {expected[0]} on {expected[1]}",
                expected=expected,
                found=(cursor.app, cursor.chain),
            )
        if cursor.lineage[:_SHORT] != self._settings.fingerprint():
            raise CursorMismatchError(
                "this cursor was made with another start, whitelist, threshold or choice of prefixes; "
                "give the same options, or start anew without a cursor",
                expected=self._settings.fingerprint().hex(),
                found=cursor.lineage[:_SHORT].hex(),
            )
        self._lineage_start = cursor.lineage[_SHORT:]
        self._delivered = [_Delivered(ref, cursor.floor) for ref in reversed(cursor.ring)]
        self.orderer.seq = cursor.seq
        self._next = dict(cursor.floor)
        if cursor.ring:
            self.orderer.resume(cursor.ring, cursor.weight, cursor.finality, violated=cursor.violated)
            self._resume = dict(cursor.next)
        ring = {ref.hash[:_SHORT] for ref in cursor.ring}
        self.reassembler.ignore(cursor.done - ring - cursor.open)

    # --- driving ---------------------------------------------------------------------------------------------

    @property
    def resuming(self) -> bool:
        """Whether what was delivered before is still being read again."""
        return bool(self._resume)

    @property
    def lineage(self) -> bytes:
        """What ``seq`` belongs to: the options, and the first block of the stream once it is known."""
        return self._settings.fingerprint() + self._lineage_start

    def receive(self, records: Iterable[Record]) -> list[ChainUpdate | Event]:
        """Take records; returns updates and reports in the order in which they came about."""
        out: list[ChainUpdate | Event] = []
        for event in self.reassembler.receive(records):
            if isinstance(event, Completed):
                self._places[event.payload.hash] = event.positions
                self._order(self.orderer.receive(event), out)
            else:
                out.append(event)
        return out

    def progress(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None = None
    ) -> list[ChainUpdate | Event]:
        """Say where the reading stands.

        Arguments:
            positions: the next offset of every partition.
            ends: the offsets at which every partition ended when the stream was opened (and again when the first
                Batch was seen); None when not known.

        """
        out: list[ChainUpdate | Event] = []
        self._next.update(positions)
        if self._resume and all(positions.get(p, end) >= end for p, end in self._resume.items()):
            self._resume = {}
            self._order(self.orderer.release(), out)
        if not self._caught_up and ends is not None and all(positions.get(p, 0) >= end for p, end in ends.items()):
            self._caught_up = True
        if self._caught_up:
            # Asked again until there is a block to start with: what was read so far may have been cut in its middle.
            self._order(self.orderer.caught_up(), out)
        if self._standing is not None:
            self._stand(self._standing)
            self._standing = None
        return out

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there at opening has been read."""
        return self._caught_up

    def not_caught_up(self) -> None:
        """The driver has looked at the watermarks again."""
        self._caught_up = False

    def _order(self, updates: Sequence[ChainUpdate], out: list[ChainUpdate | Event]) -> None:
        for update in updates:
            if not self._lineage_start:
                self._lineage_start = update.added[0].hash[:_SHORT]
            self._deliver(update)
            head = self._delivered[-1].ref.number if self._delivered else 0
            out += self.reassembler.head_moved(head)
            if self._standing is None:
                self._standing = _Standing()
            # A copy of references: the list itself goes on changing.
            ring = tuple(self._delivered[-self._settings.reorg_threshold - 1 :])
            make = partial(self._cursor_at, ring, self.orderer.head_weight, update, self._standing)
            out.append(update.with_cursor(make))
        out += self.orderer.take_events()

    def _deliver(self, update: ChainUpdate) -> None:
        delivered = self._delivered
        if update.removed:
            del delivered[-len(update.removed) :]
        for block in update.added:
            delivered.append(_Delivered(BlockRef(block.number, block.hash), self._places.get(block.hash, {})))
        if len(delivered) > 4 * self._settings.reorg_threshold + 64:
            del delivered[: -self._settings.reorg_threshold - 1]
            self._places = {
                block: places for block in self.orderer.held_hashes() if (places := self._places.get(block)) is not None
            }

    def explain(self, block_hash: bytes) -> Explanation:
        """What a block waits for, or how it stands to the chain."""
        explanation = self.reassembler.explain(block_hash)
        standing = self.orderer.standing(block_hash)
        return explanation if standing is None else replace(explanation, state=standing)

    # --- cursors ---------------------------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Where the follower stands now."""
        ring = tuple(self._delivered[-self._settings.reorg_threshold - 1 :])
        update = ChainUpdate(self.orderer.seq, (), (), self.orderer.finality)
        return self._cursor_at(ring, self.orderer.head_weight, update, self._stand(_Standing()))

    def _stand(self, standing: _Standing) -> _Standing:
        """Write down where the reading stands now."""
        standing.next = dict(self._next)
        standing.open = frozenset(block[:_SHORT] for block in self.reassembler.open_blocks()[:_OPEN_MAX])
        standing.open_floor = self.reassembler.open_positions()
        held = self.orderer.held_hashes()
        standing.places = [places for block in held if (places := self._places.get(block)) is not None]
        return standing

    def _cursor_at(self, ring: tuple[_Delivered, ...], weight: int, update: ChainUpdate, standing: _Standing) -> Cursor:
        if not standing.next and self._next:
            # Asked for before the driver called `progress`: what is known now is safe, if lower than need be.
            self._stand(standing)
        floor = dict(standing.next)
        for places in (standing.open_floor, *standing.places, *(block.places for block in ring)):
            for partition, offset in places.items():
                if offset < floor.get(partition, offset + 1):
                    floor[partition] = offset
        lowest = ring[-1].ref.number - self._settings.reorg_threshold if ring else 0
        done = [block[:_SHORT] for number, block in self.reassembler.done_blocks() if number < lowest]
        return Cursor(
            lineage=self.lineage,
            app=self._settings.app,
            chain=self._settings.chain,
            seq=update.seq,
            ring=tuple(block.ref for block in reversed(ring)),
            weight=weight,
            next={**floor, **standing.next},
            floor=floor,
            open=standing.open,
            done=frozenset(done[-2 * self._settings.reorg_threshold :]),
            finality=update.finality,
            violated=self.orderer.violation is not None,
        )
