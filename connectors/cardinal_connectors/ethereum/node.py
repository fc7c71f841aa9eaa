"""One node: its connection, which chain it serves, and what it says of finality.

Rules:

1. Behind a new connection there may be another node: its chain id and first block are compared with those before
   (facts on nodes, rule 7), and the subscription to heads is made again.
2. A subscription is only a hint. A node that has none is polled.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from cardinal.errors import NodeAnswerError, WrongChainError
from cardinal.protocols.streams.types import Finality

from .fetch import BlockFetcher, Tag
from .rpc import RpcClient
from .settings import RpcSettings

_LOG = logging.getLogger("cardinal.connectors.ethereum")


@dataclass(frozen=True, slots=True)
class Identity:
    """A chain: its id and first block; None where the node does not have that block (a pruned archive, a replay)."""

    chain_id: int
    genesis: bytes | None = None


class Node:
    """A node that is asked for blocks.

    Arguments:
        url: ``http``, ``https``, ``ws`` or ``wss``.
        chain_id: refuse a node of another chain; None takes the chain that it has.
        settings: how it is asked.

    Attributes:
        address: the URL as it may be shown.
        fetcher: its blocks.

    """

    def __init__(self, url: str, *, chain_id: int | None, settings: RpcSettings) -> None:
        self._client = RpcClient(url, settings)
        self.address = self._client.address
        self.fetcher = BlockFetcher(self._client)
        self._asked_for = chain_id
        self._identity: Identity | None = None
        self._greeted = 0

    async def greet(self) -> int:
        """The id of the chain that the node serves; compared anew where a connection was made since the last call.

        Raises:
            NodeUnreachableError: nobody answers.
            NodeAnswerError: what answers is no Ethereum-like node.
            WrongChainError: another chain than was asked for, or than before.

        """
        if self._identity is not None and self._greeted == self._client.connects:
            return self._identity.chain_id
        found = await self._identify()
        expected = self._identity or Identity(found.chain_id if self._asked_for is None else self._asked_for)
        self._compare(expected, found)
        if self._identity is None or self._identity.genesis is None:
            self._identity = found
        if self._client.subscribes:
            try:
                await self._client.call("eth_subscribe", "newHeads")
            except NodeAnswerError as refused:
                _LOG.info("%s Heads are polled only.", refused)
        self._greeted = self._client.connects
        return self._identity.chain_id

    async def finality(self) -> Finality:
        """The numbers under ``safe`` and ``finalized``; None where the node has none or will not say."""
        safe, finalized = await asyncio.gather(self._mark("safe"), self._mark("finalized"))
        return Finality(safe, finalized)

    def look(self) -> None:
        """Forget the hints so far: the head is looked at after this."""
        self._client.noticed.clear()

    async def hint(self, seconds: float) -> None:
        """Wait for a hint that there is a new head, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._client.noticed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        await self._client.close()

    async def _identify(self) -> Identity:
        text = await self._client.read(str, "eth_chainId")
        try:
            chain_id = int(text or "", 16)
        except ValueError:
            raise NodeAnswerError(f"The node at {self.address} answers eth_chainId with {text!r}.") from None
        genesis = await self.fetcher.header(0)
        return Identity(chain_id, None if genesis is None else genesis.id)

    def _compare(self, expected: Identity, found: Identity) -> None:
        if found.chain_id != expected.chain_id:
            raise WrongChainError(
                f"The node at {self.address} serves chain {found.chain_id}, but chain {expected.chain_id} is asked "
                f"for; check the URL."
            )
        if expected.genesis is not None and found.genesis is not None and expected.genesis != found.genesis:
            raise WrongChainError(
                f"The node at {self.address} has the first block 0x{found.genesis.hex()}, and had "
                f"0x{expected.genesis.hex()} before: it was started anew with another chain; start a new stream."
            )

    async def _mark(self, tag: Tag) -> int | None:
        try:
            header = await self.fetcher.header(tag)
        except NodeAnswerError:
            return None
        return None if header is None else header.height
