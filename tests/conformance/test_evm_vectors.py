"""The evm cases of the producer's vectors: other chains, uncles, withdrawals, marks and state, which mainnet lacks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cardinal.apps import get
from cardinal.protocols.streams import decode as decode_message
from cardinal.protocols.streams import split
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum import decode, payload_from_rpc
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import Block, Header, Transaction
from cardinal_ethereum.model.state import StateDelta
from vectors import load

STATE = re.compile("c/[0-9a-f]+/[ac]/")


def cases() -> list[Any]:
    return [
        pytest.param(case, call, id=f"{case['name']}-{call['number']}")
        for case in load("produce.json")
        if re.match(r"evm-\d", case["name"])
        for call in case["calls"]
        if call["op"] == "add_block"
    ]


CASES = cases()


def payload_of(call: dict[str, Any]) -> Payload:
    updates = {bytes.fromhex(entry["path"]).decode(): bytes.fromhex(entry["value"]) for entry in call["updates"]}
    deletes = frozenset(bytes.fromhex(path).decode() for path in call["deletes"])
    block_hash, parent = bytes.fromhex(call["hash"]), bytes.fromhex(call["parent"])
    return Payload(int(call["number"]), block_hash, parent, int(call["weight"]), updates, deletes)


def text(value: bytes | int | None) -> str | None:
    if value is None:
        return None
    return hex(value) if isinstance(value, int) else "0x" + value.hex()


def camel(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)


def shown_header(header: Header) -> dict[str, Any]:
    names = [name for name in Header.__slots__ if name != "more"]
    return {camel(name): text(getattr(header, name)) for name in names} | {"hash": text(keccak(header.encode()))}


def shown_transaction(transaction: Transaction) -> dict[str, Any]:
    names = (
        *("hash", "type", "chain_id", "nonce", "gas_price", "max_priority_fee_per_gas", "max_fee_per_gas", "gas"),
        *("to", "value", "input", "v", "r", "s"),
    )
    shown: dict[str, Any] = {camel(name): text(getattr(transaction, name)) for name in names}
    shown["accessList"] = [
        {"address": text(entry.address), "storageKeys": [text(key) for key in entry.storage_keys]}
        for entry in transaction.access_list
    ]
    return shown


def shown_receipts(block: Block) -> list[dict[str, Any]]:
    receipts: list[dict[str, Any]] = [
        {
            "contractAddress": text(receipt.contract_address),
            "cumulativeGasUsed": text(receipt.cumulative_gas_used),
            "gasUsed": text(receipt.gas_used),
            "logsBloom": text(receipt.logs_bloom),
            "status": text(receipt.status),
            "logs": [],
        }
        for receipt in block.receipts
    ]
    for log in block.logs:
        shown = {"address": text(log.address), "topics": [text(topic) for topic in log.topics], "data": text(log.data)}
        receipts[log.transaction_index]["logs"].append(shown)
    return receipts


@pytest.mark.parametrize(("case", "call"), CASES)
def test_the_topics_are_the_references(case: dict[str, Any], call: dict[str, Any]) -> None:
    chain_id = decode(payload_of(call)).chain_id
    app = get("evm", chain_id=chain_id)
    assert (app.default_topic, app.topics) == (case["default_topic"], case["schema"])


@pytest.mark.parametrize(("case", "call"), CASES)
def test_every_value_decodes_and_is_written_again(case: dict[str, Any], call: dict[str, Any]) -> None:
    del case
    payload = payload_of(call)
    block = decode(payload)
    assert block.encode() == payload
    assert block.header is not None
    assert keccak(block.header.encode()) == payload.hash
    assert len(block.receipts) == len(block.transactions)
    assert all(STATE.match(path) or "/n/" in path for path in block.rest)


@pytest.mark.parametrize(("case", "call"), CASES)
def test_the_same_block_from_json_gives_the_same_values(case: dict[str, Any], call: dict[str, Any]) -> None:
    del case
    payload = payload_of(call)
    block = decode(payload)
    assert block.header is not None
    assert block.chain_id is not None
    marks = get("evm", chain_id=block.chain_id).finality(payload)
    shown = shown_header(block.header) | {
        "transactions": [shown_transaction(transaction) for transaction in block.transactions],
        "uncles": [text(keccak(uncle.encode())) for uncle in block.uncles],
        "withdrawals": None
        if block.withdrawals is None
        else [
            {camel(name): text(getattr(entry, name)) for name in ("index", "validator_index", "address", "amount")}
            for entry in block.withdrawals
        ],
    }
    made = payload_from_rpc(
        shown,
        shown_receipts(block),
        chain_id=block.chain_id,
        finality=marks,
        uncles=[shown_header(uncle) for uncle in block.uncles],
        total_difficulty=block.total_difficulty,
    )
    assert dict(made.updates) == {path: value for path, value in payload.updates.items() if not STATE.match(path)}
    assert (made.number, made.parent, made.weight) == (payload.number, payload.parent, payload.weight)
    assert (marks is not None) == (not block.header.difficulty)


def state_of(case: dict[str, Any], call: dict[str, Any]) -> StateDelta:
    """The state that the reference published with this block: its sub batch is the call that follows it."""
    payload = payload_of(call)
    after = case["calls"][case["calls"].index(call) + 1]
    assert (after["op"], after["id"]) == ("send_batch", call["batches"][0]["id"])
    storage = {bytes.fromhex(one["path"]).decode(): bytes.fromhex(one["value"]) for one in after["updates"]}
    accounts = {path: value for path, value in payload.updates.items() if STATE.match(path)}
    return StateDelta(accounts, payload.deletes, storage)


@pytest.mark.parametrize(("case", "call"), CASES)
def test_a_state_delta_travels_as_the_references(case: dict[str, Any], call: dict[str, Any]) -> None:
    payload, delta = payload_of(call), state_of(case, call)
    block = decode(payload)
    assert block.header is not None
    assert block.chain_id is not None
    bare = shown_header(block.header) | {"transactions": [], "uncles": []}
    made = payload_from_rpc(bare, [], chain_id=block.chain_id, state=delta, total_difficulty=block.total_difficulty)
    assert {path: value for path, value in made.updates.items() if STATE.match(path)} == dict(delta.updates)
    assert made.deletes == payload.deletes
    (announced,) = call["batches"]
    (sub_batch,) = made.sub_batches.items()
    assert (sub_batch[0].hex(), sub_batch[1].path.encode().hex()) == (announced["id"], announced["path"])  # type: ignore[union-attr] # announced with its content
    app = get("evm", chain_id=block.chain_id)
    ours = split(made, app.topics, app.default_topic)
    parts = ("-state", "-code")
    written = {key: decode_message(key, value) for topic, key, value in ours if topic.endswith(parts)}
    theirs = [
        (bytes.fromhex(message["key"]), bytes.fromhex(message["value"]))
        for each in (call, case["calls"][case["calls"].index(call) + 1])
        for topic, messages in each["messages"].items()
        for message in messages
        if topic.endswith(parts)
    ]
    assert written == {key: decode_message(key, value) for key, value in theirs}


def test_the_vectors_have_what_mainnet_lacks() -> None:
    blocks = [decode(payload_of(parameter.values[1])) for parameter in CASES]
    assert any(block.uncles for block in blocks)
    assert any(block.withdrawals for block in blocks)
    assert {transaction.type for block in blocks for transaction in block.transactions} >= {0, 1, 2}
    app = get("evm", chain_id=0x3D)
    last = [payload_of(p.values[1]) for p in CASES if p.id == "evm-5-chain-3d-post-true-5100"]
    assert app.finality(last[0]) == Finality(0x13CC, 0x13AC)
