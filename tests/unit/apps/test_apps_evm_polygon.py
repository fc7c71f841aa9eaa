"""Polygon's state-sync transaction: what nodes add to a block before Madhugiri, and type 127 from there on.

No recorded block with a transaction of type 127 could be had: such blocks are built here by the rules of PIP-74 and of
its two implementations.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from coincurve import PrivateKey

from cardinal import apps
from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import decode, frames, payload_from_rpc, verify
from cardinal_ethereum.chains import CHAINS, Chain
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.from_rpc.receipts import logs_bloom
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcReceipt, read
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.transaction import state_sync_hash
from evm_blocks import (
    EMPTY_ROOT,
    NO_UNCLES,
    ZERO_ADDRESS,
    Json,
    created,
    receipts_of,
    sealed,
    signed,
    state_sync,
    text,
)

NO_BLOOM = "0x" + "00" * 256
ZERO = "0x" + "00" * 32
HEADER: Json = {
    **dict.fromkeys(("parentHash", "stateRoot", "mixHash"), ZERO),
    "miner": ZERO_ADDRESS,
    "difficulty": "0x1",
    "gasLimit": "0x989680",
    "timestamp": "0x0",
    "extraData": "0x",
    "nonce": "0x" + "00" * 8,
}


def log(index: int) -> Json:
    return {"address": "0x" + "11" * 20, "topics": [], "data": "0x2a", "logIndex": hex(index)}


def polygon() -> tuple[Json, list[Json]]:
    """A block with one deposit from below and nothing else, as a node of Polygon shows it: no root covers it."""
    header = {**HEADER, "number": "0x10", "gasUsed": "0x0", "sha3Uncles": NO_UNCLES, "logsBloom": NO_BLOOM}
    header |= dict.fromkeys(("transactionsRoot", "receiptsRoot"), EMPTY_ROOT)
    block_hash = keccak(encode_header(header))
    named = text(state_sync_hash(16, block_hash))
    call = {**dict.fromkeys(("nonce", "gas", "gasPrice", "value", "r", "s", "v"), "0x0"), "input": "0x"}
    receipt = {"transactionHash": named, "blockHash": text(block_hash), "logs": [log(0), log(1)]}
    receipt |= {"cumulativeGasUsed": "0x0", "gasUsed": "0x0", "status": "0x1", "type": "0x0"}
    receipt["logsBloom"] = text(logs_bloom([log(0)]))  # what the node would have computed
    block = header | {"hash": text(block_hash), "totalDifficulty": "0x11", "uncles": []}
    added = call | {"to": ZERO_ADDRESS, "from": ZERO_ADDRESS, "hash": named, "type": "0x0"}
    return block | {"transactions": [added]}, [receipt]


def test_what_a_node_of_polygon_adds_is_checked_apart_and_published_apart() -> None:
    block, receipts = polygon()
    verify(block, receipts, chain=CHAINS[137])
    payload = payload_from_rpc(block, receipts, chain_id=137)
    own = f"c/89/b/{payload.hash.hex()}"
    added = {path for path in payload.updates if path.startswith((f"{own}/b", f"{own}/t", f"{own}/r", f"{own}/l"))}
    assert added == {f"{own}/br/0", f"{own}/bl/0/0", f"{own}/bl/0/1"}
    assert payload.updates[f"{own}/br/0"].hex() == receipts[0]["logsBloom"][2:]
    assert decode(payload).encode() == payload
    rows = frames([payload], tables=["logs"])["logs"].to_pylist()
    named = "0x" + state_sync_hash(16, payload.hash).hex()
    assert [(row["log_index"], row["transaction_index"], row["transaction_hash"]) for row in rows] == [
        (0, 0, named),
        (1, 0, named),
    ]
    app = apps.get("evm", chain="polygon")
    assert all(any(re.match(prefix, path) for prefix in app.prefixes) for path in added)


def test_without_its_presets_the_same_block_contradicts_itself() -> None:
    block, receipts = polygon()
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[1])
    assert caught.value.check == "transaction hashes"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda _, receipts: receipts.clear(), "form"),
        (lambda _, receipts: receipts[0].update(blockHash=ZERO), "receipts"),
        (lambda _, receipts: receipts[0].update(logsBloom=NO_BLOOM), "bloom"),
        (lambda _, receipts: receipts[0]["logs"].pop(0), "log indexes"),
        (lambda block, _: block["transactions"][0].update(hash=ZERO), "transaction hashes"),
    ],
)
def test_a_lie_about_what_was_added_is_found(change: Any, check: str) -> None:  # noqa: ANN401 -- JSON
    block, receipts = polygon()
    change(block, receipts)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[137])
    assert caught.value.check == check


def test_a_check_that_a_chain_leaves_out_is_not_made_there() -> None:
    block, receipts = polygon()
    receipts[0]["logs"].pop(0)
    ours = Chain(chain_id=137, name="ours", state_sync=True, unchecked=frozenset({"log indexes"}))
    verify(block, receipts, chain=ours)


# --- type 127 --------------------------------------------------------------------------------------------------------

MADHUGIRI = 80_084_800
EVENTS = (
    (3_300_001, b"\xa6" * 20, bytes(range(64)), b"\x11" * 32),
    (3_300_002, b"\xb7" * 20, b"", b"\x22" * 32),
    (3_300_003, b"\xb7" * 20, b"\x7f", b"\x33" * 32),
)
RECEIVER = "0x" + "00" * 18 + "1001"


def committed(event: int, index: int) -> Json:
    """The log of the contract that receives an event: the event's number and its success."""
    topic = text(keccak(b"StateCommitted(uint256,bool)"))
    return {"address": RECEIVER, "topics": [topic, "0x" + f"{event:064x}"], "data": "0x" + f"{index:064x}"}


