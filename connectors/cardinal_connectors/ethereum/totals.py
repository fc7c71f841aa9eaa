"""The total difficulty of a block: what the node says, or what adds up.

Nodes disagree on this field: old ones serve it, geth has dropped it, anvil says zero. Rules:

1. A served value that is not zero counts; where the parent's is known, the two must add up, else the block is
   refused.
2. Before the merge, where none is served, the parent's total and the block's own difficulty are added.
3. Where the parent's is not known (the tip of what is published), it is learned once: from the parent's header, or by
   adding up all headers from block 0, for chains short enough.
4. After the merge, where none is served, it is zero here, and the application's preset counts: so two producers agree
   whenever they were started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import IntegrityError, NodeAnswerError

from .walk import ChainMovedError

if TYPE_CHECKING:
    from .fetch import BlockFetcher, Header
    from .known import KnownBlocks

HEADERS_AT_ONCE = 500
"""Headers in a batch when a difficulty is added up."""


class Totals:
    """Total difficulties for the blocks of one walk through a chain.

    Arguments:
        fetcher: where headers come from.
        known: blocks with the totals that were learned; a block's parent is in it, or it is the first.
        sum_blocks: most headers that are added up.

    """

    def __init__(self, fetcher: BlockFetcher, known: KnownBlocks, *, sum_blocks: int) -> None:
        self._fetcher = fetcher
        self._known = known
        self._sum_blocks = sum_blocks

    async def of(self, header: Header) -> int:
        """The total difficulty of a block whose header hash was verified.

        Raises:
            IntegrityError: the node says another total than the parent's and the block's own difficulty make.
            NodeAnswerError: the node serves none and the chain is too long to add it up.
            ChainMovedError: the node's chain changed while it was added up.

        """
        difficulty = int(header.difficulty, 16)
        served = int(header.total_difficulty or "0x0", 16)
        before = 0 if header.height == 0 else self._known.total(header.parent)
        if served:
            if before is not None and (before or header.height == 0) and before + difficulty != served:
                raise IntegrityError(
                    f"Block {header.height} ({header.hash}) has the total difficulty {served} by the node's word, "
                    f"but its parent's and its own make {before + difficulty}; ask another node.",
                    number=header.height,
                    block_hash=header.id,
                    check="total difficulty",
                )
            return served
        if not difficulty:
            return 0
        return (await self._before(header) if before is None else before) + difficulty

    async def _before(self, header: Header) -> int:
        """The total difficulty of a parent that was not given by this feed."""
        parent = await self._fetcher.header_by_hash(header.parent)
        if parent is not None and (served := int(parent.total_difficulty or "0x0", 16)):
            total = served
        else:
            total = await self._summed(header)
        if header.parent in self._known:
            self._known.learn(header.parent, total)
        return total

    async def _summed(self, header: Header) -> int:
        """All difficulties below a block, each header linked to the one before."""
        if header.height > self._sum_blocks:
            raise NodeAnswerError(
                f"The node serves no totalDifficulty, and block {header.height} is too far from the first to add it "
                f"up; use a node that serves it, or start at block 0."
            )
        total, last = 0, None
        for first in range(0, header.height, HEADERS_AT_ONCE):
            for found in await self._fetcher.headers(range(first, min(first + HEADERS_AT_ONCE, header.height))):
                if found is None or (last is not None and found.parent != last):
                    raise ChainMovedError("The node's chain changed while its difficulty was added up.")
                total, last = total + int(found.difficulty, 16), found.id
        if last != header.parent:
            raise ChainMovedError("The node's chain changed while its difficulty was added up.")
        return total
