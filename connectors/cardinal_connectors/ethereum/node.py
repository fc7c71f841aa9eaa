"""One node: its connection, which chain it serves, and what it says of finality.

Rules:

1. Behind a new connection there may be another node: its chain id and first block are compared with those before
   (facts on nodes, rule 7), and the subscription to heads is made again.
2. A subscription is only a hint. A node that has none is polled.
"""

from __future__ import annotations

import asyncio
import logging

from cardinal.apps.evm.chains import Chain, chain_of
from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError, WrongChainError
from cardinal.protocols.streams.types import Finality

from .blocks import Fetched, Header
from .fetch import BlockFetcher, Tag
from .rpc import RpcClient
from .settings import RpcSettings

_LOG = logging.getLogger("cardinal.connectors.ethereum")


class Identity:
    """A chain: its id and first block, as far as they are known; shared by all nodes of one feed.

    Arguments:
        chain_id: the chain that is asked for; None takes that of the first node that answers.
        preset: what is known of the chain; None: the preset of its id, where there is one.

    """

    def __init__(self, chain_id: int | None, preset: Chain | None = None) -> None:
        self.chain_id = chain_id if preset is None else preset.chain_id
        self._preset = preset
        self.genesis: bytes | None = None

    def compare(self, address: str, chain_id: int, genesis: bytes | None) -> None:
        """WrongChainError where a node serves another chain; what was not known yet is learned.

        Arguments:
            address: the node's, for the sentence.
            chain_id: what it says.
            genesis: its first block's hash; None where it lacks that block (a pruned archive, a replay).

        """
        if self.chain_id is not None and chain_id != self.chain_id:
            raise WrongChainError(
                f"The node at {address} serves chain {chain_id}, but chain {self.chain_id} is asked for; check the URL."
            )
        preset = (self._preset or chain_of(chain_id)).genesis
        if preset is not None and genesis is not None and preset != f"0x{genesis.hex()}":
            raise WrongChainError(
                f"The node at {address} serves a chain with the id {chain_id} and the first block 0x{genesis.hex()}, "
                f"but that chain's is {preset}; check the URL."
            )
        if self.genesis is not None and genesis is not None and self.genesis != genesis:
            raise WrongChainError(
                f"The node at {address} has the first block 0x{genesis.hex()}, and it was "
                f"0x{self.genesis.hex()} before: it was started anew with another chain, or is a node of another one; "
                f"start a new stream, or check the URL."
            )
        self.chain_id = chain_id
        self.genesis = self.genesis or genesis


class Node:
    """A node that is asked for blocks.

    Arguments:
        endpoint: its URL and credentials.
        identity: the chain that it has to serve.
        settings: how it is asked.

    Attributes:
        address: scheme, host and port.
        fetcher: its blocks.
        head: the number of the head that it told last; None before.

    """

    def __init__(self, endpoint: Endpoint, *, identity: Identity, settings: RpcSettings) -> None:
        self._client = RpcClient(endpoint, settings)
        self.address = self._client.address
        self.fetcher = BlockFetcher(self._client)
        self.head: int | None = None
        self._identity = identity
        self._greeted: int | None = None

    async def greet(self) -> int:
        """The id of the chain that the node serves; compared anew where a connection was made since the last call.

        Raises:
            NodeUnreachableError: nobody answers.
            NodeAnswerError: what answers is no Ethereum-like node.
            WrongChainError: another chain than was asked for, or than before.

        """
        if not self.met or self._identity.chain_id is None:
            await self._meet()
        return self._identity.chain_id or 0

    @property
    def met(self) -> bool:
        """Whether the node was compared over its present connection."""
        return self._greeted == self._client.connects

    @property
    def genesis(self) -> bytes | None:
        """The hash of the chain's first block; None where no node has told it."""
        return self._identity.genesis

    async def _meet(self) -> None:
        text = await self._client.read(str, "eth_chainId")
        try:
            chain_id = int(text or "", 16)
        except ValueError:
            said = self._client.quoted(repr(text))
            raise NodeAnswerError(f"The node at {self.address} answers eth_chainId with {said}.") from None
        genesis = await self.fetcher.header(0)
        self._identity.compare(self.address, chain_id, None if genesis is None else genesis.id)
        if self._client.subscribes:
            try:
                await self._client.call("eth_subscribe", "newHeads")
            except NodeAnswerError as refused:
                _LOG.info("%s Heads are polled only.", refused)
        self._greeted = self._client.connects

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash, from a node that stands by: it is compared first, where that is due."""
        await self.greet()
        return await self.fetcher.by_hash(block_hash)

    async def latest(self) -> Header | None:
        """The head; None where the node has none."""
        header = await self.fetcher.header("latest")
        self.head = None if header is None else header.height
        return header

    async def finality(self) -> Finality:
        """The numbers under ``safe`` and ``finalized``; None where the node has none or will not say."""
        safe, finalized = await asyncio.gather(self.mark("safe"), self.mark("finalized"))
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

    async def mark(self, tag: Tag) -> int | None:
        """The number of the block under a tag; None where the node has none or will not say."""
        try:
            header = await self.fetcher.header(tag)
        except NodeAnswerError:
            return None
        return None if header is None else header.height
