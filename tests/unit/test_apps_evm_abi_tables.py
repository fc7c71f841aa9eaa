"""Logs and inputs by name as tables: a row for each, whether it could be decoded or not."""

from __future__ import annotations

import json
from dataclasses import replace

import eth_abi.abi as reference
import pytest

from cardinal.apps import evm
from cardinal.apps.evm.abi.decoder import Abi
from cardinal.apps.evm.abi.signatures import from_text
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.model.block import Block, Log, Transaction
from cardinal.apps.evm.tables.decoded import SCHEMAS, decoded_frames
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload

HASH = bytes(range(32))
EVENT = "event Said(string indexed about, uint256 much, (bool sure, bytes proof)[] parts)"
CALL = "say(int8 little, address who)"
WHO = "0x" + "ab" * 20


def block() -> Payload:
    parts = [(True, b"\1\2"), (False, b"")]
    data = reference.encode(["uint256", "(bool,bytes)[]"], [2**255, parts])
    logs = (
        Log(0, 0, b"\7" * 20, (from_text(EVENT).topic, keccak(b"weather")), data),
        Log(1, 1, b"\7" * 20, (HASH,), b"\xff"),
    )
    called = from_text(CALL).selector + reference.encode(["int8", "address"], [-5, WHO])
    inputs = (called, b"\1\2")
    sent = [
        Transaction(index, b"", b"", 0, None, 0, 0, None, None, 0, b"\7" * 20, 0, data, 27, 1, 1)
        for index, data in enumerate(inputs)
    ]
    whole = tuple(replace(each, raw=each.encode(), hash=keccak(each.encode())) for each in sent)
    return Block(1, 5, HASH, bytes(32), 5, transactions=whole, logs=logs).encode()


def test_what_is_known_has_its_name_and_what_is_not_is_kept() -> None:
    tables = decoded_frames([block()], Abi.from_signatures([EVENT, CALL]))
    assert {name: table.schema for name, table in tables.items()} == SCHEMAS
    said, odd = tables["decoded_logs"].to_pylist()
    assert (said["name"], said["signature"]) == ("Said", "Said(string,uint256,(bool,bytes)[])")
    assert json.loads(said["arguments"]) == [
        {"name": "about", "type": "string", "value": {"hash": "0x" + keccak(b"weather").hex()}},
        {"name": "much", "type": "uint256", "value": str(2**255)},
        {"name": "parts", "type": "(bool,bytes)[]", "value": [[True, "0x0102"], [False, "0x"]]},
    ]
    assert said["reason"] is None
    assert (odd["name"], odd["topics"], odd["data"]) == (None, ["0x" + HASH.hex()], "0xff")
    assert "no event" in odd["reason"]
    call, other = tables["decoded_inputs"].to_pylist()
    assert [each["value"] for each in json.loads(call["arguments"])] == ["-5", WHO]
    assert (other["name"], other["input"], other["block_timestamp"]) == (None, "0x0102", None)


def test_many_blocks_are_made_in_pieces_and_give_the_same_rows() -> None:
    abi, payload = Abi([]), block()
    one = decoded_frames([payload], abi)
    many = decoded_frames((payload for _ in range(9_000)), abi)
    for name, table in many.items():
        assert table.num_rows == 9_000 * one[name].num_rows
        assert table.column("block_number").num_chunks > 1
        assert table.slice(table.num_rows - one[name].num_rows).equals(one[name])


def test_without_blocks_the_tables_have_their_columns() -> None:
    tables = decoded_frames([], Abi([]))
    assert {name: (table.num_rows, table.schema) for name, table in tables.items()} == {
        name: (0, columns) for name, columns in SCHEMAS.items()
    }


def test_the_room_offers_all_that_it_names() -> None:
    for name in evm.__all__:
        assert getattr(evm, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = evm.nothing  # type: ignore[attr-defined]  # what the test is about


def test_tables_that_were_not_asked_for_are_not_made() -> None:
    abi = Abi.from_signatures([EVENT, CALL])
    assert decoded_frames([block()], abi, tables=["decoded_logs"]) == {
        "decoded_logs": decoded_frames([block()], abi)["decoded_logs"]
    }
    with pytest.raises(ConfigurationError, match=r"no table 'logs'; choose one of decoded_logs, decoded_inputs"):
        decoded_frames([block()], abi, tables=["logs"])
