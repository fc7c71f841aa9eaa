"""An orderer that can be put where another one stood, from values that an offset and the log give.

It is built anew for every batch, so that nothing can be in it that a restart would not find again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cardinal.protocols.streams.events import ChainUpdate, ForkBelowStart, Header
from cardinal.protocols.streams.forktree import Node
from cardinal.protocols.streams.ordering import OnFinalityViolation, Orderer, Ties
from cardinal.protocols.streams.types import BlockRef, Finality


class PlanOrderer(Orderer):
    """An :class:`~cardinal.protocols.streams.ordering.Orderer` for one batch.

    Arguments:
        reorg_threshold, finality_of, on_finality_violation, whitelist, seq: as there.

    """

    def __init__(
        self,
        reorg_threshold: int,
        *,
        finality_of: Callable[[Header], Finality | None] | None,
        on_finality_violation: OnFinalityViolation,
        whitelist: Mapping[int, bytes],
        seq: int,
    ) -> None:
        super().__init__(
            None,
            None,
            reorg_threshold,
            whitelist,
            finality_of=finality_of,
            on_finality_violation=on_finality_violation,
            ties=Ties.HASH,
            seq=seq,
        )

    def restore(self, blocks: Iterable[Header], head: BlockRef, start: BlockRef, finality: Finality | None) -> bool:
        """Hold these complete blocks and stand at ``head``; nothing is judged. False where the head is not among them.

        Arguments:
            blocks: every complete block that may still be delivered or removed, in order of number and hash.
            head: the newest delivered block; its ancestors are the delivered chain.
            start: the first delivered block.
            finality: the marks at the head.

        """
        for block in blocks:
            self._arrivals += 1
            node: Node[Header] = Node(block.number, block.hash, block.parent, block.weight, self._arrivals)
            node.item = block
            self._tree.insert(node)
        self._head = self._tree.get(head.hash)
        if self._head is None:
            return False
        self.start, self.finality = start, finality
        delivered = list(self._tree.ancestors(self._head))
        for node in delivered:
            node.linked = True
        lowest = delivered[-1]
        if lowest.number == start.number and lowest.parent is not None:
            # The fork point below the start: a heavier chain may replace the start itself.
            delivered.append(self._reference(BlockRef(start.number - 1, lowest.parent), None, -1))
        for node in delivered:
            for child in list(self._tree.children(node.hash)):
                self._tree.link(child)
        self._waiting = sum(not node.linked for node in self._tree)
        return True

    def judge(self) -> list[ChainUpdate]:
        """Judge every linked block, also those that were there before (a stream that begins behind a lake's end)."""
        return self._advance(self._best_tip([node for node in self._tree if node.linked]))

    def waits(self, block_hash: bytes) -> bool | None:
        """Whether a held block waits for its parent; None where it is not held."""
        node = self._tree.get(block_hash)
        return None if node is None else not node.linked

    def _report_fork_below_start(self, node: Node[Header]) -> None:
        """As there; blocks below the start are not held here, so that such a branch begins at the start's height."""
        start, head = self.start, self._head
        if start is None or head is None or node.weight <= head.weight:
            return
        *_, lowest = self._tree.ancestors(node)
        if lowest.number == start.number and lowest.hash not in self._below_start and not lowest.linked:
            self._below_start.add(lowest.hash)
            self._events.append(ForkBelowStart(BlockRef(node.number, node.hash), start))
