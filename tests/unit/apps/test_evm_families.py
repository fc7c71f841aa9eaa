"""Transactions that only some families of chains have: their bytes, their tables, and types that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import IntegrityError
from cardinal_ethereum import decode, frames, payload_from_rpc, verify, verify_payload
from cardinal_ethereum.chains import CHAINS, Chain, chain_of
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.transaction_decoder import decode_transaction
from evm_blocks import OTHER_TYPES, ZERO_ADDRESS, Json, canonical, receipts_of, sealed, text
from evm_families import KINDS, family_transactions

ZERO = "0x" + "00" * 32
FAMILIES = st.sampled_from(sorted(KINDS))
CHAIN_OF = {"arbitrum": CHAINS[42_161], "celo": CHAINS[42_220], "scroll": CHAINS[534_352]}

SCROLL: Json = {
    "type": "0x7e",
    "from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266",
    "queueIndex": "0x1",
    "value": "0x2",
    "gas": "0x3",
    "to": "0x70997970c51812dc3a010c7d01b50e0d17dc79c8",
    "input": "0x01020304",
    "hash": "0x1cebed6d90ef618f60eec1b7edc0df36b298a237c219f0950081acfb72eac6be",
}
"""Scroll's go-ethereum, transaction_test: the hash is that of the bridge's contract."""

CELO: Json = {
    "type": "0x7b",
    "hash": "0x2499b178a0e54fb856354bb53c9cb0fe2d1f70b2e6c876f6470e7a6e5090f3ac",
    "nonce": "0x705",
    "from": "0xefe945ee33ce4ab037ff4d1e1384d0efcd95f37b",
    "to": "0x7a1e295c4babdf229776680c93ed0f73d069abc0",
    "value": "0x0",
    "gasPrice": "0x1ae0426f1",
    "gas": "0x3644c",
    "maxFeePerGas": "0x26442dbed",
    "maxPriorityFeePerGas": "0x4d7ee",
    "input": "0xcac35c7a290decd9548b62a8d60345a988386fc84ba6bc95484008f6362f93160ef3e563",
    "r": "0xaa0cfaa3df893578b3504062b862428f0e4a94046370cf2a4fd6c392c0760dd8",
    "s": "0x1337d022bbb8faed78a9707e6c38d51f575816e7f85aa540f3d37a9081c58a71",
    "v": "0x0",
    "chainId": "0xa4ec",
    "accessList": [],
    "feeCurrency": "0x2f25deb3848c207fc8e0c34035b3ba7fc157602b",
}
"""Celo's block 32,460,725, transaction 20."""

ARBITRUM: Json = {
    "type": "0x6a",
    "hash": "0x23f3f2a9c24b841171116d8032af7a2190389c1567e12a4174cf9bb1ec310765",
    "from": "0x00000000000000000000000000000000000a4b05",
    "to": "0x00000000000000000000000000000000000a4b05",
    "input": "0x6bf6a42d" + f"{0:064x}{0x11B3FB3:064x}{0x8F0D180:064x}{1:064x}",
    "chainId": "0xa4b1",
    "nonce": "0x0",
}
"""Arbitrum One's block 150,000,000, transaction 0 (squid's fixtures)."""

PUBLIC = [("scroll", SCROLL), ("celo", CELO), ("arbitrum", ARBITRUM)]


