"""Feed of a development chain in this process: no node, no port.

It runs the script from the beginning and yields the new blocks of each head, also those that become orphans: a URL
always yields the same payloads in the same order.

Rules:

1. A payload's parent was yielded before, is published, or it is the first block (or has the first block's parent).
2. After published blocks the feed resumes after the step that mined the newest of them. The rate applies from there on.
3. The feed ends with the script, if ``until`` did not end it before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from cardinal.errors import ReorgTooDeepError, WrongChainError
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum import payload_from_rpc

from .chain import ChainStep, DevChain

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

    from .blocks import DevBlock
    from .settings import DevSettings


class DevFeed:
    """A :class:`~cardinal.feeds.BlockFeed` of one development chain.

    Arguments:
        settings: the chain.
        rate: blocks a second; 0: as fast as they are consumed.

    """

    def __init__(self, settings: DevSettings, *, rate: float = 0.0) -> None:
        self._settings = settings
        self._rate = rate
        self._target: int | None = None

    @property
    def target(self) -> int | None:
        """The number of the chain's last block, or ``until``; None before the feed is followed."""
        return self._target

    async def chain_id(self) -> int:
        """The chain's id."""
        return self._settings.chain_id

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncGenerator[Payload]:
        """Yield the unpublished blocks, head by head; see :class:`~cardinal.feeds.BlockFeed`.

        Raises:
            WrongChainError: the newest published block is none of this chain's.
            ReorgTooDeepError: a reorg below the oldest of ``published``.

        """
        self._target = self._settings.blocks if until is None else min(until, self._settings.blocks)
        lowest = published[0].number if published else start or 0
        if until is not None and until < (published[-1].number if published else lowest):
            return
        chain = DevChain(self._settings)
        plan = _Plan(chain, published, lowest)
        step = self._resumed(chain, published[-1]) if published else next(chain)
        pace = _Pace(self._rate)
        while True:
            head = plan.ancestor(step.head, until)
            finality = chain.finality(step.head)
            for block in plan.missing(head):
                yield self._payload(block, finality)
            if head.plan.number == until:
                return
            following = next(chain, None)
            if following is None:
                return
            step = following
            if step.head.plan.number > lowest:  # nothing below is yielded
                await pace.wait(len(step.mined))

    def _resumed(self, chain: DevChain, newest: BlockRef) -> ChainStep:
        """The step that mined the newest published block; a chain has mined its ancestors by then."""
        for step in chain:
            if any(block.hash == newest.hash for block in step.mined):
                return step
        raise WrongChainError(
            f"the newest published block, {newest.number} (0x{newest.hash.hex()}), is none of this development chain: "
            "it was published from other options; give the same ones, or publish to other topics (--topic)"
        )

    def _payload(self, block: DevBlock, finality: Finality | None) -> Payload:
        if finality is not None:
            number = block.plan.number
            finality = Finality(min(number, finality.safe or 0), min(number, finality.finalized or 0))
        return payload_from_rpc(block.block, block.receipts, chain_id=self._settings.chain_id, finality=finality)

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block with this hash, also one that becomes an orphan; None where the script has none."""
        chain = DevChain(self._settings)
        for step in chain:
            for block in step.mined:
                if block.hash == block_hash:
                    return self._payload(block, chain.finality(step.head))
        return None

    async def close(self) -> None:
        """Nothing to release."""


class _Plan:
    """Plan of the blocks between the yielded ones and a head."""

    def __init__(self, chain: DevChain, published: Sequence[BlockRef], lowest: int) -> None:
        self._chain = chain
        self._yielded = {ref.hash for ref in published}
        self._oldest = published[0] if published else None
        self._lowest = lowest

    def ancestor(self, head: DevBlock, number: int | None) -> DevBlock:
        """The block with this number below a head; the head itself where it is not above that."""
        block: DevBlock | None = head
        while block is not None and number is not None and block.plan.number > number:
            block = self._chain.parent(block)
        return block or head

    def missing(self, head: DevBlock) -> list[DevBlock]:
        """The blocks to yield for a head, oldest first; they count as yielded from now on."""
        path: list[DevBlock] = []
        block: DevBlock | None = head
        while block is not None and block.plan.number >= self._lowest and block.hash not in self._yielded:
            path.append(block)
            block = self._chain.parent(block)
        oldest = self._oldest
        if path and oldest is not None and (block is None or block.hash not in self._yielded):
            raise ReorgTooDeepError(
                f"the development chain left below block {oldest.number}, the oldest that is known to be published; "
                "publish to other topics (--topic), or give more published blocks",
                number=oldest.number,
                block_hash=oldest.hash,
            )
        self._yielded.update(one.hash for one in path)
        return path[::-1]


class _Pace:
    """Pacer of blocks a second on average: a late step shortens the next pause."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._due = asyncio.get_running_loop().time()

    async def wait(self, blocks: int) -> None:
        if self._rate:
            self._due += blocks / self._rate
            await asyncio.sleep(max(0.0, self._due - asyncio.get_running_loop().time()))
        else:
            await asyncio.sleep(0)
