"""Blocks of a real geth: withdrawals, blobs and roots, and state deltas that traces do not cover completely."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ethereum_blocks import keccak, minimal, raw, rlp
from feeding import asynchronous
from geth_node import CHAIN_ID, Geth, geth
from storage_contract import CREATING, STORING, TRACER, word

from cardinal.errors import IntegrityError
from cardinal_ethereum import Account, decode, frames, payload_from_rpc, state_delta, touched, verify
from cardinal_ethereum.chains import CHAINS
from cardinal_ethereum.model.state import StateDelta
from evm_blocks import root

pytestmark = [pytest.mark.slow, pytest.mark.node]  # compiles geth

PAID = b"\x77" * 20
"""Whom the withdrawals of :mod:`geth_node` are paid to."""


async def shown(node: Geth, number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    block = await node.block(hex(number))
    return block, await node.ask("eth_getBlockReceipts", block["hash"])


@asynchronous
async def test_withdrawals_and_blobs_are_under_the_roots_of_geth(tmp_path: Path) -> None:
    async with geth(tmp_path) as node:
        wallet, to = node.wallet, b"\x66" * 20
        await node.build([wallet.legacy(to), wallet.access(to, [word(1)]), wallet.fee_market(to)], withdrawals=3)
        await node.build([wallet.blob(to)], withdrawals=2)  # alone: geth's pool takes no other of its sender beside it
        await node.build([], withdrawals=0)
        kinds = set()
        for number, paid in ((1, 3), (2, 2), (3, 0)):
            block, receipts = await shown(node, number)
            verify(block, receipts, chain=CHAINS[CHAIN_ID])
            payload = payload_from_rpc(block, receipts, chain_id=CHAIN_ID)
            own = f"c/{CHAIN_ID:x}/b/{payload.hash.hex()}"
            decoded = decode(payload)
            assert decoded.encode() == payload
            kinds |= {transaction.type for transaction in decoded.transactions}
            written = [payload.updates[f"{own}/t/{index:x}"] for index in range(len(block["transactions"]))]
            assert root(written) == block["transactionsRoot"]
            assert len(decoded.withdrawals or ()) == paid
            entries = [
                [minimal(int(one["index"], 16)), minimal(int(one["validatorIndex"], 16)), raw(one["address"])]
                for one in block["withdrawals"]
            ]
            for entry, one in zip(entries, block["withdrawals"], strict=True):
                entry.append(minimal(int(one["amount"], 16)))
            assert root([rlp([*entry]) for entry in entries]) == block["withdrawalsRoot"]
            # No withdrawals, no entry: redundant producers must announce the same paths.
            assert payload.updates.get(f"{own}/w") == (rlp([[*entry] for entry in entries]) if paid else None)
            rows = frames([payload])["withdrawals"].to_pylist()
            assert [(row["address"], row["amount"]) for row in rows] == [
                ("0x" + PAID.hex(), at + 1) for at in range(paid)
            ]
            (size,) = frames([payload], tables=["blocks"])["blocks"].column("size").to_pylist()
            assert size == int(block["size"], 16)
        assert kinds == {0, 1, 2, 3}


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "amount": lambda block: block["withdrawals"][0].update(amount="0x9"),
    "address": lambda block: block["withdrawals"][0].update(address="0x" + "99" * 20),
    "index": lambda block: block["withdrawals"][1].update(index="0x1"),
    "left out": lambda block: block["withdrawals"].pop(),
    "all left out": lambda block: block["withdrawals"].clear(),
    "not said": lambda block: block.pop("withdrawals"),
    "swapped": lambda block: block["withdrawals"].reverse(),
}


@asynchronous
async def test_a_lie_about_withdrawals_is_found(tmp_path: Path) -> None:
    async with geth(tmp_path) as node:
        await node.build([], withdrawals=2)
        block, receipts = await shown(node, 1)
    verify(block, receipts)
    for lie in LIES.values():
        wrong = copy.deepcopy(block)
        lie(wrong)
        with pytest.raises(IntegrityError) as caught:
            verify(wrong, receipts)
        assert caught.value.check == "withdrawals root"


async def delta(node: Geth, number: int) -> tuple[StateDelta, set[str]]:
    """The delta of a block, and the addresses that its trace names."""
    block, receipts = await shown(node, number)
    written = verify(block, receipts)
    parent = await node.block(hex(number - 1))
    traces = await node.ask("debug_traceBlockByHash", block["hash"], TRACER)
    proofs = [
        await node.ask("eth_getProof", address, slots, at["hash"])
        for address, slots in touched(traces, written).items()
        for at in (parent, block)
    ]
    named = {address.lower() for trace in traces for side in trace["result"].values() for address in side}
    return state_delta(traces, proofs, block=written, parent=parent, chain_id=CHAIN_ID), named


@asynchronous
async def test_the_deltas_of_geths_blocks_hold_what_its_traces_lack(tmp_path: Path) -> None:
    async with geth(tmp_path) as node:
        wallet = node.wallet
        await node.build([wallet.fee_market(b"", 0, CREATING)])
        made = (await shown(node, 1))[1][0]["contractAddress"]
        contract = raw(made)
        await node.build([wallet.legacy(contract, 0, word(slot) + word(slot + 5)) for slot in range(4)])
        await node.build([wallet.fee_market(contract, 0, word(2) + word(0)), wallet.legacy(b"\x66" * 20)])
        await node.build([wallet.blob(b"\x66" * 20)], withdrawals=1)
        state: dict[str, bytes] = {}
        for number in range(1, 5):
            changed, named = await delta(node, number)
            assert "0x" + PAID.hex() not in named
            assert f"c/539/a/{keccak(PAID).hex()}/d" in changed.updates
            state |= {**changed.updates, **changed.storage}
            assert not changed.deletes
        for address in (PAID, contract, wallet.address, b"\x66" * 20, b"\x11" * 20):
            proof = await node.ask("eth_getProof", "0x" + address.hex(), [], "latest")
            numbers = [minimal(int(proof[name], 16)) for name in ("nonce", "balance")]
            whole = rlp([*numbers, raw(proof["storageHash"]), raw(proof["codeHash"])])
            assert Account.decode(state[f"c/539/a/{keccak(address).hex()}/d"]).leaf() == whole, address
        slots = {slot: state[f"c/539/a/{keccak(contract).hex()}/s/{keccak(word(slot)).hex()}"] for slot in range(4)}
        assert slots == {0: b"\x05", 1: b"\x06", 2: b"", 3: b"\x08"}
        assert state[f"c/539/c/{keccak(STORING).hex()}"] == STORING
