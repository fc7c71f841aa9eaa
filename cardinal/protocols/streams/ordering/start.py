"""First block of a stream without a configured start.

Rules:

1. The lowest block of the heaviest linked chain, chosen when the reader has caught up, or when that chain is longer
   than the reorg threshold.
2. A patient reader, which delivers everything on the topics, decides itself when to begin (:class:`StartCandidate`):
   partitions are read one ahead of the other, and a producer whose broker was unreachable may have written a block
   before its parent. So blocks below the candidate that are not linked to it leave a doubt.
3. For a patient reader a chain also leads through incomplete blocks that have a Batch: a lost message near the
   beginning of a stream hides no complete block below it.
4. The start's parent is the lowest possible fork point. A heavier chain that shares it replaces the start; one that
   leaves deeper is reported, and never followed: it would remove blocks that were not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import BlockRef

from .forkchoice import rank
from .forktree import ForkTree, Node


@dataclass(frozen=True, slots=True)
class StartCandidate:
    """Block with which a stream would begin now.

    ``length``: the complete blocks of its chain; ``lowest``: the number of the lowest complete block of all.
    """

    start: BlockRef
    length: int
    lowest: int


class _Chain(NamedTuple):
    """Chain of complete blocks, and incomplete ones that have a Batch, up to one block of this number."""

    start: Node
    length: int
    number: int


class StartRule:
    """Choice of the start. A chain of more blocks than ``threshold`` is long enough."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._seen = 0
        self._look_at = threshold

    def long_enough(self, tree: ForkTree) -> bool:
        """True when one more block made the heaviest chain longer than the threshold.

        The check runs when the blocks seen have grown by a quarter, so that the work stays linear.
        """
        self._seen += 1
        if self._seen <= self._look_at or not len(tree):
            return False
        self._look_at = self._seen + self._seen // 4
        return sum(1 for _ in tree.ancestors(min(tree, key=rank))) > self._threshold

    def candidate(self, tree: ForkTree, incomplete: Iterable[BlockHeader]) -> StartCandidate:
        """The start for a patient reader; the graph is not empty. ``incomplete``.

        Batches of blocks whose content is missing. Of the chains that are longer than the threshold the one with the
        lowest start: blocks that stand higher and are not linked to it come through a reorg channel, or wait for
        missing ones. Without such a chain, the heaviest.
        """
        between = {header.hash: header for header in incomplete if header.hash not in tree}
        chains: dict[bytes, _Chain] = {}
        tips: dict[bytes, Node] = {}
        for block in sorted([*tree, *between.values()], key=lambda block: block.number):
            below = chains.get(block.parent or b"")
            if below is not None and below.number >= block.number:
                below = None
            if isinstance(block, Node):
                start, length = (block, 1) if below is None else (below.start, below.length + 1)
                chains[block.hash] = _Chain(start, length, block.number)
                tip = tips.get(start.hash)
                if tip is None or rank(block) < rank(tip):
                    tips[start.hash] = block
            elif below is not None:
                chains[block.hash] = _Chain(below.start, below.length, block.number)
        heaviest = sorted(tips.values(), key=rank)
        long = [tip for tip in heaviest if chains[tip.hash].length > self._threshold]
        tip = min(long, key=lambda tip: chains[tip.hash].start.number) if long else heaviest[0]
        chain = chains[tip.hash]
        return StartCandidate(
            BlockRef(chain.start.number, chain.start.hash), chain.length, min(node.number for node in tree)
        )

    def lowest(self, tree: ForkTree) -> Node:
        """The block to start with; the graph is not empty."""
        *_, lowest = tree.ancestors(min(tree, key=rank))
        return lowest
