"""Mainnet blocks, replayed as a node and fed: every value equals the reference's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from feeding import SCHEMES, asynchronous, everything, opened

from cardinal.testing.replay import ReplayChain, read_recorded

FIXTURES = Path(__file__).parents[2].parent / "shared" / "fixtures" / "mainnet"
FIRST, LAST = 14_000_000, 14_000_010

pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="recorded mainnet blocks are not at ../shared/fixtures")


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_values_of_recorded_mainnet_blocks_equal_the_references(scheme: str) -> None:
    chain = ReplayChain(read_recorded(FIXTURES), chain_id=1)
    async with opened(chain, scheme) as (_, feed):
        payloads = await everything(feed.follow(start=FIRST, until=LAST))
    assert [payload.number for payload in payloads] == list(range(FIRST, LAST + 1))
    for payload in payloads:
        expected = json.loads(gzip.decompress((FIXTURES / f"{payload.number}.json.gz").read_bytes()))
        assert payload.hash.hex() == expected["hash"]
        assert payload.parent.hex() == expected["parent"]
        assert payload.weight == int(expected["weight"])
        assert sorted(payload.deletes) == sorted(expected["deletes"])
        values = {path: value.hex() for path, value in payload.updates.items()}
        assert values == expected["values"]


@asynchronous
async def test_recorded_blocks_come_from_a_node_without_block_receipts_too() -> None:
    chain = ReplayChain(read_recorded(FIXTURES)[:3], chain_id=1)
    async with opened(chain) as (node, feed):
        node.methods = frozenset(
            {"eth_chainId", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionReceipt"}
        )
        payloads = await everything(feed.follow(start=FIRST, until=FIRST + 2))
    assert len(payloads) == 3
