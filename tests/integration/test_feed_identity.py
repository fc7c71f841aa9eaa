"""Which chain a node serves, at the first connection and at each later one."""

from __future__ import annotations

import asyncio

import pytest
from ethereum_blocks import grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    asynchronous,
    everything,
    given,
    hashes,
    serving,
    take,
)

from cardinal.errors import WrongChainError
from cardinal.testing.node import JsonRpcNode
from cardinal_connectors.ethereum import open_feed


@asynchronous
async def test_chain_id_is_the_nodes_and_another_is_refused() -> None:
    async with JsonRpcNode(replay(grow(None, 2), chain_id=7)) as node:
        feed = open_feed(node.url, settings=QUICK)
        assert await feed.chain_id() == 7
        await feed.close()
        other = open_feed(node.url, chain_id=8, settings=QUICK)
        with pytest.raises(WrongChainError, match="serves chain 7, but chain 8"):
            await other.chain_id()
        await other.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_comes_back_with_another_chain_is_refused(scheme: str) -> None:
    chain, another = grow(None, 5), grow(None, 9, "z")
    async with serving(replay(chain)) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        payloads = feed.follow()
        await take(payloads, 5)
        await node.stop()
        node.chain = replay(another)
        await node.start()
        with pytest.raises(WrongChainError, match="first block"):
            await take(payloads, 1)
        await feed.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_comes_back_is_followed_on(scheme: str) -> None:
    chain = grow(None, 9)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with serving(served) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        payloads = feed.follow(until=8)
        await take(payloads, 5)
        coming = asyncio.ensure_future(anext(payloads))
        await node.stop()
        served.set_head(chain[8].name)
        await node.start()
        async with asyncio.timeout(10):
            first = await coming
        rest = await everything(payloads)
        await feed.close()
    assert given([first, *rest]) == hashes(chain[5:])
