"""Transactions that the mainnet fixtures lack, signed here and mined by a real anvil node: blobs and set-code."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from anvil_node import FULL, Anvil, anvil
from ethereum_blocks import keccak, raw
from feeding import asynchronous
from signing import EMPTY_BLOB_COMMITMENT, Wallet

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import decode, frames, payload_from_rpc, verify
from cardinal_ethereum.chains import CHAINS, Chain

pytestmark = pytest.mark.node

CHAIN_ID = 31337
RICH = hex(10**20)
BLOB_HASH = b"\x01" + hashlib.sha256(EMPTY_BLOB_COMMITMENT).digest()[1:]
LOGGING = "0x602a60006000a100"


def wallet(secret: int) -> Wallet:
    return Wallet(secret.to_bytes(32, "big"), CHAIN_ID)


async def block_of(node: Anvil, *sent: bytes) -> tuple[Any, Any]:
    """A block with these transactions, and its receipts."""
    for each in sent:
        await node.ask("eth_sendRawTransaction", "0x" + each.hex())
    await node.ask("evm_mine")
    block = await node.ask("eth_getBlockByNumber", "latest", *FULL)
    assert len(block["transactions"]) == len(sent)
    return block, await node.ask("eth_getBlockReceipts", block["hash"])


def published(block: Any, receipts: Any) -> Payload:  # noqa: ANN401 - JSON
    payload = payload_from_rpc(block, receipts, chain_id=CHAIN_ID)
    assert decode(payload).encode() == payload
    return payload


@asynchronous
async def test_a_set_code_transaction_passes_every_check_and_decodes_without_loss() -> None:
    sender, other = wallet(0x51), wallet(0x52)
    async with anvil("--hardfork", "prague") as node:
        await node.ask("anvil_setBalance", "0x" + sender.address.hex(), RICH)
        target = b"\x77" * 20
        await node.ask("anvil_setCode", "0x" + target.hex(), LOGGING)
        whole = sender.set_code(other.address, target, other)
        block, receipts = await block_of(node, whole)
        verify(block, receipts, chain=CHAINS[CHAIN_ID])
        payload = published(block, receipts)
        assert payload.updates[f"c/7a69/b/{payload.hash.hex()}/t/0"] == whole
        (transaction,) = decode(payload).transactions
        (entry,) = transaction.authorizations
        assert (transaction.type, transaction.sender, transaction.to) == (4, sender.address, other.address)
        assert (entry.chain_id, entry.address, entry.nonce) == (CHAIN_ID, target, 0)
        # The code that the other account now runs wrote a log: the delegation worked.
        assert [log.address for log in decode(payload).logs] == [other.address]
        (row,) = frames([payload], tables=["transactions"])["transactions"].to_pylist()
        assert [each["authority"] for each in row["authorization_list"]] == ["0x" + other.address.hex()]
        block["transactions"][0]["authorizationList"][0]["nonce"] = "0x1"
        with pytest.raises(IntegrityError, match="transaction hashes"):
            verify(block, receipts)


@asynchronous
async def test_a_blob_transaction_is_held_to_its_hash_where_the_nodes_root_is_another() -> None:
    sender = wallet(0x53)
    async with anvil("--hardfork", "cancun") as node:
        await node.ask("anvil_setBalance", "0x" + sender.address.hex(), RICH)
        block, receipts = await block_of(node, sender.blob(b"\x66" * 20))
        with pytest.raises(IntegrityError) as caught:
            verify(block, receipts, chain=CHAINS[CHAIN_ID])
        assert caught.value.check == "transactions root"  # anvil hashes the blobs themselves into it
        ours = Chain(chain_id=CHAIN_ID, name="ours", unchecked=frozenset({"transactions root"}))
        verify(block, receipts, chain=ours)
        payload = published(block, receipts)
        written = payload.updates[f"c/7a69/b/{payload.hash.hex()}/t/0"]
        assert keccak(written) == raw(block["transactions"][0]["hash"])
        (transaction,) = decode(payload).transactions
        assert (transaction.type, transaction.sender) == (3, sender.address)
        assert transaction.blob_versioned_hashes == (BLOB_HASH,)
        (row,) = frames([payload], tables=["transactions"])["transactions"].to_pylist()
        assert (row["max_fee_per_blob_gas"], row["blob_versioned_hashes"]) == (str(10**10), ["0x" + BLOB_HASH.hex()])
        (header,) = frames([payload], tables=["blocks"])["blocks"].to_pylist()
        assert header["blob_gas_used"] == 131_072
        (receipt,) = frames([payload], tables=["receipts"])["receipts"].to_pylist()
        assert receipt["blob_gas_used"] == int(receipts[0]["blobGasUsed"], 16)
        block["transactions"][0]["blobVersionedHashes"] = ["0x" + "01" * 32]
        with pytest.raises(IntegrityError, match="transaction hashes"):
            verify(block, receipts, chain=ours)


@asynchronous
async def test_every_type_of_transaction_in_one_block_has_the_nodes_own_bytes() -> None:
    async with anvil("--hardfork", "prague") as node:
        await node.mine(1, transactions=8)
        block = await node.ask("eth_getBlockByNumber", "0x1", *FULL)
        receipts = await node.ask("eth_getBlockReceipts", block["hash"])
        verify(block, receipts, chain=CHAINS[CHAIN_ID])
        payload = published(block, receipts)
        for index, shown in enumerate(block["transactions"]):
            whole = await node.ask("eth_getRawTransactionByHash", shown["hash"])
            assert payload.updates[f"c/7a69/b/{payload.hash.hex()}/t/{index:x}"] == raw(whole)
        assert {transaction.type for transaction in decode(payload).transactions} == {0, 1, 2}
