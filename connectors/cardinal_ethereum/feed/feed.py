"""Feed of Ethereum-like nodes, by polling and, over WebSocket and IPC, by announcements of new heads.

One loop: choose a node (:mod:`.nodes.pool`); read its head; plan the blocks up to it (:mod:`.chain.planner`); verify
and deliver each; wait for an announcement or for the next poll. After a reorg the plan begins at the common ancestor;
after a restart published blocks count as delivered.

Rules:

1. A payload's parent was delivered before, is published, or the payload is the first block (or its sibling).
2. Only verified blocks are delivered (:mod:`.verify.verifier`).
3. At each new connection the chain id and the first block are compared; another chain is refused.
4. The feed leaves a node that is unreachable, contradicts itself or serves false blocks for another one. Delivered
   blocks remain valid: the plan for the other node's head begins at the common ancestor, and a node that is behind, or
   on another branch, changes nothing.
5. Without another node, the feed waits for a node that becomes unreachable, at most for ``patience`` seconds if that is
   set. So it does for a node that answers, but not well: with errors about one block or the rate, or with pages.
6. It ends where waiting helps for no node: each is of another chain, refuses the credentials or a required method,
   lacks pruned history, or contradicts itself; or never answered well (:mod:`.rpc.client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError, FeedError, NodeAnswerError, NodeUnreachableError, ReorgTooDeepError
from cardinal.feeds import FeedReport
from cardinal_ethereum.checks.advice import refusal_of

from .chain.blocks import ChainMovedError
from .chain.planner import Planner
from .chain.recent_blocks import RecentBlocks
from .nodes.locate import locate
from .nodes.pool import NodePool
from .nodes.retry_policy import RetryPolicy
from .settings import FeedSettings
from .url import read_url
from .verify.origin import KnownTotal
from .verify.rules import Rules
from .verify.total_difficulty import LearnedTotals, TotalDifficulties, proposed_origin
from .verify.verifier import Verifier

if TYPE_CHECKING:
    from cardinal.config.url import NodeUrl
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef
    from cardinal_ethereum.chains import Chain

    from .nodes.node import Node


@dataclass(slots=True)
class _Following:
    """One read of the chain: its retry policy, its planner, and its end."""

    retries: RetryPolicy
    planner: Planner | None = None
    ended: bool = False


class NodeFeed:
    """A :class:`~cardinal.feeds.BlockFeed` of one node, or of several of one chain.

    Arguments:
        url: ``http``, ``https``, ``ws``, ``wss`` or ``ipc``; one or several nodes and options (:mod:`.url`).
            Credentials in it are sent and never printed.
        chain_id: refuse nodes of another chain; None accepts that of the first node.
        settings: intervals and bounds; options in the URL override them.

    """

    def __init__(
        self, url: str | NodeUrl, *, chain_id: int | None = None, settings: FeedSettings | None = None
    ) -> None:
        endpoints, self._settings = read_url(url, settings)
        self._nodes = NodePool(endpoints, chain_id=chain_id, settings=self._settings)
        self._following: _Following | None = None
        self._learned = LearnedTotals()

    @property
    def target(self) -> int | None:
        """Number of the last planned block; None before the first head."""
        planner = None if self._following is None else self._following.planner
        return None if planner is None else planner.target

    @property
    def report(self) -> FeedReport:
        """State of the nodes."""
        return FeedReport(self._nodes.report, "" if self._following is None else self._following.retries.waits_for)

    async def head(self) -> int:
        """Number of the highest block that is delivered now, as lag and finality allow.

        Raises:
            NodeAnswerError: the node names no block of the finality that the settings require.
            NodeUnreachableError, WrongChainError: as :meth:`follow`.

        """
        await self._nodes.greet()
        node, finality = self._nodes.active, self._settings.finality
        latest = await node.latest()
        limit = None if latest is None else latest.height
        if latest is not None and finality is not None:
            limit = await node.mark(finality)
        if latest is None or limit is None:
            raise NodeAnswerError(
                f"the node at {node.address} names no {finality or 'latest'} block: use a block number"
            )
        return max(0, min(limit, latest.height - self._settings.lag))

    async def chain_id(self) -> int:
        """The id of the chain that the nodes serve.

        Raises:
            WrongChainError: another one is required.
            ConfigurationError: the chain is known not to be verifiable.

        """
        found = await self._nodes.greet()
        chain = self._chain(found)
        if chain.foreign_hashes:
            raise ConfigurationError(refusal_of(chain), setting="from")
        return found

    def learn(self, weights: Mapping[bytes, int]) -> None:
        """Add the weights of published blocks by hash: total difficulties continue from these."""
        self._learned.learn(dict(weights))

    async def origin(self, start: int | None) -> str:
        """The origin of the weights of a new stream with this first block; see :class:`~cardinal.feeds.Originating`.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError: as :meth:`follow`.
            ConfigurationError: the node does not have the block whose total is named.

        """
        chain_id = await self._nodes.greet()
        failure: FeedError | None = None
        for node in (self._nodes.active, *self._nodes.others()):
            try:
                await node.greet()
                header = await node.fetcher.header(start or 0)
                if header is not None:
                    known = await proposed_origin(self._totals(node, chain_id), header, self._chain(chain_id))
                    return "" if known is None else str(known)
            except FeedError as refused:
                failure = failure or refused
        raise failure or NodeAnswerError(f"the node does not have block {start or 0}: begin with another block")

    def adopt(self, origin: str) -> None:
        """Let weights count from a stream's origin; ConfigurationError where it cannot be read."""
        self._learned.origin = KnownTotal.parse(origin)

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncGenerator[Payload]:
        """Backfill, then follow the head; see :class:`~cardinal.feeds.BlockFeed`.

        Raises:
            NodeUnreachableError: no node ever answered, or none did for longer than a ``patience`` that is set.
            NodeAnswerError: each node refuses a required method, or contradicts itself.
            WrongChainError: another chain id or first block; ReorgTooDeepError: none of ``published`` on its chain.
            IntegrityError: a block failed its verification on every node.

        """
        chain_id = await self._nodes.greet()
        recent = RecentBlocks(published, window=max(self._settings.window, len(published)))
        outer = self._following  # a branch's old blocks may be requested while the chain is followed
        self._following = here = _Following(
            RetryPolicy(self._nodes.address, self._settings, asyncio.get_running_loop().time)
        )
        try:
            async with aclosing(self._followed(here, recent, chain_id, start=start or 0, until=until)) as payloads:
                async for payload in payloads:
                    yield payload
        finally:
            here.ended = True
            if outer is not None and not outer.ended:
                self._following = outer

    async def _followed(
        self, here: _Following, recent: RecentBlocks, chain_id: int, *, start: int, until: int | None
    ) -> AsyncGenerator[Payload]:
        planner, node = None, self._nodes.active
        while planner is None or not planner.ended:
            if self._nodes.look() or planner is None or node is not self._nodes.active:
                node, others = self._nodes.active, self._nodes.others
                planner = here.planner = Planner(
                    *(node, recent, chain_id, self._settings),
                    start=start,
                    until=until,
                    elsewhere=others,
                    learned=self._learned,
                )
            node.look()
            delivered = False
            try:
                await node.greet()
                async with aclosing(planner.advance()) as payloads:
                    async for payload in payloads:
                        delivered = True
                        yield payload
            except FeedError as failure:
                await asyncio.sleep(await self._pause(failure, here.retries, delivered=delivered))
            else:
                here.retries.over()
                self._nodes.delivered()
                if not delivered and not planner.ended:
                    await node.hint(self._settings.poll)

    async def _pause(self, failure: FeedError, retries: RetryPolicy, *, delivered: bool) -> float:
        """Seconds to wait before the next attempt, at this node or another one; raises a final failure."""
        if isinstance(failure, ReorgTooDeepError):
            try:
                await self._nodes.active.greet()  # over a new connection, it may be another chain altogether
            except FeedError as other:
                failure = other
        if isinstance(failure, ChainMovedError):
            if (pause := retries.moved(failure, delivered=delivered)) is not None:
                return pause
            failure = retries.contradiction(failure)
        if delivered:
            self._nodes.delivered()
        if self._nodes.leave(failure):
            return retries.left()
        if failure.retriable or not self._nodes.exhausted:
            return retries.unreachable(failure, delivered=delivered)
        raise failure

    async def block(self, block_hash: bytes) -> Payload | None:
        """The verified block with this hash (32 bytes), also an orphan.

        Returns:
            The payload, its finality unknown; None if no node has the block, or its total difficulty is unknown.

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
        totals = self._totals(node, chain_id)
        fetched = await node.by_hash(block_hash)
        if fetched is None:
            return None
        try:
            return (await Verifier(node, totals, chain_id, self._settings).verify(fetched, None)).payload
        except ChainMovedError:
            return None

    def _chain(self, chain_id: int) -> Chain:
        return Rules.of(chain_id, self._settings).chain

    def _totals(self, node: Node, chain_id: int) -> TotalDifficulties:
        """Totals of single blocks."""
        return TotalDifficulties(
            node.fetcher,
            RecentBlocks((), window=1),
            sum_blocks=self._settings.sum_blocks,
            chain=self._chain(chain_id),
            start_total=self._settings.start_total,
            learned=self._learned,
        )

    async def locate(self, text: str) -> int:
        """Number of a block by its number, its hash, or a time; see :func:`.nodes.locate.locate`.

        If a node fails, or its chain has no such block, the next one is queried.
        """
        await self._nodes.greet()
        failure: FeedError | None = None
        for node in (self._nodes.active, *self._nodes.others()):
            try:
                await node.greet()
                return await locate(node.fetcher, text)
            except FeedError as refused:
                failure = failure or refused
        raise failure or NodeUnreachableError("no node is left: check the URLs", address=self._nodes.address)

    async def close(self) -> None:
        """Release connections. May be called twice."""
        await self._nodes.close()
