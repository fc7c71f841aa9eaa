"""A hundred blocks of a real geth, with reorgs up to a depth of twenty, by two producers, one of which keeps dying."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Processes
from ethereum_blocks import raw, text
from feeding import asynchronous
from geth_node import CHAIN_ID, Geth, geth
from long_runs import assert_no_seq_is_missing, reading, restarted
from node_values import assert_values_recompute

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.node]

BLOCKS, DEEPEST = 100, 20
SOMEBODY = b"\x22" * 20
LOGS = bytes.fromhex("602a60006000a100")
"""Init code that emits one log: PUSH1 42, PUSH1 0, PUSH1 0, LOG1, STOP."""


async def grow(node: Geth, blocks: int, dice: random.Random) -> None:
    """So many blocks, with transactions of the types 0, 1 and 2 and withdrawals."""
    wallet = node.wallet
    for _ in range(blocks):
        made = [
            lambda: wallet.legacy(SOMEBODY),
            lambda: wallet.access(SOMEBODY, [b"\x01" * 32]),
            lambda: wallet.fee_market(b"", 0, LOGS),
            lambda: wallet.fee_market(SOMEBODY, 5),
        ]
        await node.build([dice.choice(made)() for _ in range(dice.randint(0, 4))], withdrawals=dice.randint(0, 3))


async def rewind(node: Geth, depth: int) -> None:
    """So many blocks fewer; whoever sends next begins with the nonce that it had there."""
    head = await height(node)
    await node.ask("debug_setHead", hex(head - depth))
    node.wallet.nonce = int(await node.ask("eth_getTransactionCount", text(node.wallet.address), "latest"), 16)


async def height(node: Geth) -> int:
    return int((await node.block("latest"))["number"], 16)


@asynchronous
async def test_hundred_blocks_of_geth_with_reorgs_and_a_mortal_producer(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    stream, dice = f"kafka://{cardinal_killable_broker.bootstrap}", random.Random(9)
    async with geth(tmp_path / "geth") as node:
        await grow(node, 2, dice)
        with Processes(tmp_path) as processes:
            command = ["produce", "--to", stream, "--chain-id", str(CHAIN_ID), "--start", "1"]
            steady = processes.start(*command, "--from", node.ws_url, "--producer-id", "steady")
            done = asyncio.Event()
            mortal = [*command, "--from", node.ipc_url, "--producer-id", "mortal"]
            killing = asyncio.create_task(restarted(processes, mortal, done, dice))
            with reading(stream, CHAIN_ID) as consumed:
                while (at := await height(node)) < BLOCKS:
                    if dice.random() < 0.2 and at > 3:
                        depth = dice.randint(1, min(DEEPEST, at - 1))
                        await rewind(node, depth)
                        await grow(node, depth + 1, dice)
                    await grow(node, dice.randint(1, 5), dice)
                    await asyncio.sleep(dice.uniform(0.0, 0.4))  # so that some branches are seen whole, and some never
                await rewind(node, DEEPEST)
                await grow(node, DEEPEST + 3, dice)
                final = [await node.block(hex(number)) for number in range(1, await height(node) + 1)]
                await consumed.reaches(raw(final[-1]["hash"]))
                done.set()
                killed = await killing
                assert steady.poll() is None, "the producer that nobody killed goes on"
                assert [payload.hash for payload in consumed.chain] == [raw(block["hash"]) for block in final]
                for payload, block in zip(consumed.chain, final, strict=True):
                    await assert_values_recompute(node, payload, block, CHAIN_ID)
                assert_no_seq_is_missing(consumed.seqs)
        assert killed >= 2
        assert consumed.reorgs
        assert {int(one["type"], 16) for block in final for one in block["transactions"]} == {0, 1, 2}
