"""Planner of the next blocks: from the delivered blocks to the node's head.

Rules:

1. A block is delivered after its parent (or if its parent is published). The first block of a stream needs no parent,
   but has the start number, and as block 0 the chain's genesis hash.
2. Near the head blocks are fetched by parent hash; a long range is fetched by number from the highest common block,
   each block linked to the one before.
3. The target is at least ``lag`` blocks below the head, and as final as configured.
4. No block is delivered twice, on any branch of the node's chain.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.types import BlockRef, Finality
from cardinal_ethereum.feed.nodes.retry_policy import NodeBehindError
from cardinal_ethereum.feed.verify.rules import Rules, clamped
from cardinal_ethereum.feed.verify.total_difficulty import LearnedTotals, TotalDifficulties
from cardinal_ethereum.feed.verify.verifier import BlockSource, VerifiedBlock, Verifier
from cardinal_ethereum.feed.verify.worker import Prepared
from cardinal_ethereum.feed.verify.worker_pool import worker_count, working
from cardinal_ethereum.from_rpc.payload import with_total

from .ancestry import common_block, walk_back
from .backfill import Batches, backfill
from .blocks import ChainMovedError
from .fetch import Answer

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal_ethereum.feed.nodes.node import Node
    from cardinal_ethereum.feed.settings import FeedSettings

    from .blocks import BlockHeader, Fetched
    from .recent_blocks import RecentBlocks

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")


class Planner:
    """Progress of one stream of payloads.

    Arguments:
        node: source of the blocks.
        recent: published blocks; delivered ones are added.
        chain_id: the id of the node's chain.
        settings: bounds.
        start: the first block's number, if nothing is published.
        until: the last block's number, or None.
        elsewhere: other sources of blocks.
        learned: further total difficulties.

    Attributes:
        ended: ``until`` was delivered, and the node's chain has it.
        target: the number of the last planned block; None before the first head.

    """

    def __init__(
        self,
        node: Node,
        recent: RecentBlocks,
        chain_id: int,
        settings: FeedSettings,
        *,
        start: int,
        until: int | None,
        elsewhere: Callable[[], Sequence[BlockSource]] = lambda: (),
        learned: LearnedTotals | None = None,
    ) -> None:
        self.ended = False
        self.target: int | None = None
        self._node = node
        self._fetcher = node.fetcher
        self._recent = recent
        self._settings = settings
        self._warned = False
        self._mark = (node.address, settings.finality)
        self._start = start
        self._until = until
        self._rules = Rules.of(chain_id, settings)
        self._learned = learned or LearnedTotals()
        self._totals = TotalDifficulties(
            node.fetcher,
            recent,
            sum_blocks=settings.sum_blocks,
            chain=self._rules.chain,
            start_total=settings.start_total,
            learned=self._learned,
        )
        self._verifier = Verifier(node, self._totals, chain_id, settings, elsewhere=elsewhere)

    async def advance(self) -> AsyncGenerator[Payload]:
        """Read the head once and yield the blocks up to it.

        Raises:
            ChainMovedError: the node's chain changed meanwhile; delivered blocks remain valid, retry.
            NodeUnreachableError, NodeAnswerError, ReorgTooDeepError, IntegrityError.

        """
        head = await self._target()
        if head is None:
            return
        merged = int(head.difficulty, 16) == 0 and head.height > 0
        finality = await self._node.finality() if merged else None
        async with aclosing(self._towards(head, finality)) as blocks:
            async for fetched in blocks:
                if fetched is None:
                    raise ChainMovedError("the node no longer has a block below its head")
                if fetched.header.id not in self._recent:
                    yield await self._payload_of(fetched, finality)

    async def _target(self) -> BlockHeader | None:
        """The target block; None if there is nothing to deliver, for now or finally."""
        lowest = self._recent.oldest().number if self._recent else self._start
        if self._until is not None and self._until < lowest:
            self.ended = True
            return None
        head = await self._highest()
        if head is None:
            return None
        if self._until is not None and head.height > self._until:
            head = await self._fetcher.header(self._until)
            if head is None:
                raise ChainMovedError("the node no longer has a block below its head")
        self.target = head.height
        if head.height < lowest:
            if self._recent and (self._node.head or 0) < lowest:
                raise self._behind(head.height, lowest)
            return None  # with a lag, or waiting for finality: not yet
        if head.id in self._recent:
            self.ended = head.height == self._until
            return None
        return head

    async def _highest(self) -> BlockHeader | None:
        """The highest block that may be delivered; None if there is none yet."""
        latest = await self._node.latest()
        if latest is None:
            raise ChainMovedError("the node has no head")
        if self._settings.finality is not None:
            limit = await self._node.mark(self._settings.finality)
        else:
            limit = latest.height
        if limit is None and not self._warned:
            self._warned = True
            _LOG.warning("the node at %s has no block that is %s: waiting for one", *self._mark)
        if limit is None or (limit := min(limit, latest.height - self._settings.lag)) < 0:
            return None
        if limit == latest.height:
            return latest
        header = await self._fetcher.header(limit)
        if header is None:
            raise ChainMovedError("the node no longer has a block below its head")
        return header

    async def _towards(self, head: BlockHeader, finality: Finality | None) -> AsyncGenerator[Fetched | Prepared | None]:
        first = self._start
        if self._recent:
            if head.height - self._recent.highest <= self._settings.walk:
                path = await walk_back(self._fetcher, self._recent, head, limit=self._settings.walk)
                if path is not None:
                    for walked in path:
                        yield walked
                    return
            first = (await common_block(self._fetcher, self._recent, head)).number + 1
        async with working(worker_count(head.height - first, self._settings)) as workers:
            batches = Batches(
                *(self._fetcher, workers, self._rules, finality),
                last=head.height,
                totals=self._totals,
                settings=self._settings,
            )
            async with aclosing(backfill(batches.by_numbers, first, head.height, self._settings)) as blocks:
                number = first
                async for block in blocks:
                    yield await self._fetcher.at(number, block) if isinstance(block, Answer) else block
                    number += 1

    async def _payload_of(self, block: Fetched | Prepared, finality: Finality | None) -> Payload:
        """Payload of a verified block with a delivered parent.

        The parent is checked before the verification, too: a block of another branch has no total difficulty.
        """
        self._check_parent(block.header)
        header, total, payload = await self._verified(block, finality)
        if header is not block.header:
            self._check_parent(header)  # the block was refetched, perhaps with another parent
        ref = BlockRef(header.height, header.id)
        self._recent.add(ref, header.parent, total=total, difficulty=int(header.difficulty, 16))
        if self._learned.weights or self._learned.origin is not None:  # of a stream
            self._learned.learn({ref.hash: payload.weight})
        return payload

    async def _verified(self, block: Fetched | Prepared, finality: Finality | None) -> VerifiedBlock:
        """Verify a block, or accept a worker's result with the total difficulty, which the worker does not know."""
        if isinstance(block, Prepared):
            with contextlib.suppress(IntegrityError):
                total = await self._totals.of(block.header)
                if total == block.total:
                    return VerifiedBlock(block.header, total, block.payload)
                if int(block.header.difficulty, 16):
                    payload = with_total(block.payload, total, self._rules.chain.chain_id)
                    return VerifiedBlock(block.header, total, payload)
            again = await self._fetcher.by_hash(block.header.id)
            if again is None:
                raise ChainMovedError("the node no longer has a block below its head")
            block = again
        return await self._verifier.verify(block, None if finality is None else clamped(finality, block.header.height))

    def _check_parent(self, header: BlockHeader) -> None:
        """Raise ChainMovedError if the parent was not delivered: the chain changed between two responses."""
        if self._recent:
            if self._recent.number(header.parent) != header.height - 1:
                raise ChainMovedError(f"block {header.height} ({header.hash}) is not a child of a delivered block")
        elif header.height != self._start or (header.height == 0 and header.id != (self._node.genesis or header.id)):
            raise ChainMovedError(f"block {header.height} ({header.hash}) is not the first one, block {self._start}")

    def _behind(self, height: int, lowest: int) -> NodeBehindError:
        return NodeBehindError(
            f"the node at {self._node.address} is at block {height}, below {lowest}, the lowest published or "
            f"delivered one: wait until it has caught up, or use another node",
            address=self._node.address,
        )
