"""Blocks of Ethereum-like nodes, followed by polling and, over WebSocket and IPC, by their announcements.

One loop: choose a node (:mod:`.nodes`); look at its head; go from what was given to that head (:mod:`.way`); check each
block and give it; wait for a hint or for the next poll. A reorg is nothing special in it: the way to the new head
begins at the common ancestor. Nor is a restart: what is published counts as given.

Rules:

1. A payload's parent was given before, is published, or it is the first block (or has the first block's parent).
2. Nothing is given that did not pass the gate (:mod:`.gate`).
3. At each new connection the chain id and the first block are compared; another chain is refused.
4. A node that goes away, contradicts itself or lies is left for another one. What was given stays given: the way to the
   other node's head begins at the common ancestor, and a node that is behind, or on another branch, changes nothing.
5. Where there is no other, a node that was there and goes away is asked again for ``patience`` seconds; one that was
   never there is reported after the client's attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from cardinal.errors import FeedError, NodeUnreachableError, ReorgTooDeepError

from .address import read_url
from .blocks import ChainMovedError
from .gate import Gate
from .known import KnownBlocks
from .nodes import Nodes
from .places import locate
from .rules import Rules
from .settings import FeedSettings
from .totals import Learned, Totals
from .trouble import Trouble
from .way import Way

if TYPE_CHECKING:
    from cardinal.config.url import NodeUrl
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

    from .node import Node


class NodeFeed:
    """A :class:`~cardinal.feeds.BlockFeed` of one node, or of several of one chain.

    Arguments:
        url: ``http``, ``https``, ``ws``, ``wss`` or ``ipc``; one or several nodes and options (:mod:`.address`).
            Credentials in it are sent and never printed.
        chain_id: refuse nodes of another chain; None takes the chain that the first has.
        settings: intervals and bounds; options in the URL go before them.

    """

    def __init__(
        self, url: str | NodeUrl, *, chain_id: int | None = None, settings: FeedSettings | None = None
    ) -> None:
        endpoints, self._settings = read_url(url, settings)
        self._nodes = Nodes(endpoints, chain_id=chain_id, settings=self._settings)
        self._way: Way | None = None
        self._learned = Learned()

    @property
    def target(self) -> int | None:
        """The number of the block that is gone to; None before the first look at a head."""
        return None if self._way is None else self._way.target

    async def chain_id(self) -> int:
        """The id of the chain that the nodes serve; WrongChainError where another one was asked for."""
        return await self._nodes.greet()

    def learn(self, weights: Mapping[bytes, int]) -> None:
        """Take the weights of published blocks, by hash: the totals of those above them add up from these."""
        self._learned.weights.update(weights)

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncGenerator[Payload]:
        """Backfill, then follow the head; see :class:`~cardinal.feeds.BlockFeed`.

        Raises:
            NodeUnreachableError: no node was ever there, or all stayed away for longer than ``patience``.
            NodeAnswerError: each refuses what a feed needs, or contradicts itself.
            WrongChainError: another chain id or first block; ReorgTooDeepError: none of ``published`` on its chain.
            IntegrityError: a block that never passed its checks.

        """
        chain_id = await self._nodes.greet()
        known = KnownBlocks(published, window=max(self._settings.window, len(published)))
        trouble = Trouble(self._nodes.address, self._settings, asyncio.get_running_loop().time)
        way, node = None, self._nodes.active
        while way is None or not way.ended:
            if self._nodes.look() or way is None or node is not self._nodes.active:
                node, others = self._nodes.active, self._nodes.others
                way = self._way = Way(
                    *(node, known, chain_id, self._settings),
                    start=start or 0,
                    until=until,
                    elsewhere=others,
                    learned=self._learned,
                )
            node.look()
            gave = False
            try:
                await node.greet()
                async with aclosing(way.advance()) as payloads:
                    async for payload in payloads:
                        gave = True
                        yield payload
            except FeedError as failure:
                await asyncio.sleep(await self._pause(failure, trouble, gave=gave))
            else:
                trouble.over()
                if not gave and not way.ended:
                    await node.hint(self._settings.poll)

    async def _pause(self, failure: FeedError, trouble: Trouble, *, gave: bool) -> float:
        """Seconds to wait before the next look, at this node or another one; the failure, where nobody can help."""
        if isinstance(failure, ReorgTooDeepError):
            try:
                await self._nodes.active.greet()  # over a new connection, it may be another chain altogether
            except FeedError as other:
                failure = other
        if isinstance(failure, ChainMovedError):
            if (pause := trouble.moved(failure, gave=gave)) is not None:
                return pause
            failure = trouble.contradiction(failure)
        if self._nodes.leave(failure):
            return trouble.left()
        if isinstance(failure, NodeUnreachableError):
            return trouble.away(failure, gave=gave)
        raise failure

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block with this hash (32 bytes), checked as all others, also one that left the node's chain.

        Returns:
            The payload, its finality marks unknown; None where the node does not have the block, or no longer what its
            total difficulty is told from.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError, IntegrityError: as :meth:`follow`.

        """
        chain_id = await self._nodes.greet()
        failure: FeedError | None = None
        for node in (self._nodes.active, *self._nodes.others()):
            try:
                if (payload := await self._block_of(node, block_hash, chain_id)) is not None:
                    return payload
            except FeedError as refused:
                failure = failure or refused
        if failure is not None:
            raise failure
        return None

    async def _block_of(self, node: Node, block_hash: bytes, chain_id: int) -> Payload | None:
        chain = Rules.of(chain_id, self._settings).chain
        totals = Totals(
            node.fetcher,
            KnownBlocks((), window=1),
            sum_blocks=self._settings.sum_blocks,
            preset=chain.final_total_difficulty,
            learned=self._learned,
        )
        fetched = await node.by_hash(block_hash)
        if fetched is None:
            return None
        try:
            return (await Gate(node, totals, chain_id, self._settings).admit(fetched, None)).payload
        except ChainMovedError:
            return None

    async def locate(self, text: str) -> int:
        """The number of a block that is named by its number, its hash, or a time; see :func:`.places.locate`.

        A node that fails, or whose chain has no such block, is not the last that is asked.
        """
        await self._nodes.greet()
        failure: FeedError | None = None
        for node in (self._nodes.active, *self._nodes.others()):
            try:
                await node.greet()
                return await locate(node.fetcher, text)
            except FeedError as refused:
                failure = failure or refused
        raise failure or NodeUnreachableError("No node is left to ask.", address=self._nodes.address)

    async def close(self) -> None:
        """Release connections. May be called twice."""
        await self._nodes.close()
