"""The blocks that an orderer holds: delivered, on side branches, waiting; their bounds, and what became of the others.

Rules:

1. A block waits until its parent is linked. Of too many waiting blocks the highest go first: the ones farthest above
   the head.
2. A linked block that was not delivered stands on a side branch. Of too many the lightest leaf goes first.
3. What lies below the floor goes, and with it every side branch that hangs on it: no way leads back to the chain.
4. A block that is refused takes with it all that descends from it, also what comes later.
5. What goes by rules 1, 2 and 4 is reported, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cardinal.protocols.streams.events import Header, OrderingEvent, Quarantined, Stale
from cardinal.protocols.streams.types import BlockRef

from .forkchoice import Ties
from .forktree import ForkTree, Node
from .pool import Pool

_GONE_MAX: Final = 4096
DESCENDS: Final = "it descends from a refused block"


class Holding:
    """See the module.

    Arguments:
        max_waiting, max_side: blocks.
        max_bytes: of the content of waiting blocks, and as much of side branches.
        consecutive: whether a child's number must be its parent's plus one; else it must be higher.
        ties: see :class:`~.forkchoice.Ties`; evictions follow the same rule.

    """

    def __init__(self, max_waiting: int, max_side: int, max_bytes: int, *, consecutive: bool, ties: Ties) -> None:
        self.tree: ForkTree[Header] = ForkTree()
        by_hash = ties is Ties.HASH
        self.waiting = Pool(
            max_waiting, max_bytes, lambda node: (-node.number, 0 if by_hash else -node.arrival, node.hash)
        )
        self.side = Pool(
            max_side,
            max_bytes,
            lambda node: (node.weight, 0 if by_hash else -node.arrival, node.hash),
            free=lambda node: not self.tree.children(node.hash),
        )
        self._consecutive = consecutive
        self.reports: list[OrderingEvent] = []
        self.released: list[bytes] = []
        self.cut: list[tuple[int, bytes]] = []
        self.evicted: list[Node[Header]] = []
        self._refused: dict[bytes, None] = {}
        self._gone: dict[bytes, str] = {}

    # --- coming in -------------------------------------------------------------------------------------------

    def refused(self, block_hash: bytes) -> bool:
        """Whether this block was refused."""
        return block_hash in self._refused

    def fate(self, block_hash: bytes) -> str | None:
        """What became of a block that is not held; None where it is not remembered."""
        return self._gone.get(block_hash)

    def wait(self, node: Node[Header]) -> None:
        """Hold a block whose parent is not linked."""
        self.waiting.add(node)
        for surplus in self.waiting.surplus():
            self._evict(surplus, "too many blocks wait for a parent")

    def link(self, node: Node[Header]) -> list[Node[Header]]:
        """Link a block and everything that waited above it; returns what was linked, parents first.

        Whatever has a number that contradicts its parent's is cut off with all above it.
        """
        linked: list[Node[Header]] = []
        pending = [node]
        while pending:
            current = pending.pop()
            current.linked = True
            self.waiting.discard(current)
            linked.append(current)
            pending += self.fitting(current)
        return linked

    def fitting(self, parent: Node[Header]) -> list[Node[Header]]:
        """The children of a linked block that wait; those whose number contradicts its are cut off."""
        children = list(self.tree.children(parent.hash))
        return [child for child in children if not child.linked and self.follows(child, parent)]

    def agree(self, number: int, parent: int) -> bool:
        """Whether these can be the numbers of a block and its parent."""
        return number == parent + 1 or (not self._consecutive and number > parent)

    def grown(self, node: Node[Header]) -> None:
        """The content of a block has come."""
        self.waiting.grown(node, node.size)
        self.side.grown(node, node.size)

    def follows(self, node: Node[Header], parent: Node[Header]) -> bool:
        """Whether the numbers of a block and its parent agree; where they do not, the block is refused."""
        if self.agree(node.number, parent.number):
            return True
        self.drop(node)
        self.refuse(node, f"its number is {node.number}, its parent's is {parent.number}")
        return False

    # --- going out -------------------------------------------------------------------------------------------

    def drop(self, node: Node[Header]) -> None:
        """Forget one block."""
        self.tree.remove(node)
        self.waiting.discard(node)
        self.side.discard(node)
        self.released.append(node.hash)
        parent = self.tree.get(node.parent)
        if parent is not None:
            self.side.again(parent)

    def refuse(self, block: Header | Node[Header], reason: str) -> None:
        """Refuse a block that is not held, and what waits above it; what is linked to the chain already stays."""
        self._refuse_one(block, reason)
        pending = [block.hash]
        while pending:
            for child in [child for child in self.tree.children(pending.pop()) if not child.linked]:
                self.drop(child)
                self._refuse_one(child, DESCENDS)
                pending.append(child.hash)

    def stale(self, ref: BlockRef, reason: str) -> None:
        """A block goes, or was not taken in, because of where it lies."""
        self.reports.append(Stale(ref, reason))
        self.note(ref.hash, reason)

    def note(self, block_hash: bytes, fate: str) -> None:
        """Remember what became of a block."""
        self._gone.pop(block_hash, None)
        self._gone[block_hash] = fate
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def stand_aside(self, nodes: Sequence[Node[Header]]) -> None:
        """Put linked blocks that were not delivered on side branches, within the bounds."""
        for node in nodes:
            if not node.delivered and node.hash in self.tree:
                self.side.add(node)
        for surplus in self.side.surplus():
            self._evict(surplus, "too many blocks on side branches")

    def prune(self, floor: int) -> None:
        """Forget every block with a lower number, and side branches that hang on them.

        This happens to every uncle some day, so that nothing is reported.
        """
        cut: list[Node[Header]] = []
        for node in self.tree.below(floor):
            self.drop(node)
            if not node.delivered:
                self.note(node.hash, "farther below the head than the reorg threshold, never delivered")
            cut += [child for child in self.tree.children(node.hash) if child.linked and not child.delivered]
        while cut:
            node = cut.pop()
            if node.hash in self.tree:  # else its number was below the floor too
                self.drop(node)
                self.note(node.hash, "left the chain below the reorg threshold, never delivered")
                self.cut.append((floor, node.hash))
                cut += self.tree.children(node.hash)

    def _evict(self, node: Node[Header], reason: str) -> None:
        self.drop(node)
        self.evicted.append(node)
        self.stale(BlockRef(node.number, node.hash), reason)

    def _refuse_one(self, block: Header | Node[Header], reason: str) -> None:
        self.reports.append(Quarantined(block.hash, block.number, reason))
        self.note(block.hash, reason)
        self._refused[block.hash] = None
        if len(self._refused) > _GONE_MAX:
            del self._refused[next(iter(self._refused))]
