"""Total difficulty of blocks: the sum over known blocks, else the node's value.

Nodes differ in this field: old ones serve it, geth has dropped it, anvil returns zero. Rules:

1. Before the merge it is the parent's total plus the block's own difficulty. A block with another served value is
   refused.
2. The parent's total is that of the delivered block, or the weight under which the block is published.
3. Otherwise (the first block of a stream) the served value counts. If the node serves none, it is computed once: from
   the parent's header, or as the sum over all headers from block 0 if the chain is short enough.
4. After the merge it is the chain's preset; without one, the total at which proof of work ended, from a delivered block
   or a published weight. The served value is ignored, so two producers agree on different nodes. If it is unknown, it
   is zero here, and the application decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cardinal.apps.evm.rpc.structures import RpcHeader
from cardinal.errors import IntegrityError, NodeAnswerError
from cardinal_connectors.ethereum.chain.blocks import ChainMovedError, is_named

if TYPE_CHECKING:
    from cardinal_connectors.ethereum.chain.blocks import BlockHeader
    from cardinal_connectors.ethereum.chain.fetch import BlockFetcher
    from cardinal_connectors.ethereum.chain.recent_blocks import RecentBlocks

HEADERS_AT_ONCE = 500
"""Headers in a batch of the sum."""


@dataclass(slots=True)
class LearnedTotals:
    """Totals that a feed knows in addition to its recent blocks.

    Attributes:
        weights: weights of published blocks by hash.
        final: total at which proof of work ended; None while it has not, or is unknown.

    """

    weights: dict[bytes, int] = field(default_factory=dict)
    final: int | None = None


class TotalDifficulties:
    """Total difficulties of the blocks of one chain.

    Arguments:
        fetcher: fetches headers.
        recent: recent blocks with their totals; includes a block's parent unless the block is the first.
        sum_blocks: maximum number of headers in a sum.
        preset: total at which the chain's proof of work ended, from its preset.
        learned: further totals; grows.

    """

    def __init__(
        self,
        fetcher: BlockFetcher,
        recent: RecentBlocks,
        *,
        sum_blocks: int,
        preset: int | None = None,
        learned: LearnedTotals | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._recent = recent
        self._sum_blocks = sum_blocks
        self._preset = preset
        self._learned = learned or LearnedTotals()

    @property
    def final(self) -> int:
        """Total of all blocks after the merge; zero while unknown."""
        return (self._learned.final if self._preset is None else self._preset) or 0

    async def of(self, header: BlockHeader) -> int:
        """Total difficulty of a block whose header hash was verified.

        Raises:
            IntegrityError: the served value differs from the sum.
            NodeAnswerError: the node serves none and the chain is too long for a sum.
            ChainMovedError: the node's chain changed during the sum, or it lacks a published block.

        """
        difficulty = int(header.difficulty, 16)
        if not difficulty:
            return await self._merged(header)
        served = int(header.total_difficulty or "0x0", 16)
        before = 0 if header.height == 0 else await self._parents(header)
        if served:
            if before is not None and (before or header.height <= 1) and before + difficulty != served:
                raise IntegrityError(
                    f"block {header.height} ({header.hash}) has the total difficulty {served} according to the node, "
                    f"but its parent's plus its own is {before + difficulty}; use another node",
                    number=header.height,
                    block_hash=header.id,
                    check="total difficulty",
                )
            return served
        return (await self._before(header) if before is None else before) + difficulty

    async def _parents(self, header: BlockHeader) -> int | None:
        """Total of the parent of a block with difficulty, if the parent is recent or published; else None.

        Such a parent's weight is its total. Block 0 is the exception: without difficulty it counts as merged.
        """
        total = self._recent.total(header.parent)
        if total is not None or header.parent not in self._learned.weights:
            return total
        if header.height == 1:
            return int((await self._published(header.parent)).difficulty, 16)
        return self._learned.weights[header.parent]

    async def _merged(self, header: BlockHeader) -> int:
        """Total of a block without difficulty."""
        if self._preset is None and header.height:
            if before := self._recent.total(header.parent):
                self._learned.final = before
            elif self._learned.final is None and (weight := self._learned.weights.get(header.parent)) is not None:
                parent = await self._published(header.parent)
                self._learned.final = weight if int(parent.difficulty, 16) else weight - int(parent.number, 16)
        return self.final

    async def _published(self, block_hash: bytes) -> RpcHeader:
        """Header of a published block, which shows whether the weight includes the block's number."""
        name = f"0x{block_hash.hex()}"
        header = await self._fetcher.call(RpcHeader, "eth_getBlockByHash", name, False)  # noqa: FBT003 - JSON-RPC
        if header is None or not is_named(header, block_hash):
            raise ChainMovedError(f"the node does not have block {name}, which is published (any more, or yet)")
        return header

    async def _before(self, header: BlockHeader) -> int:
        """Total difficulty of a parent that this feed did not deliver."""
        parent = await self._fetcher.header_by_hash(header.parent)
        if parent is not None and (served := int(parent.total_difficulty or "0x0", 16)):
            total = served
        else:
            total = await self._summed(header)
        if header.parent in self._recent:
            self._recent.learn(header.parent, total)
        return total

    async def _summed(self, header: BlockHeader) -> int:
        """Sum of all difficulties below a block, each header linked to the one before."""
        if header.height > self._sum_blocks:
            raise NodeAnswerError(
                f"the node serves no totalDifficulty, and block {header.height} is too far from the first for a "
                f"sum; use a node that serves it, or start at block 0"
            )
        total, last = 0, None
        for first in range(0, header.height, HEADERS_AT_ONCE):
            for following in await self._fetcher.headers(range(first, min(first + HEADERS_AT_ONCE, header.height))):
                if following is None or (last is not None and following.parent != last):
                    raise ChainMovedError("the node's chain changed during the sum of its difficulties")
                total, last = total + int(following.difficulty, 16), following.id
        if last != header.parent:
            raise ChainMovedError("the node's chain changed during the sum of its difficulties")
        return total
