"""The node feed on a real geth: branches switched by its Engine API, heads of which only the last is announced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ethereum_blocks import raw
from feeding import QUICK, assert_lawful, asynchronous, connected, given, take
from geth_node import CHAIN_ID, Geth, geth, hash_of
from node_values import assert_values_recompute

from cardinal.protocols.streams.payload import Payload

pytestmark = [pytest.mark.slow, pytest.mark.node]  # compiles geth

SOMEBODY = b"\x22" * 20
LOGS = bytes.fromhex("602a60006000a100")
"""Init code that emits one log: PUSH1 42, PUSH1 0, PUSH1 0, LOG1, STOP."""


async def mixed(node: Geth) -> dict[str, Any]:
    """A block with transactions of the types 0, 1 and 2, one of them with a log, and withdrawals."""
    wallet = node.wallet
    transactions = [
        wallet.legacy(SOMEBODY),
        wallet.access(SOMEBODY, [b"\x01" * 32]),
        wallet.fee_market(b"", 0, LOGS),
        wallet.fee_market(SOMEBODY, 5),
    ]
    return await node.build(transactions, withdrawals=3)


class Followers:
    """Feeds of one node over each of its transports; every one has to give the same."""

    def __init__(self, streams: list[AsyncIterator[Payload]]) -> None:
        self._streams = streams
        self.taken: list[list[Payload]] = [[] for _ in streams]

    async def expect(self, blocks: list[dict[str, Any]]) -> None:
        wanted = [raw(hash_of(block)) for block in blocks]
        for taken, new in zip(
            self.taken, await asyncio.gather(*(take(one, len(blocks)) for one in self._streams)), strict=True
        ):
            assert given(new) == wanted
            taken.extend(new)


@pytest.mark.parametrize("blobs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "with a blob"])
@asynchronous
async def test_branches_of_a_real_geth_are_followed_over_every_transport(tmp_path: Path, blobs: bool) -> None:  # noqa: FBT001
    async with geth(tmp_path) as node:
        trunk = [await mixed(node) for _ in range(5)]
        transaction = node.wallet.blob if blobs else node.wallet.legacy  # geth takes eight seconds for its first blob
        trunk.append(await node.build([transaction(SOMEBODY)]))
        nonce = node.wallet.nonce
        one = [await mixed(node) for _ in range(4)]
        await node.ask("debug_setHead", hex(len(trunk)))
        node.wallet.nonce = nonce
        other = [await node.build([node.wallet.legacy(SOMEBODY, 7)], withdrawals=at) for at in range(6)]
        await node.ask("debug_setHead", hex(3))
        for block in [*trunk[3:], *one, *other]:
            await node.have(block, choose=False)  # had, and on no branch that the node is on
        async with (
            connected(node.url, QUICK) as by_http,
            connected(node.ws_url, QUICK) as by_ws,
            connected(node.ipc_url, QUICK) as by_ipc,
        ):
            all_of_them = Followers([feed.follow(start=1) for feed in (by_http, by_ws, by_ipc)])
            await all_of_them.expect(trunk[:3])
            await node.choose(hash_of(one[-1]))  # seven new heads, one announced
            await all_of_them.expect([*trunk[3:], *one])
            await node.choose(hash_of(other[-1]))  # a reorg of depth four, its last head announced
            await all_of_them.expect(other)
            await node.choose(hash_of(one[-1]))  # back to a lower head, of which nothing is new
            node.wallet.nonce = nonce + 16
            longer = [await mixed(node) for _ in range(2)]
            await all_of_them.expect(longer)
            await node.ask("debug_setHead", hex(len(trunk) + 2))  # a silent rewind, and a number that comes again
            node.wallet.nonce = nonce + 8
            again = [await node.build([node.wallet.legacy(SOMEBODY, 9)])]
            await all_of_them.expect(again)
            await node.choose(hash_of(again[-1]), finalized=hash_of(trunk[2]))
            last = [await node.build([], withdrawals=2)]
            await all_of_them.expect(last)
        for taken in all_of_them.taken:
            assert_lawful(taken)
        await assert_chain(node, all_of_them.taken)


async def assert_chain(node: Geth, all_taken: list[list[Payload]]) -> None:
    """Every block of the node's chain was given, with the values that the node has."""
    head = int((await node.block("latest"))["number"], 16)
    for number in range(1, head + 1):
        block = await node.block(hex(number))
        for taken in all_taken:
            payload = next(one for one in taken if one.hash == raw(block["hash"]))
            await assert_values_recompute(node, payload, block, CHAIN_ID)