@pytest.mark.parametrize(("family", "shown"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_a_real_transaction_has_its_hash_and_its_sender(family: Any, shown: Json) -> None:  # noqa: ANN401 -- a literal
    written = encode_transaction(shown, family)
    assert text(keccak(written)) == shown["hash"]
    decoded = decode_transaction(written, 0, family)
    assert decoded.encode() == written
    assert decoded.sender is not None
    assert text(decoded.sender) == shown["from"]
    assert not decoded.opaque


@given(st.data())
def test_the_chain_decides_what_a_type_means(data: st.DataObject) -> None:
    family = data.draw(FAMILIES)
    shown = data.draw(family_transactions(family, 5))
    written = encode_transaction(shown, family)
    assert written == canonical(shown)
    own, nameless = (decode_transaction(written, 3, one) for one in (family, None))
    assert own == nameless
    assert own.encode() == written
    assert (own.type, own.index, own.opaque) == (int(shown["type"], 16), 3, False)
    for other in ("ethereum", *KINDS):
        if other != family:
            foreign = decode_transaction(written, 3, other)
            assert foreign.opaque
            assert foreign.encode() == written
            assert foreign.sender is foreign.to is foreign.nonce is foreign.value is foreign.input is None


@given(st.integers(5, 0x7D).filter(lambda kind: kind not in OTHER_TYPES), st.binary(max_size=60))
def test_any_bytes_of_an_unknown_type_are_kept_as_they_are(kind: int, rest: bytes) -> None:
    written = bytes((kind,)) + rest
    decoded = decode_transaction(written, 0)
    assert decoded.opaque
    assert (decoded.encode(), decoded.hash, decoded.type) == (written, keccak(written), kind)
    assert decoded.effective_gas_price(7) is decoded.created is decoded.parity is None


def block_of(*transactions: Json, **more: Any) -> tuple[Json, list[Json]]:  # noqa: ANN401 -- JSON
    """A block with these transactions, which use gas and log nothing."""
    header: Json = {
        "parentHash": ZERO,
        "miner": ZERO_ADDRESS,
        "stateRoot": ZERO,
        "difficulty": "0x0",
        "extraData": "0x",
    }
    header |= {"number": "0x7", "gasLimit": "0x1", "timestamp": "0x1", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    header |= {"baseFeePerGas": "0x5"} | more
    outcome = {"gasUsed": "0x5208", "status": "0x1", "logs": []}
    return sealed(header, transactions, receipts_of(transactions, [outcome] * len(transactions)))


UNKNOWN: Json = {"type": "0x3f", "nonce": "0x1", "to": ZERO_ADDRESS, "raw": "0x3fc20102", "from": ZERO_ADDRESS}
UNKNOWN |= {"hash": text(keccak(bytes.fromhex("3fc20102"))), "calls": []}


def test_an_unknown_type_is_published_by_its_bytes_with_everything_else_null() -> None:
    block, receipts = block_of(UNKNOWN | {"to": None})
    receipts[0]["contractAddress"] = "0x" + "77" * 20  # nothing proves it
    chain = chain_of(5)
    verify(block, receipts, chain=chain)
    payload = payload_from_rpc(block, receipts, chain_id=5)
    verify_payload(payload, chain)
    assert decode(payload).encode() == payload
    tables = frames([payload])
    (row,) = tables["transactions"].to_pylist()
    null = {"nonce", "from_address", "to_address", "value", "gas", "gas_price", "input", "blob_versioned_hashes"}
    assert (row["hash"], row["transaction_type"]) == (UNKNOWN["hash"], 0x3F)
    assert null <= {name for name, value in row.items() if value is None}
    (receipt,) = tables["receipts"].to_pylist()
    assert (receipt["contract_address"], receipt["effective_gas_price"]) == (None, None)


@pytest.mark.parametrize("raw", ["0x3fc20103", "0x40c20102", None, "3fc20102", "0x"])
def test_other_bytes_than_those_of_its_hash_are_refused_by_transaction(raw: str | None) -> None:
    block, receipts = block_of(UNKNOWN)
    block["transactions"] = [UNKNOWN | {"raw": raw}]
    with pytest.raises(IntegrityError, match=rf"block 7 \({block['hash']}\)") as caught:
        verify(block, receipts, chain=chain_of(5))
    assert caught.value.check in ("form", "transaction hashes")


def test_a_post_execution_transaction_is_its_input_on_the_op_stack_and_unknown_elsewhere() -> None:
    shown = {"type": "0x7d", "input": "0xc20102", "from": ZERO_ADDRESS, "to": None, "nonce": "0x0", "value": "0x0"}
    written = encode_transaction(shown, "optimism")
    assert written.hex() == "7dc20102"
    decoded = decode_transaction(written, 0, "optimism")
    assert (decoded.input, decoded.sender, decoded.created, decoded.encode()) == (
        *(bytes.fromhex("c20102"), bytes(20), None, written),
    )
    assert decode_transaction(written, 0).opaque
    assert decode_transaction(written, 0, "scroll").opaque


def test_a_transaction_of_before_nitro_is_refused_by_name() -> None:
    block, receipts = block_of(UNKNOWN)
    block["transactions"] = [UNKNOWN | {"type": "0x78", "raw": None}]
    with pytest.raises(IntegrityError, match=r"transaction 0 \(0x.*type 120.*before Nitro"):
        verify(block, receipts, chain=CHAINS[42_161])


@given(st.data())
def test_a_malformed_field_is_named_with_its_transaction_and_block(data: st.DataObject) -> None:
    family = data.draw(FAMILIES)
    shown = data.draw(family_transactions(family, 5))
    block, receipts = block_of(shown)
    names = [name for name in OTHER_TYPES[int(shown["type"], 16)] if isinstance(shown[name], str)]
    name = data.draw(st.sampled_from(names))
    wrong = data.draw(st.sampled_from(["0xzz", "0x" + "11" * 7 + "z", "é"]))
    block["transactions"] = [shown | {name: wrong}]
    if wrong == "é" and name not in ("input", "retryData"):
        wrong = "0x-1"
        block["transactions"] = [shown | {name: wrong}]
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAIN_OF[family])
    said = str(caught.value)
    assert f"block 7 ({block['hash']})" in said
    assert f"transaction 0 ({shown['hash']}, type {int(shown['type'], 16)})" in said
    assert name in said
    assert "NoneType" not in said


def test_the_price_on_arbitrum_is_the_base_fee_unless_the_header_collects_tips() -> None:
    shown = ARBITRUM | {"hash": text(keccak(canonical(ARBITRUM)))}
    for mix, paid in (
        (ZERO, "5"),
        ("0x" + "00" * 23 + "09" + "00" * 8, "0"),
        ("0x" + "00" * 25 + "01" + "00" * 6, "0"),
    ):
        block, receipts = block_of(shown, mixHash=mix, difficulty="0x1", totalDifficulty="0x8")
        verify(block, receipts, chain=CHAINS[42_161])
        payload = payload_from_rpc(block, receipts, chain_id=42_161)
        assert frames([payload])["receipts"].column("effective_gas_price").to_pylist() == [paid]


def test_a_chain_of_a_user_names_its_family() -> None:
    chain = Chain(chain_id=7, name="ours", family="scroll")
    block, receipts = block_of(SCROLL | {"nonce": "0x0"})
    verify(block, receipts, chain=chain)
    block["transactions"][0]["queueIndex"] = "0x2"
    with pytest.raises(IntegrityError, match=r"transaction 0 .*type 126.*eth_getRawTransactionByHash"):
        verify(block, receipts, chain=chain)
