"""Transactions that the mainnet fixtures lack, signed here and mined by a real anvil node: blobs and set-code."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from anvil_node import FULL, Anvil, anvil
from coincurve import PrivateKey
from ethereum_blocks import Item, keccak, minimal, raw, rlp
from feeding import asynchronous

from cardinal.apps.evm import decode, frames, payload_from_rpc, verify
from cardinal.apps.evm.presets import CHAINS, Chain
from cardinal.errors import IntegrityError
from cardinal.protocols.streams.payload import Payload

pytestmark = pytest.mark.node

CHAIN_ID = 31337
GWEI = 10**9
RICH = hex(10**20)
ONLY_KNOWN: Item = b"\xc0" + bytes(47)
"""The commitment and the proof of a blob of zeros: the point at infinity (EIP-4844)."""
BLOB_HASH = b"\x01" + hashlib.sha256(b"\xc0" + bytes(47)).digest()[1:]
BLOB = bytes(131_072)
LOGGING = "0x602a60006000a100"


def address_of(key: PrivateKey) -> bytes:
    return keccak(key.public_key.format(compressed=False)[1:])[12:]


def signed(key: PrivateKey, kind: int, fields: list[Item]) -> list[Item]:
    """The fields and the signature over them."""
    signature = key.sign_recoverable(keccak(bytes((kind,)) + rlp(fields)), hasher=None)
    return [*fields, minimal(signature[64]), signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0")]


def call(nonce: int, to: bytes) -> list[Item]:
    prices: list[Item] = [minimal(GWEI), minimal(10 * GWEI)]
    return [minimal(CHAIN_ID), minimal(nonce), *prices, minimal(200_000), to, b"", b"\x01\x02", []]


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
    sender, other = PrivateKey.from_int(0x51), PrivateKey.from_int(0x52)
    async with anvil("--hardfork", "prague") as node:
        await node.ask("anvil_setBalance", "0x" + address_of(sender).hex(), RICH)
        target = b"\x77" * 20
        await node.ask("anvil_setCode", "0x" + target.hex(), LOGGING)
        wish: list[Item] = [minimal(CHAIN_ID), target, b""]
        signature = other.sign_recoverable(keccak(b"\x05" + rlp(wish)), hasher=None)
        wish += [minimal(signature[64]), signature[:32].lstrip(b"\0"), signature[32:64].lstrip(b"\0")]
        whole = b"\x04" + rlp(signed(sender, 4, [*call(0, address_of(other)), [wish]]))
        block, receipts = await block_of(node, whole)
        verify(block, receipts, chain=CHAINS[CHAIN_ID])
        payload = published(block, receipts)
        assert payload.updates[f"c/7a69/b/{payload.hash.hex()}/t/0"] == whole
        (transaction,) = decode(payload).transactions
        (entry,) = transaction.authorizations
        assert (transaction.type, transaction.sender, transaction.to) == (4, address_of(sender), address_of(other))
        assert (entry.chain_id, entry.address, entry.nonce) == (CHAIN_ID, target, 0)
        # The code that the other account now runs wrote a log: the delegation worked.
        assert [log.address for log in decode(payload).logs] == [address_of(other)]
        block["transactions"][0]["authorizationList"][0]["nonce"] = "0x1"
        with pytest.raises(IntegrityError, match="transaction hashes"):
            verify(block, receipts)


@asynchronous
async def test_a_blob_transaction_is_held_to_its_hash_where_the_nodes_root_is_another() -> None:
    sender = PrivateKey.from_int(0x53)
    async with anvil("--hardfork", "cancun") as node:
        await node.ask("anvil_setBalance", "0x" + address_of(sender).hex(), RICH)
        fields = signed(sender, 3, [*call(0, b"\x66" * 20), minimal(GWEI), [BLOB_HASH]])
        network = b"\x03" + rlp([fields, [BLOB], [ONLY_KNOWN], [ONLY_KNOWN]])
        block, receipts = await block_of(node, network)
        with pytest.raises(IntegrityError) as caught:
            verify(block, receipts, chain=CHAINS[CHAIN_ID])
        assert caught.value.check == "transactions root"  # anvil hashes the blobs themselves into it (facts)
        ours = Chain(chain_id=CHAIN_ID, name="ours", unchecked=frozenset({"transactions root"}))
        verify(block, receipts, chain=ours)
        payload = published(block, receipts)
        assert payload.updates[f"c/7a69/b/{payload.hash.hex()}/t/0"] == b"\x03" + rlp(fields)
        (transaction,) = decode(payload).transactions
        assert (transaction.type, transaction.sender) == (3, address_of(sender))
        assert transaction.blob_versioned_hashes == (BLOB_HASH,)
        (row,) = frames([payload], tables=["transactions"])["transactions"].to_pylist()
        assert (row["max_fee_per_blob_gas"], row["blob_versioned_hashes"]) == (str(GWEI), ["0x" + BLOB_HASH.hex()])
        (header,) = frames([payload], tables=["blocks"])["blocks"].to_pylist()
        assert header["blob_gas_used"] == 131_072
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
