"""A hundred blocks of a real node, with reorgs up to a depth of twenty, by two producers, one of which keeps dying.

Transactions of the types 0, 1, 2 and 4 (type 3 comes from geth: anvil's blocks with blobs do not recompute).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anvil_node import Anvil, anvil
from commands import Processes, fresh_chain_id
from ethereum_blocks import raw, text
from feeding import asynchronous
from long_runs import assert_no_seq_is_missing, reading, restarted
from node_values import assert_values_recompute
from signing import Wallet

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.node]

SENDER = bytes.fromhex("2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6")
AUTHORITY = bytes.fromhex("dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97")
"""The keys of the last two accounts that anvil gives coins to, as its banner prints them."""

DEEPEST = 20


async def set_code(node: Anvil, chain_id: int) -> None:
    """A transaction of type 4, from accounts that the node does not sign for."""
    sender, authority = (Wallet(secret, chain_id) for secret in (SENDER, AUTHORITY))
    for wallet in (sender, authority):
        wallet.nonce = int(await node.ask("eth_getTransactionCount", text(wallet.address), "pending"), 16)
    await node.ask("eth_sendRawTransaction", text(sender.set_code(b"\x22" * 20, b"\x33" * 20, authority)))


async def mine(node: Anvil, blocks: int, dice: random.Random, chain_id: int) -> None:
    """So many heights, with reorgs; the end is strictly the heaviest."""
    height = 0
    while height < blocks:
        if dice.random() < 0.2 and height > 2:
            await node.ask("anvil_reorg", dice.randint(1, min(DEEPEST, height - 1)), [])
        for _ in range(dice.randint(1, 5)):
            if dice.random() < 0.3:
                await set_code(node, chain_id)
            await node.mine(1, transactions=dice.randint(0, 5))
            height += 1
        await asyncio.sleep(dice.uniform(0.0, 0.4))  # so that producers see some branches whole, and some never
    await node.ask("anvil_reorg", DEEPEST, [])
    await node.mine(3)


async def consumed_chain_is_the_nodes(broker: EmbeddedKafka, folder: Path, blocks: int) -> None:
    chain_id, stream, dice = fresh_chain_id(), f"kafka://{broker.bootstrap}", random.Random(blocks)
    async with anvil("--chain-id", str(chain_id)) as node:
        await node.mine(2)
        with Processes(folder) as processes:
            command = [
                "produce",
                "--from",
                node.ws_url,
                "--to",
                stream,
                "--chain-id",
                str(chain_id),
                "--start",
                "earliest",
            ]
            steady = processes.start(*command, "--producer-id", "steady")
            done = asyncio.Event()
            killing = asyncio.create_task(restarted(processes, [*command, "--producer-id", "mortal"], done, dice))
            with reading(stream, chain_id) as consumed:
                await mine(node, blocks, dice, chain_id)
                final = await node.chain()
                await consumed.reaches(raw(final[-1]["hash"]))
                done.set()
                killed = await killing
                assert steady.poll() is None, "the producer that nobody killed goes on"
                assert [payload.hash for payload in consumed.chain] == [raw(block["hash"]) for block in final]
                for payload, block in zip(consumed.chain, final, strict=True):
                    await assert_values_recompute(node, payload, block, chain_id)
                assert_no_seq_is_missing(consumed.seqs)
        assert killed >= 2
        assert consumed.reorgs
        assert {int(one["type"], 16) for block in final for one in block["transactions"]} == {0, 1, 2, 4}


@pytest.mark.slow
@asynchronous
async def test_hundred_blocks_with_reorgs_and_a_mortal_producer(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    await consumed_chain_is_the_nodes(cardinal_broker, tmp_path, 100)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@asynchronous
async def test_thousand_blocks_with_reorgs_and_a_mortal_producer(
    cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    await consumed_chain_is_the_nodes(cardinal_broker, tmp_path, 1000)