def synced(number: int = MADHUGIRI, **changes: Any) -> tuple[Json, list[Json]]:  # noqa: ANN401 -- JSON
    """A block with a signed transaction and a state sync after it, every root over both."""
    call: Json = {"type": "0x0", "nonce": "0x5", "gasPrice": "0x6fc23ac00", "gas": "0x5208", "to": "0x" + "77" * 20}
    transactions = [
        signed(call | {"value": "0x1", "input": "0x"}, PrivateKey(b"\x46" * 32), 137),
        state_sync(EVENTS) | changes,
    ]
    outcomes = [
        {"gasUsed": "0x5208", "status": "0x1", "logs": [log(0)]},
        {"gasUsed": "0x0", "status": "0x1", "logs": [committed(event[0], 1) for event in EVENTS]},
    ]
    header = HEADER | {"number": hex(number), "totalDifficulty": hex(10**9)}
    return sealed(header, transactions, receipts_of(transactions, outcomes))


@pytest.mark.parametrize("how", ["mapping", "structures"])
def test_without_its_bytes_the_block_is_refused_with_advice_how_to_get_them(how: str) -> None:
    block, receipts = synced()
    name = block["transactions"][1]["hash"]
    del block["transactions"][1]["raw"]
    given: Any = (block, receipts)
    if how == "structures":
        given = read(RpcBlock, block), [read(RpcReceipt, receipt) for receipt in receipts]
    with pytest.raises(ApplicationError, match=rf"{name}.*eth_getRawTransactionByHash.*`raw`") as refused:
        payload_from_rpc(*given, chain_id=137)
    assert refused.value.path == "transactions[1].type"
    with pytest.raises(IntegrityError) as caught:
        verify(*given, chain=CHAINS[137])
    assert caught.value.check == "form"


@pytest.mark.parametrize(
    ("raw", "check"),
    [
        (state_sync(EVENTS[:2])["raw"], "transaction hashes"),
        (state_sync(())["raw"], "transaction hashes"),
        ("0x", "form"),
        ("0x7e" + state_sync(EVENTS)["raw"][4:], "form"),
        ("0x7f", "transaction hashes"),
        ("0x7f80", "transaction hashes"),
        ("0x7fc1c0", "transaction hashes"),
        (state_sync(EVENTS)["raw"] + "00", "transaction hashes"),
        ("0x7fc7c601808080", "transaction hashes"),
        ("7f", "form"),
    ],
)
def test_bytes_that_are_not_the_transactions_are_found(raw: str, check: str) -> None:
    block, receipts = synced()
    block["transactions"][1]["raw"] = raw
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[137])
    assert caught.value.check == check


@pytest.mark.parametrize(
    ("chain", "number", "reason"),
    [
        (CHAINS[137], MADHUGIRI - 1, f"polygon has none before block {MADHUGIRI}"),
        (Chain(chain_id=137, name="ours", state_sync=True), MADHUGIRI, "ours has none"),
    ],
)
def test_a_state_sync_in_the_body_is_refused_before_its_fork(chain: Chain | None, number: int, reason: str) -> None:
    block, receipts = synced(number)
    with pytest.raises(IntegrityError, match=reason) as caught:
        verify(block, receipts, chain=chain)
    assert caught.value.check == "form"


def test_on_a_chain_without_state_syncs_the_type_is_unknown_and_only_its_bytes_are_kept() -> None:
    block, receipts = synced()
    verify(block, receipts, chain=CHAINS[1])
    payload = payload_from_rpc(block, receipts, chain_id=1)
    last = decode(payload).transactions[-1]
    assert (last.type, last.opaque, last.synced, last.nonce, last.sender) == (127, True, (), None, None)
    assert decode(payload).encode() == payload


def test_a_state_sync_stands_at_the_end_or_not_at_all() -> None:
    block, receipts = synced()
    block["transactions"].reverse()
    with pytest.raises(IntegrityError, match="type 127"):
        verify(block, receipts, chain=CHAINS[137])


def test_from_madhugiri_on_nothing_is_taken_off_a_block() -> None:
    block, receipts = polygon()
    late = Chain(chain_id=137, name="ours", state_sync=True, state_sync_in_body=16)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=late)
    assert caught.value.check == "transaction hashes"
    early = Chain(chain_id=137, name="ours", state_sync=True, state_sync_in_body=17)
    assert verify(block, receipts, chain=early).derived is not None


@pytest.mark.parametrize("nonce", ["0x0", "0x7"])
def test_a_state_sync_creates_nothing_whatever_its_node_shows(nonce: str) -> None:
    """Its bytes say neither to whom it is nor a nonce: nothing else holds a node to what it says of them."""
    block, receipts = synced()
    honest = payload_from_rpc(block, receipts, chain_id=137)
    block["transactions"][1] |= {"to": None, "nonce": nonce}
    verify(block, receipts, chain=CHAINS[137])
    assert payload_from_rpc(block, receipts, chain_id=137) == honest
    made = receipts[1] | {"contractAddress": created(ZERO_ADDRESS, nonce)}
    with pytest.raises(IntegrityError) as caught:
        verify(block, [receipts[0], made], chain=CHAINS[137])
    assert caught.value.check == "contracts"
