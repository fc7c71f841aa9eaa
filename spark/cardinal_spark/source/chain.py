"""An orderer that can be put where another one stood, from values that an offset and the log give.

It is built anew for every batch, so that nothing can be in it that a restart would not find again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cardinal.protocols.streams.events import ChainUpdate, Header
from cardinal.protocols.streams.ordering.orderer import OnFinalityViolation, Orderer, Ties
from cardinal.protocols.streams.types import BlockRef, Finality


class PlanOrderer(Orderer):
    """An :class:`~cardinal.protocols.streams.ordering.orderer.Orderer` for one batch.

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
            node = self._node(block, block, 0)
            self._tree.insert(node)
            self._blocks.waiting.add(node)
        self._chain.head = self._tree.get(head.hash)
        if self._chain.head is None:
            return False
        self._begin_with(start)
        self._final.marks = finality
        *_, lowest = self._tree.ancestors(self._chain.head)
        if lowest.number == start.number and lowest.parent is not None:
            # The fork point below the start: a heavier chain may replace the start itself.
            self._chain.reference(BlockRef(start.number - 1, lowest.parent), None, -1)
        self._blocks.stand_aside(self._link_down(self._chain.head))
        return True

    def judge(self) -> list[ChainUpdate]:
        """Judge every linked block, also those that were there before (a stream that begins behind a lake's end)."""
        return self._chain.judge(list(self._blocks.side))
