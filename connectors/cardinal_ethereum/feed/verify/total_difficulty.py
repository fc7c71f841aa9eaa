"""Total difficulty of blocks: a function of the chain, or of what is published, never of where a producer started.

Nodes differ in this field: old ones serve it, most have dropped it, anvil returns zero. Rules:

1. Before the merge it is the parent's total plus the block's own difficulty. A block with another served value is
   refused.
2. The parent's total is that of the delivered block, or the weight under which it, or the block itself, is published.
3. Otherwise (the first block of a stream) it counts from the stream's origin, if that is settled.
4. Otherwise it is proposed, in this order: the served value; AuRa's, which follows from a header's step; a sum from the
   nearest known total (block 0, the chain's checkpoints, ``start_total``). If none is in reach, the total is unknown:
   :class:`TotalUnknownError`.
5. After the merge it is the chain's preset; without one, the total at which proof of work ended: from a delivered block
   or a published weight, else of the last block with difficulty, which bisection finds. If block 1 has no difficulty,
   it is zero here, and the application decides. The served value is ignored, so two producers agree.
6. A total that counts from an origin is no total difficulty (:func:`cardinal_ethereum.weights.is_relative`): the
   served value is not compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError, ReorgTooDeepError
from cardinal_ethereum import rlp
from cardinal_ethereum.feed.chain.blocks import ChainMovedError, is_named
from cardinal_ethereum.from_rpc.header import write_header
from cardinal_ethereum.from_rpc.structures import RpcHeader
from cardinal_ethereum.weights import ORIGIN, is_relative

from .origin import HEADERS_AT_ONCE, KnownTotal, OutOfReachError, parent_total

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cardinal_ethereum.chains import Chain
    from cardinal_ethereum.feed.chain.blocks import BlockHeader
    from cardinal_ethereum.feed.chain.fetch import BlockFetcher
    from cardinal_ethereum.feed.chain.recent_blocks import RecentBlocks
    from cardinal_ethereum.feed.settings import StartTotal

__all__ = ["HEADERS_AT_ONCE", "LearnedTotals", "TotalDifficulties", "TotalUnknownError", "proposed_origin"]

_WEIGHTS: Final = 16_384
"""Weights that are stored: more than a window of recent blocks, and all that a start finds published."""
_STEP_DIFFICULTY: Final = (1 << 128) - 1
_STEP: Final = 13
"""Index of the step in a header, where others have the mix hash."""
_STEP_BYTES: Final = 8
_ANY: Any = Any


class TotalUnknownError(NodeAnswerError):
    """No known total is in reach of a block."""


@dataclass(slots=True)
class LearnedTotals:
    """Totals that a feed knows in addition to its recent blocks.

    Attributes:
        weights: weights of published and delivered blocks by hash.
        final: total at which proof of work ended; None while it has not, or is unknown.
        relative: the stream's weights count from an origin.
        origin: block from which the weights of a new stream count; None where published weights decide.

    """

    weights: dict[bytes, int] = field(default_factory=dict)
    final: int | None = None
    relative: bool = False
    origin: KnownTotal | None = None

    def learn(self, weights: dict[bytes, int]) -> None:
        """Add weights by hash; the oldest are pruned."""
        self.weights.update(weights)
        self.relative = self.relative or any(map(is_relative, weights.values()))
        while len(self.weights) > max(_WEIGHTS, len(weights)):
            del self.weights[next(iter(self.weights))]


class TotalDifficulties:
    """Total difficulties of the blocks of one chain.

    Arguments:
        fetcher: fetches headers.
        recent: recent blocks with their totals; includes a block's parent unless the block is the first.
        sum_blocks: maximum number of headers in a sum.
        chain: parameters of the chain; None for one without a preset.
        start_total: a total that the user names.
        learned: further totals; grows.

    """

    def __init__(
        self,
        fetcher: BlockFetcher,
        recent: RecentBlocks,
        *,
        sum_blocks: int,
        chain: Chain | None = None,
        start_total: StartTotal | None = None,
        learned: LearnedTotals | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._recent = recent
        self._sum_blocks = sum_blocks
        self._chain = chain
        self._preset = None if chain is None else chain.final_total_difficulty
        self._start_total = start_total
        self._learned = learned or LearnedTotals()

    @property
    def final(self) -> int:
        """Total of all blocks after the merge; zero while unknown."""
        return (self._learned.final if self._preset is None else self._preset) or 0

    async def of(self, header: BlockHeader) -> int:
        """Total difficulty of a block whose header hash was verified.

        Raises:
            IntegrityError: the served value differs from the sum.
            TotalUnknownError: the node serves none, and no known total is in reach.
            ReorgTooDeepError: the stream's origin is not on the node's chain.
            ChainMovedError: the node's chain changed during the sum, or it lacks a published block.

        """
        difficulty = int(header.difficulty, 16)
        if not difficulty:
            return await self._merged(header)
        before = 0 if header.height == 0 else await self._parents(header)
        if before is None or (before == 0 and header.height > 1):
            before = await self._first(header)
        total = before + difficulty
        served = _served(header)
        if served and not is_relative(total) and served != total:
            raise IntegrityError(
                f"block {header.height} ({header.hash}) has the total difficulty {served} according to the node, "
                f"but its parent's plus its own is {total}; use another node",
                number=header.height,
                block_hash=header.id,
                check="total difficulty",
            )
        return total

    async def propose(self, header: BlockHeader) -> int:
        """Total of the parent of a stream's first block, which has difficulty (rule 4); raises as :meth:`of`."""
        if not header.height:
            return 0
        if served := _served(header):
            return served - int(header.difficulty, 16)
        if (total := await self._served_total(header.parent)) is not None:
            return total
        if self._chain is not None and self._chain.step_difficulty:
            return await self._of_step(header)
        return await self._summed(header)

    async def last_with_difficulty(self, header: BlockHeader) -> BlockHeader | None:
        """The last block before the merge, for one after it; None if block 1 is after it too, or is not there.

        Raises:
            NodeAnswerError: the node lacks headers in between.

        """
        low = await self._fetcher.header(1)
        if low is None or not int(low.difficulty, 16):
            return None
        last, high = low, header.height
        while high - last.height > 1:
            middle = await self._fetcher.header((last.height + high) // 2)
            if middle is None:
                raise NodeAnswerError(
                    "the chain has blocks with a difficulty, and the node lacks headers of them: describe the chain "
                    "with its final_total_difficulty (chain=FILE), or use a node with all headers"
                )
            if int(middle.difficulty, 16):
                last = middle
            else:
                high = middle.height
        return last

    async def _first(self, header: BlockHeader) -> int:
        """Total of the parent of a block with difficulty of which nothing near is known."""
        origin = self._learned.origin
        if origin is not None:
            total = await self._from_origin(origin, header)
        elif self._learned.relative:
            raise TotalUnknownError(
                f"the stream's weights count from an origin, and the weight of block {header.height} is unknown, since "
                "its parent is not published: begin at a block whose parent is, or start a new stream (--topic)"
            )
        else:
            total = await self.propose(header)
        if header.parent in self._recent:
            self._recent.learn(header.parent, total)
        return total

    async def _from_origin(self, origin: KnownTotal, header: BlockHeader) -> int:
        where = f"the stream's weights count from block {origin.number} (0x{origin.hash.hex()})"
        if abs(header.height - origin.number) > self._sum_blocks:
            raise ConfigurationError(
                f"{where}, too far from block {header.height} for a sum: start at most {self._sum_blocks} blocks from "
                "it, or start a new stream (--topic)",
                setting="start",
            )
        try:
            return await parent_total(self._fetcher, origin, header)
        except OutOfReachError as absent:
            raise ReorgTooDeepError(
                f"{where}, and {absent}: use a node of the chain that is streamed, or start a new stream (--topic)",
                number=origin.number,
                block_hash=origin.hash,
            ) from None

    async def _parents(self, header: BlockHeader) -> int | None:
        """Total of the parent of a block with difficulty, if one of them is recent or published; else None.

        Such a block's weight is its total. Block 0 is the exception: without difficulty it counts as merged.
        """
        total = self._recent.total(header.parent)
        if total is not None:
            return total
        if header.parent not in self._learned.weights:
            own = self._learned.weights.get(header.id)
            return None if own is None else own - int(header.difficulty, 16)
        if header.height == 1:
            return int((await self._published(header.parent)).difficulty, 16)
        return self._learned.weights[header.parent]

    async def _merged(self, header: BlockHeader) -> int:
        """Total of a block without difficulty."""
        if self._preset is not None or not header.height:
            return self.final
        if before := self._recent.total(header.parent):
            self._learned.final = before
        elif self._learned.final is None:
            weight = self._learned.weights.get(header.parent)
            if weight is not None:
                parent = await self._published(header.parent)
                self._learned.final = weight if int(parent.difficulty, 16) else weight - int(parent.number, 16)
            elif (own := self._learned.weights.get(header.id)) is not None:
                self._learned.final = own - header.height
            elif header.parent not in self._recent:
                last = await self.last_with_difficulty(header)
                self._learned.final = 0 if last is None else await self._first(last) + int(last.difficulty, 16)
        return self.final

    async def _published(self, block_hash: bytes) -> RpcHeader:
        """Header of a published block, which shows whether the weight includes the block's number."""
        name = f"0x{block_hash.hex()}"
        header = await self._fetcher.call(RpcHeader, "eth_getBlockByHash", name, False)  # noqa: FBT003 - JSON-RPC
        if header is None or not is_named(header, block_hash):
            raise ChainMovedError(f"the node does not have block {name}, which is published (any more, or yet)")
        return header

    async def _served_total(self, block_hash: bytes) -> int | None:
        """Total of a block as the node serves it: in its header, or by a method of its own (bor); None without."""
        header = await self._fetcher.header_by_hash(block_hash)
        if header is None:
            return None
        if total := _served(header):
            return total
        try:
            answer = await self._fetcher.call(_ANY, "eth_getTdByHash", f"0x{block_hash.hex()}")
        except NodeAnswerError:
            return None
        return _number(answer.get("totalDifficulty") if isinstance(answer, dict) else answer)

    async def _of_step(self, header: BlockHeader) -> int:
        """Total of a parent in AuRa: each difficulty is a constant less the steps since the block before."""
        genesis = await self._fetcher.header(0)
        parent = await self._fetcher.call(RpcHeader, "eth_getBlockByHash", header.parent_hash, False)  # noqa: FBT003 - JSON-RPC
        if genesis is None or parent is None or not is_named(parent, header.parent):
            return await self._summed(header)
        step = rlp.decode_list(write_header(parent))[_STEP]
        if not isinstance(step, bytes) or len(step) > _STEP_BYTES:
            return await self._summed(header)  # sealed otherwise
        return int(genesis.difficulty, 16) + (header.height - 1) * _STEP_DIFFICULTY - int.from_bytes(step)

    async def _summed(self, header: BlockHeader) -> int:
        """Total of a parent by a sum from the nearest known total in reach."""
        known = [one async for one in self._known()]
        known.sort(key=lambda one: abs(one.number - header.height))
        for one in known:
            if abs(one.number - header.height) <= self._sum_blocks:
                try:
                    return await parent_total(self._fetcher, one, header)
                except OutOfReachError:
                    continue
        raise TotalUnknownError(
            f"the node serves no totalDifficulty, and block {header.height} is too far from the first for a sum, and "
            "from every block with a known total: name one (--start-total TOTAL@HASH), use a node that serves it, or "
            "start at block 0"
        )

    async def _known(self) -> AsyncIterator[KnownTotal]:
        """Blocks with known totals: block 0, the chain's checkpoints, and the one that the user names."""
        if (genesis := await self._fetcher.header(0)) is not None:
            yield KnownTotal(0, genesis.id, int(genesis.difficulty, 16))
        for one in () if self._chain is None else self._chain.checkpoints:
            yield KnownTotal(one.number, bytes.fromhex(one.hash[2:]), one.total)
        if self._start_total is not None:
            named = await self._fetcher.header_by_hash(self._start_total.hash)
            if named is None or named.id != self._start_total.hash:
                raise ConfigurationError(
                    f"the node does not have block 0x{self._start_total.hash.hex()}, whose total difficulty is named: "
                    "check the hash",
                    setting="start_total",
                )
            yield KnownTotal(named.height, named.id, self._start_total.total)


async def proposed_origin(totals: TotalDifficulties, first: BlockHeader, chain: Chain) -> KnownTotal | None:
    """Origin to propose for a new stream with this first block; None where its weights depend on nothing but the chain.

    The origin is the first block's parent, after the merge the last block with difficulty; block 0 is its own.
    """
    block: BlockHeader | None = first
    merged = not int(first.difficulty, 16)
    if merged:
        known = chain.final_total_difficulty is not None or not first.height
        block = None if known else await totals.last_with_difficulty(first)
    if block is None:
        return None
    try:
        total = await totals.propose(block)
        own = int(block.difficulty, 16)
    except TotalUnknownError:
        total, own = ORIGIN, 0
    if merged or not block.height:
        return KnownTotal(block.height, block.id, total + own)
    return KnownTotal(block.height - 1, block.parent, total)


def _served(header: BlockHeader) -> int:
    """The total that a node serves in a header; zero where it serves none, or one above that of any chain."""
    total = int(header.total_difficulty or "0x0", 16)
    return 0 if is_relative(total) else total


def _number(answer: object) -> int | None:
    """A total as a node writes it, in hexadecimal text or as a number; None for anything else, and for zero."""
    if isinstance(answer, str):
        try:
            answer = int(answer, 0)
        except ValueError:
            return None
    return answer if isinstance(answer, int) and not isinstance(answer, bool) and answer > 0 else None
