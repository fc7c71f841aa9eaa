"""Cursors of updates: the delivered chain, and one snapshot per step of what resuming has to re-read.

The snapshot is taken when a step begins. Every record that an update of the step needs was held then, so that the
snapshot's floor covers it, or was first read within the step, above the positions at its beginning. So all updates of a
step share one floor, lower by one poll than necessary, and their cursors can be made at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.protocols.streams.ordering.orderer import Orderer
from cardinal.protocols.streams.payload import MissingPayload
from cardinal.protocols.streams.types import SHORT, BlockRef, FinalityViolated, Partition, short

from .settings import FollowerSettings


class Delivered(NamedTuple):
    """A delivered block; ``partial``: a resumed reader may find no content of it, or another one."""

    ref: BlockRef
    weight: int
    partial: bool


@dataclass(slots=True)
class CursorSnapshot:
    """Part that all cursors of a step share: floor and next position of every partition, and the names of open blocks.

    ``channels``: the open reorg channels, those at the step's beginning and those at its end.
    """

    floor: Mapping[Partition, int]
    open: frozenset[bytes]
    channels: tuple[BlockRef, ...]
    next: Mapping[Partition, int] = field(default_factory=dict)


class DeliveredChain:
    """The delivered chain within the threshold, and the cursors of its updates."""

    def __init__(self, settings: FollowerSettings, orderer: Orderer, is_channel: Callable[[str], bool]) -> None:
        self._settings = settings
        self._orderer = orderer
        self._is_channel = is_channel
        self._chain: list[Delivered] = []
        self._start: BlockRef | None = None
        self._root = self._first = b""

    @property
    def lineage(self) -> bytes:
        """The name of the lineage of ``seq``: the options, and the first block ever delivered, once there is one."""
        return self._settings.fingerprint() + self._first

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        return self._chain[-1].ref if self._chain else None

    def restore(self, cursor: Cursor) -> None:
        """Begin at a cursor."""
        self._start, self._root, self._first = cursor.start, cursor.root, cursor.lineage[SHORT:]
        self._chain = [Delivered(ref, 0, ref.hash in cursor.missing) for ref in reversed(cursor.ring)]
        if self._chain:
            self._chain[-1] = self._chain[-1]._replace(weight=cursor.weight)

    def move(self, update: ChainUpdate, weights: Mapping[bytes, int], partial: Container[bytes]) -> None:
        """Apply an update. ``weights``: of blocks that are delivered without content. ``partial``.

        See :class:`Delivered`.
        """
        chain, threshold = self._chain, self._settings.reorg_threshold
        first = update.added[0]
        parent = b"" if isinstance(first, MissingPayload) else first.parent
        if self._start is None or (
            first.number <= self._start.number and len(update.removed) >= len(chain) and parent != self._root
        ):
            self._start, self._root = first.ref, parent
            self._first = self._first or short(first.hash)
        if update.removed:
            del chain[: -threshold - 1]  # the content of older blocks is pruned
            del chain[-len(update.removed) :]
            self._deepen(update)
        for block in update.added:
            missing = isinstance(block, MissingPayload)
            weight = weights.get(block.hash, 0) if isinstance(block, MissingPayload) else block.weight
            chain.append(Delivered(BlockRef(block.number, block.hash), weight, missing or block.hash in partial))
        if len(chain) > 2 * threshold:
            del chain[: -threshold - 1]

    def _deepen(self, update: ChainUpdate) -> None:
        """Extend the chain with older blocks where the head is lower than before: only their hashes are held."""
        start = 0 if self._start is None else self._start.number
        lowest = max(update.added[-1].number - self._settings.reorg_threshold, start)
        number = (self._chain[0].ref if self._chain else update.added[0].ref).number - 1
        older: list[Delivered] = []
        while number >= lowest and (found := self._orderer.history.at(number)) is not None:
            older.append(Delivered(BlockRef(number, found), 0, partial=True))
            number -= 1
        self._chain[:0] = reversed(older)

    def ring(self) -> tuple[Delivered, ...]:
        """The delivered blocks within the threshold, oldest first."""
        return tuple(self._chain[-self._settings.reorg_threshold - 1 :])

    def cursor(
        self,
        update: ChainUpdate,
        ring: tuple[Delivered, ...],
        violation: FinalityViolated | None,
        snapshot: CursorSnapshot,
        won: Collection[BlockRef] = (),
    ) -> Cursor:
        """The cursor after an update, of the chain as it was then.

        ``won``: the channels whose chain was delivered by then. Resuming reads them for the content of the chain alone.
        """
        # Partitions of channels that are no longer needed are left out.
        following = {
            partition: offset
            for partition, offset in snapshot.next.items()
            if snapshot.floor.get(partition, offset) < offset or not self._is_channel(partition[0])
        }
        return Cursor(
            lineage=self.lineage,
            app=self._settings.app,
            chain=self._settings.chain,
            seq=update.seq,
            ring=tuple(block.ref for block in reversed(ring)),
            weight=ring[-1].weight if ring else 0,
            next=following,
            floor={p: min(offset, snapshot.floor.get(p, offset)) for p, offset in following.items()},
            open=snapshot.open,
            finality=update.finality,
            violation=violation,
            start=self._start,
            root=self._root if ring and self._start and ring[0].ref.number == self._start.number else b"",
            missing=frozenset(block.ref.hash for block in ring if block.partial),
            channels=tuple(ancestor for ancestor in snapshot.channels if ancestor not in won),
        )
