"""Where a stream begins that was given no start.

Rules:

1. The lowest block of the heaviest linked chain, chosen when the reader has caught up, or when that chain is longer
   than the reorg threshold.
2. A patient reader, who wants everything that is there, says itself when to begin (:class:`Candidate`): partitions are
   read one ahead of the other, and a producer whose broker was away may have written a block before its parent. So
   blocks below the candidate that are not linked to it leave a doubt (:mod:`.patience`).
3. The start's parent is the one fork point below which nothing is known. A heavier chain that shares it replaces the
   start; one that leaves deeper is reported, and never followed: it would remove blocks that were not delivered.
"""

from __future__ import annotations

from dataclasses import dataclass

from cardinal.protocols.streams.events import Header
from cardinal.protocols.streams.types import BlockRef

from .forkchoice import Ties, rank
from .forktree import ForkTree, Node


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a stream would begin with now.

    Attributes:
        start: the lowest block of a linked chain.
        length: the blocks of that chain.
        lowest: the number of the lowest complete block of all.

    """

    start: BlockRef
    length: int
    lowest: int


class StartRule:
    """When to look for a start, and what it is.

    Arguments:
        threshold: blocks; a chain of more is long enough.
        ties: see :class:`~.forkchoice.Ties`.

    """

    def __init__(self, threshold: int, ties: Ties) -> None:
        self._threshold = threshold
        self._ties = ties
        self._seen = 0
        self._look_at = threshold

    def long_enough(self, tree: ForkTree[Header]) -> bool:
        """One more block is there: whether the heaviest chain is longer than the threshold.

        It is looked at when the blocks seen have grown by a quarter, so that the work stays linear.
        """
        self._seen += 1
        if self._seen <= self._look_at or not len(tree):
            return False
        self._look_at = self._seen + self._seen // 4
        return sum(1 for _ in tree.ancestors(self._heaviest(tree))) > self._threshold

    def candidate(self, tree: ForkTree[Header]) -> Candidate:
        """What a patient reader begins with; the graph is not empty.

        Of the chains that are longer than the threshold the lowest one: what stands higher and is not linked to it
        comes through a reorg channel, or waits for blocks that are missing. Without such a chain, the heaviest.
        """
        lowest: dict[bytes, Node[Header]] = {}
        lengths: dict[bytes, int] = {}
        best: dict[bytes, Node[Header]] = {}
        for node in sorted(tree, key=lambda node: node.number):
            parent = tree.get(node.parent)
            linked = parent is not None and parent.number < node.number
            root = lowest[node.hash] = lowest[parent.hash] if parent is not None and linked else node
            lengths[node.hash] = lengths[parent.hash] + 1 if parent is not None and linked else 1
            known = best.get(root.hash)
            if known is None or rank(node, self._ties) < rank(known, self._ties):
                best[root.hash] = node
        bottom = next(iter(lowest.values())).number
        heaviest = sorted(best.values(), key=lambda tip: rank(tip, self._ties))
        long = [tip for tip in heaviest if lengths[tip.hash] > self._threshold]
        tip = min(long, key=lambda tip: lowest[tip.hash].number) if long else heaviest[0]
        start = lowest[tip.hash]
        return Candidate(BlockRef(start.number, start.hash), lengths[tip.hash], bottom)

    def lowest(self, tree: ForkTree[Header]) -> Node[Header]:
        """The block to start with; the graph is not empty."""
        *_, lowest = tree.ancestors(self._heaviest(tree))
        return lowest

    def _heaviest(self, tree: ForkTree[Header]) -> Node[Header]:
        return min(tree, key=lambda node: rank(node, self._ties))
