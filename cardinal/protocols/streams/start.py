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

from .events import Header
from .forkchoice import Ties, rank
from .forktree import ForkTree, Node
from .types import BlockRef


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a stream would begin with now.

    Attributes:
        start: the lowest block of the heaviest linked chain.
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
        """What to begin with; the graph is not empty."""
        chain = list(tree.ancestors(self._heaviest(tree)))
        start = BlockRef(chain[-1].number, chain[-1].hash)
        return Candidate(start, len(chain), min(node.number for node in tree))

    def lowest(self, tree: ForkTree[Header]) -> Node[Header]:
        """The block to start with; the graph is not empty."""
        *_, lowest = tree.ancestors(self._heaviest(tree))
        return lowest

    def _heaviest(self, tree: ForkTree[Header]) -> Node[Header]:
        return min(tree, key=lambda node: rank(node, self._ties))
