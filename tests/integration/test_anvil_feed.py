"""The node feed on a real anvil node: reorgs while it follows, and every value recomputed from the node's answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anvil_node import Anvil, anvil
from ethereum_blocks import keccak, minimal, raw, rlp
from feeding import assert_lawful, asynchronous, connected, everything, given, take

from cardinal.protocols.streams.payload import Payload
from cardinal_connectors.base import BlockFeed

pytestmark = pytest.mark.node

CHAIN_ID = 31337
PREFIX = f"c/{CHAIN_ID:x}"
MERGED_AT_GENESIS = b"\x01"
"""The reference's total difficulty of a chain without presets whose node says zero."""
SCHEMES = ["http", "ws"]


@asynccontextmanager
async def anvil_and_feed(scheme: str, *options: str) -> AsyncIterator[tuple[Anvil, BlockFeed]]:
    async with anvil(*options) as node, connected(node.url if scheme == "http" else node.ws_url) as feed:
        yield node, feed


async def assert_values_recompute(node: Anvil, payload: Payload, block: dict[str, Any]) -> None:
    """Keys are those that the block calls for; values are hashed, or encoded from the node's answers anew."""
    receipts = await node.ask("eth_getBlockReceipts", block["hash"])
    own = f"{PREFIX}/b/{block['hash'][2:]}"
    values = dict(payload.updates)
    assert keccak(values.pop(f"{own}/h")) == raw(block["hash"]) == payload.hash
    assert values.pop(f"{PREFIX}/n/{int(block['number'], 16):x}") == raw(block["hash"])
    assert values.pop(f"{own}/d") == MERGED_AT_GENESIS
    assert not block.get("withdrawals")
    offset = 0
    for index, (transaction, receipt) in enumerate(zip(block["transactions"], receipts, strict=True)):
        assert keccak(values.pop(f"{own}/t/{index:x}")) == raw(transaction["hash"])
        numbers = [minimal(int(receipt[name], 16)) for name in ("cumulativeGasUsed", "gasUsed")]
        contract = raw(receipt["contractAddress"] or "0x" + "00" * 20)
        status = minimal(int(receipt["status"], 16))
        counts = [minimal(len(receipt["logs"])), minimal(offset)]
        meta = rlp([contract, *numbers, raw(receipt["logsBloom"]), status, *counts])
        assert values.pop(f"{own}/r/{index:x}") == meta
        for log in receipt["logs"]:
            encoded = rlp([raw(log["address"]), [raw(topic) for topic in log["topics"]], raw(log["data"])])
            assert values.pop(f"{own}/l/{index:x}/{int(log['logIndex'], 16):x}") == encoded
        offset += len(receipt["logs"])
    assert set(values) <= {f"{PREFIX}/n/safe", f"{PREFIX}/n/finalized"}
    if payload.number > 0:
        assert len(values) == 2


async def assert_chain_was_given(node: Anvil, payloads: list[Payload]) -> None:
    """Every block of the node's chain was given once, with the values that the node has."""
    assert_lawful(payloads)
    by_hash = {payload.hash: payload for payload in payloads}
    for block in await node.chain():
        await assert_values_recompute(node, by_hash[raw(block["hash"])], block)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_reorg_of_depth_three_while_following(scheme: str) -> None:
    async with anvil_and_feed(scheme) as (node, feed):
        await node.mine(6)
        payloads = feed.follow()
        taken = await take(payloads, 7)
        await node.mine(2)
        taken += await take(payloads, 2)
        await node.ask("anvil_reorg", 3, [])
        await node.mine(2)
        taken += await take(payloads, 5)
        assert [payload.number for payload in taken] == [*range(9), 6, 7, 8, 9, 10]
        assert taken[9].parent == taken[5].hash
        await assert_chain_was_given(node, taken)


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
            await assert_values_recompute(node, by_hash[raw(block["hash"])], block)


@asynchronous
async def test_chain_before_the_merge_and_blob_fields_of_the_newest_fork_both_verify() -> None:
    for fork in ("london", "shanghai", "prague"):
        async with anvil_and_feed("http", "--hardfork", fork) as (node, feed):
            await node.mine(3)
            taken = await everything(feed.follow(start=1, until=3))
            assert [payload.number for payload in taken] == [1, 2, 3]
