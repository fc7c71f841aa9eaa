"""A hundred blocks of a real node, with reorgs up to a depth of twenty, by two producers, one of which keeps dying.

anvil has transactions of the types 0, 1, 2 and 4 (its blocks with blobs do not recompute), geth withdrawals too.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import Anvil, anvil
from commands import Processes, fresh_chain_id
from ethereum_blocks import raw, text
from feeding import asynchronous
from geth_node import CHAIN_ID, Geth, geth
from long_runs import reading, restarted
from node_values import assert_values_recompute
from signing import Wallet

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.node]

SENDER = bytes.fromhex("2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6")
AUTHORITY = bytes.fromhex("dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97")
"""The keys of the last two accounts that anvil gives coins to, as its banner prints them."""

DEEPEST = 20
SOMEBODY = b"\x22" * 20
LOGS = bytes.fromhex("602a60006000a100")
"""Init code that emits one log: PUSH1 42, PUSH1 0, PUSH1 0, LOG1, STOP."""


class AnvilChain:
    """Its reorgs replace the newest blocks by empty ones."""

    first, kinds = 0, frozenset({0, 1, 2, 4})

    def __init__(self, node: Anvil, chain_id: int, dice: random.Random) -> None:
        self.node, self.chain_id, self.urls = node, chain_id, (node.ws_url, node.ws_url)
        self._dice = dice

    async def height(self) -> int:
        return int(await self.node.ask("eth_blockNumber"), 16)

    async def grow(self, blocks: int) -> None:
        for _ in range(blocks):
            if self._dice.random() < 0.3:
                await self._set_code()
            await self.node.mine(1, transactions=self._dice.randint(0, 5))

    async def reorg(self, depth: int) -> None:
        await self.node.ask("anvil_reorg", depth, [])

    async def block(self, number: int) -> dict[str, Any]:
        return dict(await self.node.ask("eth_getBlockByNumber", hex(number), *(True,)))

    async def _set_code(self) -> None:
        """A transaction of type 4, from accounts that the node does not sign for."""
        sender, authority = (Wallet(secret, self.chain_id) for secret in (SENDER, AUTHORITY))
        for wallet in (sender, authority):
            wallet.nonce = int(await self.node.ask("eth_getTransactionCount", text(wallet.address), "pending"), 16)
        sent = sender.set_code(SOMEBODY, b"\x33" * 20, authority)
        await self.node.ask("eth_sendRawTransaction", text(sent))


class GethChain:
    """Its reorgs rewind it, and grow another branch that is longer by one."""

    first, kinds, chain_id = 1, frozenset({0, 1, 2}), CHAIN_ID

    def __init__(self, node: Geth, dice: random.Random) -> None:
        self.node, self.urls = node, (node.ws_url, node.ipc_url)
        self._dice = dice

    async def height(self) -> int:
        return int((await self.node.block("latest"))["number"], 16)

    async def grow(self, blocks: int) -> None:
        wallet = self.node.wallet
        made = [
            lambda: wallet.legacy(SOMEBODY),
            lambda: wallet.access(SOMEBODY, [b"\x01" * 32]),
            lambda: wallet.fee_market(b"", 0, LOGS),
            lambda: wallet.fee_market(SOMEBODY, 5),
        ]
        for _ in range(blocks):
            sent = [self._dice.choice(made)() for _ in range(self._dice.randint(0, 4))]
            await self.node.build(sent, withdrawals=self._dice.randint(0, 3))

    async def reorg(self, depth: int) -> None:
        wallet = self.node.wallet
        await self.node.ask("debug_setHead", hex(await self.height() - depth))
        wallet.nonce = int(await self.node.ask("eth_getTransactionCount", text(wallet.address), "latest"), 16)
        await self.grow(depth + 1)

    async def block(self, number: int) -> dict[str, Any]:
        return await self.node.block(hex(number))


async def consumed_chain_is_the_nodes(
    chain: AnvilChain | GethChain, broker: EmbeddedKafka, folder: Path, blocks: int, dice: random.Random
) -> None:
    stream = f"kafka://{broker.bootstrap}"
    await chain.grow(2)
    with Processes(folder) as processes:
        command = ["produce", "--to", stream, "--chain-id", str(chain.chain_id), "--start", str(chain.first)]
        steady = processes.start(*command, "--from", chain.urls[0], "--producer-id", "steady")
        done = asyncio.Event()
        mortal = [*command, "--from", chain.urls[1], "--producer-id", "mortal"]
        killing = asyncio.create_task(restarted(processes, mortal, done, dice))
        with reading(stream, chain.chain_id) as consumed:
            while (height := await chain.height()) < blocks:
                if dice.random() < 0.2 and height > 3:
                    await chain.reorg(dice.randint(1, min(DEEPEST, height - 1)))
                await chain.grow(dice.randint(1, 5))
                await asyncio.sleep(dice.uniform(0.0, 0.4))  # so that some branches are seen whole, and some never
            await chain.reorg(DEEPEST)
            await chain.grow(3)
            final = [await chain.block(number) for number in range(chain.first, await chain.height() + 1)]
            await consumed.reaches(raw(final[-1]["hash"]))
            done.set()
            killed = await killing
            assert steady.poll() is None, "the producer that nobody killed goes on"
            assert [payload.hash for payload in consumed.chain] == [raw(block["hash"]) for block in final]
            for payload, block in zip(consumed.chain, final, strict=True):
                await assert_values_recompute(chain.node, payload, block, chain.chain_id)
    assert killed >= 2
    assert consumed.reorgs
    assert {int(one["type"], 16) for block in final for one in block["transactions"]} == chain.kinds


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "blocks", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.soak)]
)
@asynchronous
async def test_blocks_of_anvil_with_reorgs_and_a_mortal_producer(
    cardinal_broker: EmbeddedKafka, tmp_path: Path, blocks: int
) -> None:
    chain_id, dice = fresh_chain_id(), random.Random(blocks)
    async with anvil("--chain-id", str(chain_id)) as node:
        await consumed_chain_is_the_nodes(AnvilChain(node, chain_id, dice), cardinal_broker, tmp_path, blocks, dice)


@pytest.mark.slow
@asynchronous
async def test_blocks_of_geth_with_reorgs_and_a_mortal_producer(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    dice = random.Random(9)
    async with geth(tmp_path / "geth") as node:
        await consumed_chain_is_the_nodes(GethChain(node, dice), cardinal_killable_broker, tmp_path, 100, dice)
