"""Polygon's state syncs in the body: their bytes are requested, checked against hash and root, and published."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from feeding import QUICK, connected, serving
from hypothesis import given, settings

from cardinal.apps.evm.chains import chain_of
from cardinal.errors import IntegrityError
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum.feed import NodeFeed
from evm_blocks import STATE_SYNC
from evm_generated import Shown, blocks

POLYGON = 137


def _synced(shown: Shown) -> bool:
    transactions = shown.block["transactions"]
    return bool(transactions) and transactions[-1]["type"] == hex(STATE_SYNC)


async def _published(shown: Shown) -> None:
    last = shown.block["transactions"][-1]
    hidden = {name: value for name, value in last.items() if name != "raw"}
    as_nodes_show_it = shown.block | {"transactions": [*shown.block["transactions"][:-1], hidden]}
    chain = ReplayChain(chain_id=POLYGON)
    chain.set_head(chain.add(as_nodes_show_it, shown.receipts, shown.uncles), announce="silent")
    answers: dict[object, Any] = {last["hash"]: last["raw"]}
    async with serving(chain) as node, connected(node.url, QUICK) as feed:
        assert isinstance(feed, NodeFeed)
        block_hash = bytes.fromhex(shown.block["hash"][2:])
        with pytest.raises(IntegrityError, match="eth_getRawTransactionByHash"):  # a node without the method
            await feed.block(block_hash)
        node._handlers["eth_getRawTransactionByHash"] = lambda params: answers.get(params[0])
        payload = await feed.block(block_hash)
        assert payload is not None
        path = f"c/{POLYGON:x}/b/{block_hash.hex()}/t/{len(shown.block['transactions']) - 1:x}"
        assert payload.updates[path].hex() == last["raw"][2:]
        for wrong in (last["raw"] + "00", "0x7e" + last["raw"][4:], None, "0xzz"):
            answers[last["hash"]] = wrong
            with pytest.raises(IntegrityError):
                await feed.block(block_hash)


@given(blocks(chain_of(POLYGON)).filter(_synced))
@settings(max_examples=5, deadline=None)
def test_bytes_of_a_state_sync_are_the_nodes_and_fit_the_block(shown: Shown) -> None:
    asyncio.run(_published(shown))
