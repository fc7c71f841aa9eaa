"""Where the messages of everything begin that a stream still needs: what cursors are made of.

Rules:

1. **floor** of a partition = the lowest offset of any message of a block that is open, waiting, on a side branch,
   delivered within the threshold, or in a channel that is open; a partition without one stands at its position. A block
   that was dropped, or let go by the orderer, for want of room counts as if it were held: it is to be read again.
2. A waiting block that lies more than ``AGE_MAX`` offsets behind pins nothing any more: what nobody's chain leads to
   must not hold a cursor back for ever. Nor does a block that there was no room for, so many records later.
3. The cursor of an update describes the moment at which it was given out, whenever it is asked for. What that takes
   is written down once for all updates of one step, and does not grow with what is held. Of several updates of one
   step the earlier ones also need what the later ones left behind.
4. A block that was delivered as another Batch than its first said is marked like one without content: whether the
   first one is whole by the deadline depends on the order of reading, so that its content may differ another time.
   One that was supplied as a whole, so that no reading finds it again, is named as done.
5. While a stream resumes, its cursor says the same as the one that it resumes from.
6. A block that is not whole after that, and that the cursor did not name as open, was done with before, however far
   above the floor it lies (after a deep reorg to a shorter chain) and however many there are: no cursor can name all of
   them. It is not named as open, and stale once the chain is past it. One that was opened a moment before the cursor
   may be taken for such a block: it becomes whole like any other, and is stale, not quarantined, if it never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nlargest
from typing import Final

from cardinal.protocols.streams.assembly.assembler import Assembler
from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.cursor import CHANNELS_MAX, Cursor
from cardinal.protocols.streams.events import ChainUpdate, Completed, Header
from cardinal.protocols.streams.ordering.orderer import Orderer
from cardinal.protocols.streams.payload import MissingPayload
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.types import BlockRef, Partition, short

from .floors import FadingPins, Pins
from .moments import OPEN_MAX, Held, Listed, OpenThen, Standing, lower
from .reorg_channels import Reorgs
from .settings import FollowerSettings

AGE_MAX: Final = 1_000_000
"""Offsets behind its partition's position after which a waiting block pins nothing."""

_FINISHED: Final = 8
"""Thresholds: so many finished blocks are remembered at least."""
_FINISHED_MAX: Final = 32_768
"""Finished blocks that are remembered at most, however many lie above the head."""

_RESUME: Final = b"resume"


