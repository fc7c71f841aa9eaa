"""The total difficulty of a block: what adds up from what is known, and what the node says where nothing is.

Nodes disagree on this field: old ones serve it, geth has dropped it, anvil says zero. Rules:

1. Before the merge it is the parent's total and the block's own difficulty. What a node serves has to be the same, else
   the block is refused.
2. The parent's was told when it was given, or is the weight under which it is published.
3. Where neither is so (the first block of a stream), what the node serves counts. Where it serves none, it is learned
   once: from the parent's header, or by adding up all headers from block 0, for chains short enough.
4. After the merge it is the chain's preset; without one what it was when proof of work ended, as a block that was given
   or a published weight tells. What a node serves counts for nothing: so two producers agree whichever they ask. Where
   nothing tells, it is zero here, and the application decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cardinal.apps.evm.rpc.structures import RpcHeader
from cardinal.errors import IntegrityError, NodeAnswerError

from .headers import is_named
from .walk import ChainMovedError

if TYPE_CHECKING:
    from .fetch import BlockFetcher, Header
    from .known import KnownBlocks

HEADERS_AT_ONCE = 500
"""Headers in a batch when a difficulty is added up."""


@dataclass(slots=True)
class Learned:
    """What a feed knows of totals beside the blocks of one walk.

    Attributes:
        weights: those of published blocks, by hash.
        final: the total at which proof of work ended; None where it has not, or nothing told it.

    """

    weights: dict[bytes, int] = field(default_factory=dict)
    final: int | None = None


class Totals:
    """Total difficulties for the blocks of one walk through a chain.

    Arguments:
        fetcher: where headers come from.
        known: blocks with the totals that were learned; a block's parent is in it, or it is the first.
        sum_blocks: most headers that are added up.
        preset: the total at which the chain's proof of work ended, where that is known beforehand.
        learned: what the feed knows beside these blocks; grows.

    """

    def __init__(
        self,
        fetcher: BlockFetcher,
        known: KnownBlocks,
        *,
        sum_blocks: int,
        preset: int | None = None,
        learned: Learned | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._known = known
        self._sum_blocks = sum_blocks
        self._preset = preset
        self._learned = learned or Learned()

    @property
    def final(self) -> int:
        """The total of all blocks after the merge, as far as it is known by now; else zero."""
        return (self._learned.final if self._preset is None else self._preset) or 0

    async def of(self, header: Header) -> int:
        """The total difficulty of a block whose header hash was verified.

        Raises:
            IntegrityError: the node says another total than the parent's and the block's own difficulty make.
            NodeAnswerError: the node serves none and the chain is too long to add it up.
            ChainMovedError: the node's chain changed while it was added up, or it lacks a published block.

        """
        difficulty = int(header.difficulty, 16)
        if not difficulty:
            return await self._merged(header)
        served = int(header.total_difficulty or "0x0", 16)
        before = 0 if header.height == 0 else await self._parents(header)
        if served:
            if before is not None and (before or header.height <= 1) and before + difficulty != served:
                raise IntegrityError(
                    f"Block {header.height} ({header.hash}) has the total difficulty {served} by the node's word, "
                    f"but its parent's and its own make {before + difficulty}; ask another node.",
                    number=header.height,
                    block_hash=header.id,
                    check="total difficulty",
                )
            return served
        return (await self._before(header) if before is None else before) + difficulty

    async def _parents(self, header: Header) -> int | None:
        """The total of the parent of a block with difficulty, where it was told or is published.

        Such a parent's weight is its total. Only of block 0 that is not sure: without difficulty it counts as merged.
        """
        total = self._known.total(header.parent)
        if total is not None or header.parent not in self._learned.weights:
            return total
        if header.height == 1:
            return int((await self._published(header.parent)).difficulty, 16)
        return self._learned.weights[header.parent]

    async def _merged(self, header: Header) -> int:
        """The total of a block without difficulty."""
        if self._preset is None and header.height:
            if before := self._known.total(header.parent):
                self._learned.final = before
            elif self._learned.final is None and (weight := self._learned.weights.get(header.parent)) is not None:
                parent = await self._published(header.parent)
                self._learned.final = weight if int(parent.difficulty, 16) else weight - int(parent.number, 16)
        return self.final

    async def _published(self, block_hash: bytes) -> RpcHeader:
        """The header of a published block: a weight alone does not tell whether its block's number is in it."""
        name = f"0x{block_hash.hex()}"
        found = await self._fetcher.call(RpcHeader, "eth_getBlockByHash", name, False)  # noqa: FBT003 - JSON-RPC
        if found is None or not is_named(found, block_hash):
            raise ChainMovedError(f"The node does not have block {name}, which is published (any more, or yet).")
        return found

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
