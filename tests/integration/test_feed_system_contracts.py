"""What a block writes without a transaction, on real nodes of the fork Prague: every bit of it is in the delta.

Beacon roots (EIP-4788), block hashes (EIP-2935) and the queues of withdrawals (EIP-7002) and consolidations (EIP-7251)
are written by the node itself. No trace of a transaction shows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from ethereum_blocks import keccak, minimal, raw, rlp
from feeding import QUICK, asynchronous, connected, everything
from geth_chains import CHAIN_ID, prague
from geth_node import Geth, geth
from storage_contract import TRACER, word

if TYPE_CHECKING:
    from node_values import Asked

    from cardinal.protocols.streams import Payload

pytestmark = pytest.mark.node

BEACON_ROOTS = "0x000f3df6d732807ef1319fb7b8bb8522d0beac02"
HISTORY = "0x0000f90827f1c53a10cb7a02335b175320002935"
WITHDRAWALS = "0x00000961ef480eb55e80d19ad83579a64c007002"
CONSOLIDATIONS = "0x0000bbddc7ce488642fb579f8b00f3a590007251"
SOMEBODY = b"\x22" * 20
ONE_WITHDRAWAL = b"\x01" * 48 + (5).to_bytes(8, "big")
ONE_CONSOLIDATION = b"\x01" * 48 + b"\x02" * 48
FEE = 1
RING = 8191


def slots_of(payload: Payload, address: str, chain_id: int) -> dict[str, bytes]:
    """The slots that a payload has of an account, by the hash of their names."""
    own = f"c/{chain_id:x}/a/{keccak(raw(address)).hex()}/s/"
    (batch,) = payload.sub_batches.values()
    assert batch is not None
    return {path.removeprefix(own): value for path, value in batch.updates.items() if path.startswith(own)}


async def assert_slots(node: Asked, payload: Payload, address: str, chain_id: int, slots: set[int]) -> None:
    """These slots, and no other, changed in the block, to what the node says of them."""
    found = slots_of(payload, address, chain_id)
    for slot in slots:
        value = int(await node.ask("eth_getStorageAt", address, hex(slot), hex(payload.number)), 16)
        assert found.pop(keccak(word(slot)).hex()) == (rlp(minimal(value)) if value else b""), (address, slot)
    assert not found, address


async def changed(node: Asked, address: str, number: int, slots: range) -> set[int]:
    """Of these slots, those that differ between a block and the one before it."""

    async def at(slot: int, block: int) -> str:
        return str(await node.ask("eth_getStorageAt", address, hex(slot), hex(block)))

    return {slot for slot in slots if await at(slot, number) != await at(slot, number - 1)}


async def traced(node: Asked, block: dict[str, Any]) -> set[str]:
    """The accounts that traces of transactions name."""
    traces = await node.ask("debug_traceBlockByHash", block["hash"], TRACER)
    return {address for one in traces for side in ("pre", "post") for address in one["result"][side]}


async def built(node: Geth) -> None:
    """Blocks 1 to 5: nothing, a transfer, three requests of one kind and two of the other, and nothing again twice."""
    wallet = node.wallet
    await node.build([], withdrawals=0)
    await node.build([wallet.legacy(SOMEBODY)])
    requests = [wallet.legacy(raw(WITHDRAWALS), FEE, ONE_WITHDRAWAL) for _ in range(3)]
    requests += [wallet.legacy(raw(CONSOLIDATIONS), FEE, ONE_CONSOLIDATION) for _ in range(2)]
    await node.build(requests, withdrawals=0)
    await node.build([], withdrawals=0)
    await node.build([], withdrawals=0)


@pytest.mark.slow  # compiles geth
@asynchronous
async def test_system_contracts_of_geth_are_in_the_delta_and_nothing_else_of_them(tmp_path: Path) -> None:
    async with geth(tmp_path, prague) as node, connected(node.url + "#state=yes", QUICK) as feed:
        await built(node)
        payloads = await everything(feed.follow(start=1, until=5))
        assert [payload.number for payload in payloads] == [1, 2, 3, 4, 5]
        for payload in payloads:
            block = await node.block(hex(payload.number))
            assert not await traced(node, block) & {BEACON_ROOTS, HISTORY}
            place = int(block["timestamp"], 16) % RING
            await assert_slots(node, payload, BEACON_ROOTS, CHAIN_ID, {place, place + RING})
            root = slots_of(payload, BEACON_ROOTS, CHAIN_ID)[keccak(word(place + RING)).hex()]
            assert root == rlp(minimal(payload.number)), "the beacon root that the chain was told"
            before = payload.number - 1
            hashes = slots_of(payload, HISTORY, CHAIN_ID)
            if before:  # the hash of the first block may already be there
                assert hashes == {keccak(word(before)).hex(): rlp(raw(block["parentHash"]))}
            for queue in (WITHDRAWALS, CONSOLIDATIONS):
                await assert_slots(
                    node, payload, queue, CHAIN_ID, await changed(node, queue, payload.number, range(24))
                )
        asked = payloads[2]
        assert len(slots_of(asked, WITHDRAWALS, CHAIN_ID)) > 3, "a queue that was filled"
        assert len(slots_of(asked, CONSOLIDATIONS, CHAIN_ID)) > 3
        assert slots_of(payloads[3], WITHDRAWALS, CHAIN_ID), "a queue that was emptied by a block of no transaction"


@asynchronous
async def test_system_contracts_of_anvil_are_in_the_delta_as_far_as_it_has_them() -> None:
    async with anvil("--hardfork", "prague") as node, connected(node.url + "#state=yes", QUICK) as feed:
        await node.mine(3, 1)
        await node.mine(2, 0)
        payloads = await everything(feed.follow(start=2, until=5))
        for payload in payloads:
            block = await node.ask("eth_getBlockByNumber", hex(payload.number), *(False,))
            place, before = int(block["timestamp"], 16) % RING, payload.number - 1
            for address, near in (
                (BEACON_ROOTS, (place, place + RING)),
                (HISTORY, (before, before + 1)),
                (WITHDRAWALS, range(4)),
                (CONSOLIDATIONS, range(4)),
            ):
                due = {slot for slot in near if await changed(node, address, payload.number, range(slot, slot + 1))}
                await assert_slots(node, payload, address, 31337, due)
                assert due == ({before} if address == HISTORY else set()), "what this anvil writes"