class Whereabouts:
    """The held blocks of one stream, and its cursors."""

    def __init__(self, settings: FollowerSettings, reassembler: Assembler, orderer: Orderer, reorgs: Reorgs) -> None:
        self._settings = settings
        self._threshold = settings.reorg_threshold
        self._reassembler, self._orderer, self._reorgs = reassembler, orderer, reorgs
        self._held: dict[bytes, Held] = {}
        self._finished: list[tuple[int, bytes]] = []
        self._trimmed = 0
        self._cut: list[tuple[int, bytes]] = []
        self._disputed: set[bytes] = set()
        self._chain: list[Held] = []
        self._next: dict[Partition, int] = {}
        self._resume: dict[Partition, int] = {}
        self._records = 0
        self._open: OpenThen | None = None
        self._standing: Standing | None = None
        self._past: Cursor | None = None
        self._start: BlockRef | None = None
        self._root = b""
        self._old: frozenset[bytes] = frozenset()
        self._let_go = FadingPins(AGE_MAX)
        self.pins = Pins()

    # --- what happens ----------------------------------------------------------------------------------------

    def restore(self, cursor: Cursor) -> None:
        """Begin where a cursor stands; where its blocks lie is learnt when they are read again."""
        self._past, self._start, self._root = cursor, cursor.start, cursor.root
        self._next = dict(cursor.floor)
        lost = {ref.hash for ref in cursor.ring if ref.hash in cursor.missing and short(ref.hash) in cursor.done}
        self._chain = [
            Held(ref, 0, None if ref.hash in lost else {}, missing=ref.hash in cursor.missing)
            for ref in reversed(cursor.ring)
        ]
        self._held = {held.ref.hash: held for held in self._chain}
        if self._chain:
            self._chain[-1].weight = cursor.weight
            self._resume = dict(cursor.next)
            self.pins.put(_RESUME, cursor.floor)

    def resumed(self) -> None:
        """What was delivered before is read again.

        Of what is still open, parts of old blocks are told apart by the open ones that the cursor names: unless it may
        not name all of them.
        """
        self._resume = {}
        self.pins.discard(_RESUME)
        if self._past is not None and len(self._past.open) < OPEN_MAX:
            self._old = self._reassembler.resumed(self._past.next, self._past.open)

    def read(self, records: int) -> None:
        """So many records were taken."""
        self._records += records

    def at(self, positions: Mapping[Partition, int]) -> None:
        """The next offset of every partition."""
        if any(partition not in self._next for partition in positions):
            self._open = None
        self._next.update(positions)

    def superseded(self, block_hash: bytes) -> None:
        """The block that is completed next is another than its first Batch said."""
        self._disputed.add(block_hash)

    def completed(self, *events: Completed) -> None:
        """Blocks are complete: known anew, or read again."""
        for event in events:
            block = event.payload
            held = self._held.get(block.hash)
            if held is None:
                held = Held(BlockRef(block.number, block.hash), block.weight, event.positions)
                self._held[block.hash] = held
            elif not held.places:
                held.found(block.weight, event.positions)
            held.disputed = block.hash in self._disputed
            held.supplied = not held.places
            self._disputed.discard(block.hash)
            self.pins.put(block.hash, held.places)
            self.finished(block.number, block.hash)

    def finished(self, number: int, block_hash: bytes) -> None:
        """A block is complete, or was given up."""
        self._finished.append((number, short(block_hash)))

    def cut(self, floor: int, block_hash: bytes) -> None:
        """A block left with its branch, whose root fell below this floor: what begins there does not need it.

        Its own number lies above the floor, and a cursor of a lower head can still come back to it.
        """
        self._cut.append((floor, short(block_hash)))

    def bridged(self, header: Header, places: Mapping[Partition, int]) -> None:
        """A block without its content takes part."""
        self._held[header.hash] = Held(BlockRef(header.number, header.hash), header.weight, places, missing=True)
        self.pins.put(header.hash, places)

    def places(self, block_hash: bytes) -> Mapping[Partition, int]:
        """Where the messages of a held block begin."""
        held = self._held.get(block_hash)
        return {} if held is None else held.places

    def released(self, hashes: Iterable[bytes]) -> None:
        """These blocks are held no longer."""
        for block_hash in hashes:
            held = self._held.pop(block_hash, None)
            self.pins.discard(block_hash)
            if held is not None and self._standing is not None:
                lower(self._standing.left, held.places)

    def let_go(self, blocks: Iterable[Explanation]) -> None:
        """There was no room for these complete blocks: they are to be read again."""
        for block in blocks:
            self._let_go.put(block.block, block.positions, block.number)

    def reread(self) -> None:
        """A block is read again: from now on one may be open that begins below where the reading stood at any time."""
        self._open = None

    def delivered(self, update: ChainUpdate) -> tuple[tuple[Held, ...], Callable[[], Cursor]]:
        """The chain moves; returns the ring, oldest first, and what makes the update's cursor."""
        chain = self._chain
        if self._start is None:
            first = update.added[0]
            self._start = BlockRef(first.number, first.hash)
            self._root = b"" if isinstance(first, MissingPayload) else first.parent
        if update.removed:
            del chain[-len(update.removed) :]
            self._deepen(update.added[0].number - 1, update.added[-1].number - self._threshold)
        for block in update.added:
            held = self._held[block.hash]
            held.missing = isinstance(block, MissingPayload)
            self.pins.put(block.hash, held.places)  # again: it may have aged while it waited
            chain.append(held)
        if len(chain) > 4 * self._threshold:
            del chain[: -2 * self._threshold - 1]  # a switch may lower the head by a threshold
        self._let_go.passed(chain[-1].ref.number - self._threshold)
        ring = tuple(chain[-self._threshold - 1 :])
        standing = self._standing = self._standing or Standing(self._reorgs.open(), len(self._cut))
        standing.updates += 1
        return ring, partial(self._make, ring, update, standing, standing.updates)

    def _deepen(self, highest: int, lowest: int) -> None:
        """After a deep reorg the ring goes on with older blocks, of which only the hash is known."""
        number = self._chain[0].ref.number - 1 if self._chain else highest
        older: list[Held] = []
        while number >= max(lowest, self._orderer.first) and (found := self._orderer.hash_at(number)) is not None:
            older.append(Held(BlockRef(number, found), 0, None))
            number -= 1
        self._chain[:0] = reversed(older)

    # --- cursors ---------------------------------------------------------------------------------------------

    @property
    def lineage(self) -> bytes:
        """What ``seq`` belongs to: the options, and the first block of the stream once it is known."""
        return self._settings.fingerprint() + (b"" if self._start is None else short(self._start.hash))

    def cursor(self) -> Cursor:
        """Where the stream stands now."""
        ring = tuple(self._chain[-self._threshold - 1 :])
        update = ChainUpdate(self._orderer.seq, (), (), self._orderer.finality)
        return self._make(ring, update, self._stand(Standing()), 0)

    def step_ends(self) -> None:
        """All updates since the last call get the cursor of this moment."""
        if self._standing is not None:
            self._stand(self._standing)
            self._standing = None
        keep = _FINISHED * self._threshold
        if len(self._finished) > self._trimmed + keep:
            self._trim_finished(keep)
        if len(self._cut) > 2 * keep:
            self._cut = self._cut[-keep:]

    def _trim_finished(self, keep: int) -> None:
        """Forget finished blocks that no cursor can name any more; cursors that are not made yet hold the longer list.

        Those that lie above the head may be finished long before the head comes there: where one partition is read
        later than others, by hundreds of blocks.
        """
        lowest = self._chain[-1].ref.number - keep if self._chain else 0
        newest = self._finished[-keep:]
        above = (one for one in self._finished[-_FINISHED_MAX:-keep] if one[0] > lowest)
        self._finished = [*above, *newest]
        self._trimmed = len(self._finished)

    def _stand(self, standing: Standing) -> Standing:
        """Write down where the reading stands now."""
        following = dict(self._next)
        for partition, offset in self._resume.items():
            following[partition] = max(offset, following.get(partition, 0))
        if self._open is None or self._records - self._open.records >= self._open.worth():
            self._open = OpenThen(self._reassembler, self._next, self._records, self._old)
        floor = dict(self._next)
        let_go = self._let_go.lowest(self._records)
        for places in (self._open.floor, self.pins.lowest(self._aged), let_go, self._reorgs.positions()):
            lower(floor, places)
        standing.next, standing.floor = following, floor
        standing.finished = Listed(self._finished, len(self._finished))
        standing.cut = Listed(self._cut, len(self._cut))
        standing.open = self._open.prefixes
        standing.channels = self._reorgs.open()
        standing.violation = self._orderer.violation
        return standing

    def _aged(self, name: bytes, partition: Partition, offset: int) -> bool:
        behind = self._next.get(partition, offset) - offset
        return behind > AGE_MAX and self._orderer.waits(name) is True

    def _make(self, ring: tuple[Held, ...], update: ChainUpdate, standing: Standing, index: int) -> Cursor:
        """The cursor of an update, the ``index``-th of its step; 0 for no update."""
        if not standing.next:
            # Asked for before the driver called `progress`: what is known now is safe, if lower than need be.
            self._stand(standing)
        floor, channels = dict(standing.floor), standing.channels
        for held in ring:
            lower(floor, held.places)
        if index < standing.updates:
            lower(floor, standing.left)
            closed = standing.closed()
            channels = (*channels, *closed)[:CHANNELS_MAX]
            topics = {reorg_topic(self._settings.default_topic or "", ancestor.hash) for ancestor in closed}
            lower(floor, {where: 0 for where in standing.next if where[0] in topics})
        # Partitions of channels that nothing is needed of any more are left out.
        following = {
            partition: offset
            for partition, offset in {**floor, **standing.next}.items()
            if floor.get(partition, offset) < offset or not self._reorgs.is_channel(partition[0])
        }
        # After a deep reorg to a shorter chain nobody knows where these begin: parts of them may be read again, and
        # perhaps not all.
        unknown = [held for held in ring if not held.known]
        return Cursor(
            lineage=self.lineage,
            app=self._settings.app,
            chain=self._settings.chain,
            seq=update.seq,
            ring=tuple(held.ref for held in reversed(ring)),
            weight=ring[-1].weight if ring else 0,
            next=following,
            floor={partition: floor.get(partition, offset) for partition, offset in following.items()},
            open=standing.open,
            done=self._done(ring, unknown, standing, last=index >= standing.updates),
            finality=update.finality,
            violation=standing.violation,
            start=self._start,
            root=self._root if ring and self._start and ring[0].ref.number == self._start.number else b"",
            missing=frozenset(held.ref.hash for held in ring if held.missing or held.disputed or held in unknown),
            channels=channels,
        )

    def _done(
        self, ring: tuple[Held, ...], unknown: Iterable[Held], standing: Standing, *, last: bool
    ) -> frozenset[bytes]:
        """Blocks below the ring, or cut off with what is, that are finished with: parts of them may be read again.

        What was cut before this update is cut. Of what was cut in its step, by this or by a later update, that is
        judged by the floor, not by the ring: a ring that begins with the stream's first block may not reach down to
        it, and the first block's parent may still be a fork point.
        """
        if not ring:
            return frozenset()
        lowest, floor, most = ring[0].ref.number, ring[-1].ref.number - self._threshold, 2 * self._threshold
        finished = {one for one in standing.finished if one[0] < lowest}
        before = standing.cut_before
        finished |= {one for at, one in enumerate(standing.cut) if last or at < before or one[0] <= floor}
        elsewhere = [*unknown, *(held for held in ring if held.supplied)]
        done = [*(short(held.ref.hash) for held in elsewhere), *(name for _, name in nlargest(most, finished))]
        past = self._past.done if self._past is not None and self._past.ring else frozenset()
        if self._past is not None and self._past.ring and self._past.ring[0].number + most < ring[-1].ref.number:
            past = frozenset()  # nothing of what was done then can lie above the floor now
        return frozenset([*done, *past][:most])
