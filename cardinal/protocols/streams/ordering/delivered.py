"""The chain that a stream has delivered, and how it moves: extensions and switches (rules 1 to 3 of :mod:`.orderer`).

No block is removed that was not delivered: the way down from a new tip ends at the first delivered block, and what is
removed lies above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import cast

from cardinal.protocols.streams.events import ChainUpdate, Header
from cardinal.protocols.streams.payload import AnyPayload, MissingPayload
from cardinal.protocols.streams.types import BlockRef

from .finality import Finalizer
from .forkchoice import Ties, best_tip, paths
from .forktree import Node
from .history import History
from .holding import Holding


class DeliveredChain:
    """See the module.

    Arguments:
        blocks: what is held.
        final: the stream's finality.
        history: delivered blocks by number.
        threshold: blocks below the head that are held.
        ties: see :class:`~.forkchoice.Ties`.
        max_extension: an extension by more blocks is cut into several updates; None: never.
        seq: the last sequence number given.

    """

    def __init__(
        self,
        blocks: Holding,
        final: Finalizer,
        history: History,
        *,
        threshold: int,
        ties: Ties,
        max_extension: int | None,
        seq: int,
    ) -> None:
        self._blocks = blocks
        self._final = final
        self._threshold = threshold
        self._ties = ties
        self._max_extension = max_extension
        self.history = history
        self.seq = seq
        self.head: Node[Header] | None = None
        self.lifted: dict[bytes, int] = {}
        """The ancestors of deep reorgs under way, and their numbers: so far down blocks are held."""

    @property
    def floor(self) -> int:
        """Blocks with a lower number are not held."""
        if self.head is None:
            return -1
        return min(self.head.number - self._threshold, *self.lifted.values(), self.head.number)

    def reference(self, ref: BlockRef, parent: bytes | None = None, weight: int = 0) -> Node[Header]:
        """Hold a block of the chain of which only the reference is known."""
        liar = self._blocks.tree.get(ref.hash)
        if liar is not None:  # it claims a number that is not below its child's
            self._blocks.drop(liar)
            self._blocks.stale(BlockRef(liar.number, liar.hash), f"its number should be {ref.number}")
        node: Node[Header] = Node(ref.number, ref.hash, parent, weight, 0)
        node.linked = node.delivered = True
        self._blocks.tree.insert(node)
        return node

    def lift(self, ancestor: BlockRef) -> None:
        """Hold the chain by reference down to this delivered block, which :attr:`history` names."""
        tree = self._blocks.tree
        unheld = list(takewhile(lambda ref: ref.hash not in tree, self.history.upwards(ancestor.number)))
        parent: bytes | None = None
        for ref in unheld:
            self.reference(ref, parent)
            parent = ref.hash
        lowest = tree.get(self.history.at(ancestor.number + len(unheld)))
        if lowest is not None and lowest.parent is None and parent is not None:
            tree.set_parent(lowest, parent)  # it was never read again after a resume
        self.lifted[ancestor.hash] = ancestor.number

    def judge(self, fresh: Sequence[Node[Header]]) -> list[ChainUpdate]:
        """Move where the blocks that were just linked call for it; the others stand on side branches.

        Arguments:
            fresh: linked blocks, and with each all that descends from it.

        """
        if self.head is None:
            return []
        tip = best_tip(self._blocks.tree, self.head, fresh, self._ties)
        updates = [] if tip is None else self.move(self.head, tip)
        self._blocks.stand_aside(fresh)
        return updates

    def move(self, head: Node[Header], tip: Node[Header]) -> list[ChainUpdate]:
        """Make a linked block the head in place of another, unless finality forbids it."""
        old, new = paths(self._blocks.tree, head, tip)
        if old:
            allowed, report = self._final.allows(BlockRef(tip.number, tip.hash), old[-1].number)
            self._blocks.reports += [] if report is None else [report]
            if not allowed:
                return []
        removed = tuple(_content(node) for node in old)
        for node in old:
            node.delivered = False
            node.missing = node.missing and node.item is None  # what comes back comes with what is at hand by then
        self._blocks.stand_aside(old)
        self.history.cut(len(old))
        new.reverse()
        step = len(new) if old or self._max_extension is None else self._max_extension
        updates = []
        for at in range(0, len(new), step):
            updates.append(self._deliver(removed, new[at : at + step]))
            removed = ()
        self.prune()
        return updates

    def prune(self) -> None:
        """Forget what lies below the floor."""
        self._blocks.prune(self.floor)

    def _deliver(self, removed: tuple[AnyPayload, ...], nodes: list[Node[Header]]) -> ChainUpdate:
        for node in nodes:
            node.delivered = True
            self._blocks.side.discard(node)
            self.history.append(BlockRef(node.number, node.hash))
            if node.item is not None:
                self._final.delivered(node.item)
        self.head = nodes[-1]
        self.seq += len(removed) + len(nodes)
        return ChainUpdate(self.seq, removed, tuple(_content(node) for node in nodes), self._final.marks)


def _content(node: Node[Header]) -> AnyPayload:
    if node.item is None or node.missing:
        return MissingPayload(node.number, node.hash)
    # Whoever feeds headers gets headers back; for consumers they are payloads.
    return cast("AnyPayload", node.item)
