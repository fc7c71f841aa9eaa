"""The node feed on a real anvil node: reorgs while it follows, and every value recomputed from the node's answers."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from anvil_node import Anvil, anvil
from ethereum_blocks import raw
from feeding import assert_lawful, asynchronous, connected, everything, given, take
from node_values import assert_values_recompute

from cardinal.feeds import BlockFeed
from cardinal.protocols.streams.payload import Payload

pytestmark = pytest.mark.node

CHAIN_ID = 31337
SCHEMES = ["http", "ws", "ipc"]


@asynccontextmanager
async def anvil_and_feed(scheme: str, *options: str) -> AsyncIterator[tuple[Anvil, BlockFeed]]:
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/anvil.ipc"
        async with anvil("--ipc", socket, *options) as node:
            url = {"http": node.url, "ws": node.ws_url, "ipc": f"ipc://{socket}"}[scheme]
            async with connected(url) as feed:
                yield node, feed


async def assert_chain_was_given(node: Anvil, payloads: list[Payload]) -> None:
    """Every block of the node's chain was given once, with the values that the node has."""
    assert_lawful(payloads)
    by_hash = {payload.hash: payload for payload in payloads}
    for block in await node.chain():
        await assert_values_recompute(node, by_hash[raw(block["hash"])], block, CHAIN_ID)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_silent_rewind_and_another_branch(scheme: str) -> None:
    async with anvil_and_feed(scheme) as (node, feed):
        await node.mine(8)
        payloads = feed.follow()
        taken = await take(payloads, 9)
        await node.ask("anvil_rollback", 4)
        await node.mine(2, transactions=1)
        taken += await take(payloads, 2)
        assert [payload.number for payload in taken[9:]] == [5, 6]
        await assert_chain_was_given(node, taken)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_storm_of_reorgs_beside_the_feed_loses_nothing(scheme: str) -> None:
    dice = random.Random(5)
    async with anvil_and_feed(scheme) as (node, feed):
        await node.mine(12, transactions=1)
        payloads = feed.follow(until=45)
        reading = asyncio.create_task(everything(payloads))
        height = 12
        while height < 44:
            if dice.random() < 0.4:
                await node.ask("anvil_reorg", dice.randint(1, 10), [])
            blocks = dice.randint(1, 3)
            await node.mine(blocks, transactions=dice.randint(0, 4))
            height += blocks
        await node.mine(46 - height, transactions=2)
        taken = await reading
        final = await node.chain()
        by_hash = {payload.hash: payload for payload in taken}
        assert given(taken)[-1] == raw(final[45]["hash"])
        assert_lawful(taken)
        for block in final[:46]:
            await assert_values_recompute(node, by_hash[raw(block["hash"])], block, CHAIN_ID)


@asynchronous
async def test_chain_before_the_merge_and_blob_fields_of_the_newest_fork_both_verify() -> None:
    for fork in ("london", "shanghai", "prague"):
        async with anvil_and_feed("http", "--hardfork", fork) as (node, feed):
            await node.mine(3)
            taken = await everything(feed.follow(start=1, until=3))
            assert [payload.number for payload in taken] == [1, 2, 3]
