"""What can be asked of an orderer: how blocks stand to the delivered chain. Asking changes nothing.

What :mod:`.orderer` decides is kept in the parts that this one is made of.
"""

from __future__ import annotations

from enum import Enum

from cardinal.protocols.streams.events import OrderingEvent
from cardinal.protocols.streams.types import BlockRef, Finality, FinalityViolated

from .admission import Admission
from .delivered import DeliveredChain
from .finality import Finalizer
from .holding import Holding


class Reach(Enum):
    """How a block stands to the delivered chain, where a channel names it as the ancestor of a reorg."""

    KNOWN = "known"
    """It is part of the chain."""
    AHEAD = "ahead"
    """The chain has not come so far."""
    OTHER = "other"
    """Another block stands at its number."""
    FORGOTTEN = "forgotten"
    """The chain is not remembered so far down: :meth:`Orderer.recall` may help."""
    BELOW_START = "below the start"
    """Nothing was delivered so far down."""


class OrderedBlocks:
    """The parts of an orderer.

    Arguments:
        blocks: what is held.
        chain: what is delivered.
        admission: what is taken in.
        final: the finality of what is delivered.

    """

    def __init__(self, blocks: Holding, chain: DeliveredChain, admission: Admission, final: Finalizer) -> None:
        self._blocks = blocks
        self._tree = blocks.tree
        self._chain = chain
        self._admission = admission
        self._final = final
        self._held = False
        self._deepest = 0
        self.start: BlockRef | None = None

    @property
    def seq(self) -> int:
        """The last sequence number given."""
        return self._chain.seq

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        head = self._chain.head
        return None if head is None else BlockRef(head.number, head.hash)

    @property
    def head_weight(self) -> int:
        """The head's weight, 0 without a head."""
        return 0 if self._chain.head is None else self._chain.head.weight

    @property
    def finality(self) -> Finality | None:
        """The marks of the delivered chain."""
        return self._final.marks

    @property
    def violation(self) -> FinalityViolated | None:
        """The first switch that finality spoke against."""
        return self._final.violation

    def ring(self) -> list[BlockRef]:
        """The delivered chain within the threshold, newest first."""
        head = self._chain.head
        if head is None or self.start is None:
            return []
        start = self.start.number
        return [BlockRef(node.number, node.hash) for node in self._tree.ancestors(head) if node.number >= start]

    def standing(self, block_hash: bytes) -> str | None:
        """How a complete block stands to the chain, or what became of it; None where nothing is known of it."""
        node = self._tree.get(block_hash)
        if node is None:
            return "delivered" if block_hash in self._chain.history else self._blocks.fate(block_hash)
        if node.missing and not node.delivered:
            return "given up, to be passed over"
        if not node.linked:
            return f"complete, waiting for its parent {(node.parent or b'').hex()}"
        if not node.delivered:
            return "complete, on a side branch"
        if self._admission.first is not None and node.number < self._admission.first:
            return "below the first block of this stream"
        return "delivered without its content" if node.missing else "delivered"

    @property
    def first(self) -> int:
        """The number of the first block that this stream delivered, or will; 0 where that is not known yet."""
        return self._deepest + 1 if self.start is not None else 0

    @property
    def lowest(self) -> BlockRef | None:
        """The lowest delivered block that is remembered."""
        return self._chain.history.lowest

    def recalls(self, number: int) -> bool:
        """Whether :meth:`Orderer.recall` may lead down to this number: so many blocks are remembered at most."""
        return self._chain.history.recalls(number)

    def hash_at(self, number: int) -> bytes | None:
        """The hash of the delivered block with this number, as far down as that is remembered."""
        return self._chain.history.at(number)

    def holds(self, block_hash: bytes) -> bool:
        """Whether this block is delivered within the threshold, on a side branch, or waiting."""
        return block_hash in self._tree

    def waits(self, block_hash: bytes) -> bool | None:
        """Whether a held block waits for its parent; None where it is not held."""
        node = self._tree.get(block_hash)
        return None if node is None else not node.linked

    def waits_above_head(self, block_hash: bytes) -> bool:
        """Whether this block is held, waits for its parent, and has a higher number than the head."""
        node, head = self._tree.get(block_hash), self._chain.head
        return node is not None and not node.linked and (head is None or node.number > head.number)

    def waiting(self) -> list[bytes]:
        """The blocks that wait for their parents, in the order in which they came."""
        return [node.hash for node in self._blocks.waiting]

    @property
    def crowded(self) -> bool:
        """Whether half of the room for waiting blocks is taken."""
        return self._blocks.waiting.half_full

    def awaited(self, block_hash: bytes) -> bool:
        """Whether complete blocks wait for this one, which is not there."""
        return block_hash not in self._tree and bool(self._tree.children(block_hash))

    def take_events(self) -> list[OrderingEvent]:
        """The reports since the last call."""
        reports, self._blocks.reports = self._blocks.reports, []
        return reports

    def take_released(self) -> list[bytes]:
        """The blocks that are held no longer, since the last call."""
        released, self._blocks.released = self._blocks.released, []
        return released

    def take_cut(self) -> list[tuple[int, bytes]]:
        """Blocks that went because their branch left the chain below a floor, and that floor, since the last call."""
        cut, self._blocks.cut = self._blocks.cut, []
        return cut

    def take_evicted(self) -> list[tuple[BlockRef, bytes, int]]:
        """The blocks, their parents and their bytes, that there was no room for, since the last call."""
        evicted, self._blocks.evicted = self._blocks.evicted, []
        return [(BlockRef(node.number, node.hash), node.parent or b"", node.size) for node in evicted]

    def orphans(self) -> list[tuple[bytes, int]]:
        """Hash and number of every block that is not there and that waiting blocks name as their parent."""
        return [
            (node.parent, node.number - 1)
            for node in self._blocks.waiting
            if node.parent is not None and node.parent not in self._tree
        ]

    def reach(self, ancestor: BlockRef) -> Reach:
        """How the ancestor of a reorg stands to the delivered chain."""
        head, lowest = self._chain.head, self.lowest
        if head is None or lowest is None or self._held or ancestor.number > head.number:
            return Reach.AHEAD
        if ancestor.number < self._deepest:
            return Reach.BELOW_START
        if ancestor.number < lowest.number:
            return Reach.FORGOTTEN
        return Reach.KNOWN if self.hash_at(ancestor.number) == ancestor.hash else Reach.OTHER
