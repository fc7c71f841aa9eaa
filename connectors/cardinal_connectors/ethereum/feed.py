"""Blocks of an Ethereum-like node, followed by polling and, over WebSocket, by its announcements.

One loop: look at the head; go from what was given to that head (:mod:`.way`); check each block and give it; wait for
a hint or for the next poll. A reorg is nothing special in it: the way to the new head begins at the common ancestor.
Nor is a restart: what is published counts as given.

Rules:

1. A payload's parent was given before, is published, or it is the first block (or has the first block's parent).
2. Nothing is given that did not pass the gate (:mod:`.gate`).
3. At each new connection the chain id and the first block are compared; another chain is refused.
4. A node that was there and goes away is asked again for ``patience`` seconds; one that was never there is reported
   after the client's attempts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from cardinal.errors import NodeAnswerError, NodeUnreachableError, ReorgTooDeepError

from .gate import Gate
from .known import KnownBlocks
from .node import Node
from .settings import FeedSettings
from .totals import Totals
from .walk import ChainMovedError
from .way import Way

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

_LOG = logging.getLogger("cardinal.connectors.ethereum")

RESTARTS = 50
"""Times in a row that the chain may move under the feed without a block given, before the node is called
contradictory: a node in the worst storm of reorgs was seen to settle within a few."""


class NodeFeed:
    """A :class:`~cardinal_connectors.base.BlockFeed` of one node.

    Arguments:
        url: ``http``, ``https``, ``ws`` or ``wss``; credentials in it are used and never shown.
        chain_id: refuse a node of another chain; None takes the chain that it has.
        settings: intervals and bounds.

    """

    def __init__(self, url: str, *, chain_id: int | None = None, settings: FeedSettings | None = None) -> None:
        self._settings = settings or FeedSettings()
        self._node = Node(url, chain_id=chain_id, settings=self._settings.rpc)

    async def chain_id(self) -> int:
        """The id of the chain that the node serves; WrongChainError where another one was asked for."""
        return await self._node.greet()

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncGenerator[Payload]:
        """Backfill, then follow the head; see :class:`~cardinal_connectors.base.BlockFeed`.

        Raises:
            NodeUnreachableError: the node was never there, or stayed away for longer than ``patience``.
            NodeAnswerError: it refuses what a feed needs, or contradicts itself.
            WrongChainError: another chain id or first block; ReorgTooDeepError: none of ``published`` on its chain.
            IntegrityError: a block that never passed its checks.

        """
        chain_id = await self._node.greet()
        known = KnownBlocks(published, window=max(self._settings.window, len(published)))
        way = Way(self._node, known, chain_id, self._settings, start=start or 0, until=until)
        trouble = _Trouble(self._node.address, self._settings, asyncio.get_running_loop().time)
        while not way.ended:
            self._node.look()
            gave = False
            try:
                await self._node.greet()
                async with aclosing(way.advance()) as payloads:
                    async for payload in payloads:
                        gave = True
                        yield payload
            except ChainMovedError as moved:
                await asyncio.sleep(trouble.moved(moved, gave=gave))
            except NodeUnreachableError as away:
                await asyncio.sleep(trouble.away(away, gave=gave))
            except ReorgTooDeepError:
                await self._node.greet()  # over a connection made on the way, it may be another chain altogether
                raise
            else:
                trouble.over()
                if not gave and not way.ended:
                    await self._node.hint(self._settings.poll)

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block with this hash (32 bytes), checked as all others, also one that left the node's chain.

        Returns:
            The payload, its finality marks unknown; None where the node does not have the block, or no longer what its
            total difficulty is told from.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError, IntegrityError: as :meth:`follow`.

        """
        chain_id = await self._node.greet()
        fetcher = self._node.fetcher
        totals = Totals(fetcher, KnownBlocks((), window=1), sum_blocks=self._settings.sum_blocks)
        fetched = await fetcher.by_hash(block_hash)
        if fetched is None:
            return None
        try:
            return (await Gate(fetcher, totals, chain_id, self._settings).admit(fetched, None)).payload
        except ChainMovedError:
            return None

    async def close(self) -> None:
        """Release connections. May be called twice."""
        await self._node.close()


class _Trouble:
    """How long a node has been moving under the feed, or away; says how long to wait, or raises."""

    def __init__(self, address: str, settings: FeedSettings, clock: Callable[[], float]) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._restarts = 0
        self._away_since: float | None = None

    def over(self) -> None:
        """The node answered all that was asked."""
        self._restarts, self._away_since = 0, None

    def moved(self, moved: ChainMovedError, *, gave: bool) -> float:
        """Seconds to wait: short ones, since a head that is announced before it can be read is there at once."""
        self._restarts = 1 if gave else self._restarts + 1
        self._away_since = None
        if self._restarts > RESTARTS:
            raise NodeAnswerError(
                f"The node at {self._address} has contradicted itself {RESTARTS} times in a row ({moved}) "
                f"Use another node."
            ) from moved
        return min(self._settings.rpc.pause(self._restarts) / 4, self._settings.poll)

    def away(self, away: NodeUnreachableError, *, gave: bool) -> float:
        """Seconds to wait; the error itself, when the node was away for longer than is waited for."""
        now = self._clock()
        if gave or self._away_since is None:
            self._away_since = now
            _LOG.warning("%s It is asked again for %g seconds.", away, self._settings.patience)
        if now - self._away_since >= self._settings.patience:
            raise away
        return self._settings.poll
