"""The laws of a feed, held by the one in `ledger_feed.py`, against a ledger that grows and reorganises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ledger import Ledger
from ledger_feed import open_feed

from cardinal.config.url import parse_node_url
from cardinal.errors import ConfigurationError, WrongChainError
from cardinal.feeds import BlockFeed
from cardinal.protocols.streams import BlockRef
from cardinal_devkit.testing.feeds import LAWS, FeedRoom


class Room:
    """What the laws ask for: feeds of a chain, and controls that move it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def open(self) -> BlockFeed:
        return open_feed(parse_node_url(self._ledger.url))

    async def canonical(self) -> list[BlockRef]:
        return [BlockRef(block["number"], bytes.fromhex(block["hash"])) for block in self._ledger.chain]

    async def grow(self, blocks: int) -> None:
        self._ledger.add(blocks)

    async def reorg(self, depth: int, blocks: int) -> None:
        self._ledger.add(blocks, depth)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_feed_holds(law: Callable[[FeedRoom], Awaitable[None]]) -> None:
    with Ledger() as ledger:
        asyncio.run(law(Room(ledger)))


def test_another_chain_and_an_unknown_option_are_refused() -> None:
    with Ledger() as ledger:
        with pytest.raises(WrongChainError, match="chain 11, not 8"):
            asyncio.run(open_feed(parse_node_url(ledger.url), chain_id=8).chain_id())
        with pytest.raises(ConfigurationError, match="no option 'lag'"):
            open_feed(parse_node_url(f"{ledger.url}#lag=2"))
