"""Pending blocks: the chain that was added and that no node has acknowledged yet, with a future for each block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cardinal._concurrency import new_future, settle
from cardinal.errors import CardinalError, LocalProtocolError, OrphanedError
from cardinal.producing.inflight import ProducerStats
from cardinal.protocols.streams.types import BlockRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


@dataclass(frozen=True, slots=True, eq=False)
class PendingBlock:
    """A block as it is pushed.

    Attributes:
        ref, parent: its number and hash, and its parent's hash.
        items: what is pushed.
        size: bytes of the items.
        future: ends when it is acknowledged.

    """

    ref: BlockRef
    parent: bytes
    items: tuple[bytes, ...]
    size: int
    future: Future[None] = field(default_factory=new_future)


class Pending:
    """Blocks by ascending number, one chain."""

    def __init__(self) -> None:
        self._blocks: dict[int, PendingBlock] = {}
        self._tip: BlockRef | None = None
        self._bytes = 0
        self._done = ProducerStats(0, 0, 0, 0)

    @property
    def stats(self) -> ProducerStats:
        """Counters of what was acknowledged; ``messages`` are items."""
        blocks = tuple(self._blocks.values())
        return self._done._replace(
            in_flight=len(blocks),
            queued_messages=sum(len(block.items) for block in blocks),
            queued_bytes=self._bytes,
        )

    @property
    def size(self) -> int:
        """Bytes of their items."""
        return self._bytes

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._blocks)

    @property
    def futures(self) -> list[Future[None]]:
        """Of all blocks."""
        return [block.future for block in tuple(self._blocks.values())]

    @property
    def lowest(self) -> int | None:
        """The lowest block."""
        return next(iter(self._blocks), None)

    @property
    def highest(self) -> int | None:
        """The highest block."""
        return next(reversed(self._blocks), None)

    def ref(self, number: int) -> BlockRef | None:
        """The block of this number."""
        block = self._blocks.get(number)
        return None if block is None else block.ref

    def turns(self, ref: BlockRef, parent: bytes) -> bool:
        """Return True where the chain is left for this block: above its parent.

        Raises:
            LocalProtocolError: the block is pending already, or its parent is not the block below it.

        """
        held = self._blocks.get(ref.number)
        if held is not None and held.ref == ref:
            raise LocalProtocolError(f"block {ref.number} (0x{ref.hash.hex()}) is in flight already")
        below, tip = self._blocks.get(ref.number - 1), self._tip
        known = tip if below is None else below.ref
        if known is not None and known.number == ref.number - 1 and known.hash != parent:
            raise LocalProtocolError(
                f"block {ref.number} is not a child of block {known.number} that was added: publish its branch with "
                "reorg()"
            )
        return tip is not None and ref.number <= tip.number

    def append(self, block: PendingBlock) -> None:
        """Add the next block."""
        self._blocks[block.ref.number] = block
        self._tip = block.ref
        self._bytes += block.size

    def acknowledge(self, number: int) -> None:
        """End the futures of the blocks up to a number."""
        for block in self._removed(lambda one: one <= number):
            done = self._done
            self._done = done._replace(
                blocks=done.blocks + 1, messages=done.messages + len(block.items), bytes=done.bytes + block.size
            )
            settle(block.future, None)

    def cut(self, ancestor: int) -> None:
        """Fail the blocks above an ancestor: they have left the chain."""
        if self._tip is None or ancestor >= self._tip.number:
            return
        for block in self._removed(lambda one: one > ancestor):
            number, block_hash = block.ref.number, block.ref.hash
            settle(
                block.future,
                OrphanedError(
                    f"block {number} (0x{block_hash.hex()}) left the chain before a node acknowledged it",
                    number=number,
                    block_hash=block_hash,
                ),
            )
        below = self._blocks.get(ancestor)
        self._tip = None if below is None else below.ref

    def fail(self, error_of: Callable[[BlockRef], CardinalError]) -> None:
        """Fail all blocks, and forget the chain."""
        removed = self._removed(lambda _: True)
        self._tip = None
        for block in removed:
            settle(block.future, error_of(block.ref))

    def _removed(self, leaves: Callable[[int], bool]) -> list[PendingBlock]:
        removed = [self._blocks.pop(number) for number in [number for number in self._blocks if leaves(number)]]
        self._bytes -= sum(block.size for block in removed)
        return removed
