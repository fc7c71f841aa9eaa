"""Node: connection, identity of its chain, head and finality.

Rules:

1. A new connection may lead to another node: its chain id and first block are compared with the previous ones
   (``connectors/cardinal_ethereum/docs/nodes.md``, rule 7), and the subscription to heads is renewed.
2. A subscription is only a hint. A node without one is polled.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError, WrongChainError
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum.chains import Chain, chain_of
from cardinal_ethereum.feed.chain.blocks import BlockHeader, Fetched
from cardinal_ethereum.feed.chain.fetch import BlockFetcher, Tag
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.faults import FailedError, Fault
from cardinal_ethereum.feed.settings import RpcSettings

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")
_QUANTITY: Final = re.compile(r"0x[0-9a-fA-F]{1,64}")
_REQUESTS: Final = 4
"""Requests of the chain's id until it is one."""


class Identity:
    """Identity of a chain: id and first block, as far as known; shared by all nodes of a feed.

    Arguments:
        chain_id: the required chain; None: that of the first node that answers.
        preset: parameters of the chain; default the preset of its id.

    """

    def __init__(self, chain_id: int | None, preset: Chain | None = None) -> None:
        self.chain_id = chain_id if preset is None else preset.chain_id
        self._preset = preset
        self.genesis: bytes | None = None

    def compare(self, address: str, chain_id: int, genesis: bytes | None) -> None:
        """Raise WrongChainError if a node serves another chain; adopt values that were unknown.

        Arguments:
            address: the node's address for messages.
            chain_id: its chain id.
            genesis: its first block's hash; None where it lacks that block (a pruned archive, a replay).

        """
        if self.chain_id is not None and chain_id != self.chain_id:
            raise WrongChainError(
                f"the node at {address} serves chain {chain_id}, not chain {self.chain_id}: check the URL"
            )
        preset = (self._preset or chain_of(chain_id)).genesis
        if preset is not None and genesis is not None and preset != f"0x{genesis.hex()}":
            raise WrongChainError(
                f"the node at {address} serves a chain with the id {chain_id} and the first block 0x{genesis.hex()}, "
                f"but that chain's is {preset}; check the URL"
            )
        if self.genesis is not None and genesis is not None and self.genesis != genesis:
            raise WrongChainError(
                f"the node at {address} has the first block 0x{genesis.hex()}, and it was "
                f"0x{self.genesis.hex()} before: it was restarted with another chain, or is a node of another one; "
                "start a new stream (--topic), or check the URL"
            )
        self.chain_id = chain_id
        self.genesis = self.genesis or genesis


class Node:
    """Node that serves blocks.

    Arguments:
        endpoint: its URL and credentials.
        identity: identity of the required chain.
        settings: request settings.

    Attributes:
        address: scheme, host and port.
        fetcher: fetches its blocks.
        head: the number of its last reported head; None before.

    """

    def __init__(self, endpoint: Endpoint, *, identity: Identity, settings: RpcSettings) -> None:
        self._client = RpcClient(endpoint, settings)
        self.address = self._client.address
        self.fetcher = BlockFetcher(self._client)
        self.head: int | None = None
        self._identity = identity
        self._greeted: int | None = None
        self._marked: set[Tag] = set()

    @property
    def faults(self) -> Counter[str]:
        """Number of the node's failures by subject, also of those that a retry healed."""
        return self._client.faults

    def set_replaceable(self, replaceable: Callable[[], bool]) -> None:
        """Set what returns True while another node could be used in place of this one."""
        self._client.replaceable = replaceable

    async def greet(self) -> int:
        """The id of the node's chain; compared again after a new connection.

        Raises:
            NodeUnreachableError: the node does not answer.
            NodeAnswerError: it is not an Ethereum-like node.
            WrongChainError: it serves another chain than required, or than before.

        """
        if not self.met or self._identity.chain_id is None:
            await self._identify()
        return self._identity.chain_id or 0

    @property
    def requests(self) -> int:
        """Number of calls that were sent to the node."""
        return self._client.requests

    @property
    def met(self) -> bool:
        """True if the node was compared over its current connection."""
        return self._greeted == self._client.connects

    @property
    def genesis(self) -> bytes | None:
        """Hash of the chain's first block; None while unknown."""
        return self._identity.genesis

    async def _identify(self) -> None:
        chain_id = await self._chain_id()
        genesis = await self.fetcher.header(0)
        self._identity.compare(self.address, chain_id, None if genesis is None else genesis.id)
        if self._client.subscribes:
            await self._subscribe()
        self._greeted = self._client.connects

    async def _chain_id(self) -> int:
        for attempt in range(_REQUESTS):
            await self._client.rest(attempt)
            text = await self._client.read(str, "eth_chainId")
            if text is not None and _QUANTITY.fullmatch(text):
                return int(text, 16)
            self.faults[Fault.WRONG] += 1
        answer = self._client.quoted(repr(text))
        raise NodeAnswerError(f"the node at {self.address} answers eth_chainId with {answer}")

    async def _subscribe(self) -> None:
        """Subscribe to heads; a node that refuses, in whatever words, is polled only."""
        try:
            await self._client.call("eth_subscribe", "newHeads")
        except (NodeAnswerError, FailedError) as refused:
            if isinstance(refused, FailedError) and refused.fault is not Fault.REQUEST:
                raise
            _LOG.info("%s; heads are polled only", refused)

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash from a standby node, whose identity is compared first if due."""
        await self.greet()
        return await self.fetcher.by_hash(block_hash)

    async def latest(self) -> BlockHeader | None:
        """Head of the node; None if it has none."""
        header = await self.fetcher.header("latest")
        self.head = None if header is None else header.height
        return header

    async def finality(self) -> Finality:
        """The numbers under ``safe`` and ``finalized``; None where the node has none or refuses."""
        safe, finalized = await asyncio.gather(self.mark("safe"), self.mark("finalized"))
        return Finality(safe, finalized)

    def look(self) -> None:
        """Clear earlier hints, before the head is read."""
        self._client.noticed.clear()

    async def hint(self, seconds: float) -> None:
        """Wait for a hint of a new head, at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._client.noticed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        await self._client.close()

    async def mark(self, tag: Tag) -> int | None:
        """Number of the block under a tag; None where the node has none or refuses.

        A node that never returned a block under the tag may not know tags, and is not asked twice for one.
        """
        try:
            header = await self.fetcher.header(tag, optional=tag not in self._marked)
        except NodeAnswerError:
            return None
        if header is None:
            return None
        self._marked.add(tag)
        return header.height
