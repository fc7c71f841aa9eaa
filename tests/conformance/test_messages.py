"""Every message of the conformance vectors, both ways; where Cardinal differs the vector says so and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader

from cardinal.errors import DecodeError, EncodeError
from cardinal.protocols.streams import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Heartbeat,
    Message,
    Ping,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
    decode,
    encode,
)
from cardinal.protocols.streams.types import path_text
from cardinal.protocols.streams.wire import avro, ranges
from vectors import FOLDER, load

CASES = load("messages.json")

raw = bytes.fromhex
ZERO = "00" * 32


def text(path: str) -> str:
    return path_text(raw(path))


def batch(case: dict[str, Any], fields: dict[str, Any]) -> Batch:
    updates = {
        text(entry["path"]): Update(raw(entry["value"]), entry["count"], entry["delete"], raw(entry["subbatch"]))
        for entry in fields["updates"]
    }
    weight = int.from_bytes(raw(fields["weight"]), "big")
    return Batch(raw(case.get("hash", ZERO)), int(fields["number"]), weight, raw(fields["parent"]), updates)


def sub_batch_msg(case: dict[str, Any], fields: dict[str, Any]) -> SubBatchMsg:
    return SubBatchMsg(
        raw(case.get("hash", ZERO)),
        raw(case.get("batch_id", ZERO)),
        case.get("index", 0),
        tuple(map(text, fields["deletes"])),
        {text(entry["path"]): raw(entry["value"]) for entry in fields["updates"]},
    )


def ping(case: dict[str, Any], _fields: dict[str, Any]) -> Ping:
    offset = None if case.get("is_utc_location") else case["utc_offset_seconds"]
    return Ping(raw(case["producer_id"]), int(case["unix_seconds"]), case["nanoseconds"], offset)


BUILD: dict[str, Callable[[dict[str, Any], dict[str, Any]], Message]] = {
    "batch": batch,
    "decode_batch": batch,
    "subbatch_header": lambda c, _: SubBatchHeader(raw(c["hash"]), raw(c["batch_id"]), c["count"]),
    "subbatch_msg": sub_batch_msg,
    "decode_subbatch_msg": sub_batch_msg,
    "batch_msg": lambda c, _: BatchMsg(raw(c["hash"]), text(c["path"]), raw(c["value"])),
    "batch_delete_msg": lambda c, _: BatchDeleteMsg(raw(c["hash"]), text(c["path"])),
    "reorg": lambda c, f: Reorg(raw(c["hash"]), int(f.get("number", c["number"]))),
    "reorg_complete": lambda c, f: ReorgComplete(raw(c["hash"]), int(f.get("number", c["number"]))),
    "ping": ping,
    "heartbeat": lambda _c, _f: Heartbeat(),
}
KEYS = {"decode_batch": b"\0" + bytes(32), "decode_subbatch_msg": b"\2" + bytes(64) + b"\0"}


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] != "decode_int"], ids=lambda case: case["name"])
def test_a_message_reads_and_writes_as_in_the_vector(case: dict[str, Any]) -> None:
    ours = case.get("cardinal", {})
    key, value = raw(case["key"]) if "key" in case else KEYS[case["kind"]], raw(case["value"])
    if ours.get("refused") or ("error" in case and "fields" not in ours):
        with pytest.raises(DecodeError):
            decode(key, value)
        return
    message = BUILD[case["kind"]](case, ours.get("fields", case.get("fields", {})))
    assert decode(key, value) == message
    if ours.get("encode_refused"):
        with pytest.raises(EncodeError):
            encode(BUILD[case["kind"]](case, {}))
        return
    if case["kind"].startswith("decode_"):
        return
    written = encode(message)
    assert decode(*written) == message
    has_map = isinstance(message, SubBatchMsg) or (isinstance(message, Batch) and message.updates)
    if case["exact"] and not has_map:
        assert written == (key, value)


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "decode_int"], ids=lambda case: case["name"])
def test_an_integer_reads_as_in_the_vector(case: dict[str, Any]) -> None:
    if "error" in case or "cardinal" in case:
        with pytest.raises(DecodeError):
            avro.read_int(raw(case["value"]))
    else:
        assert avro.read_int(raw(case["value"])) == case["int"]


def test_every_deviation_is_one_of_the_documented_ones() -> None:
    reasons = {case["cardinal"]["reason"][:3] for case in CASES if "cardinal" in case}
    assert reasons == {"D5:", "D17"}


def test_values_are_read_by_the_published_schemas() -> None:
    def read(schema: str, value: bytes) -> Any:  # noqa: ANN401 - what fastavro reads
        return schemaless_reader(BytesIO(value), parse_schema(json.loads((FOLDER.parent / schema).read_text())), None)

    entry = avro.Entry(b"a/b", b"value", count=3, delete=True, sub_batch=b"\1" * 32)
    batch = read("batch.avsc", avro.write_batch(7, 300, b"\2" * 32, [entry]))
    update = {"value": b"value", "count": 3, "delete": True, "subbatch": b"\1" * 32}
    assert batch == {"num": 7, "weight": b"\x01\x2c", "parent": b"\2" * 32, "updates": {"a/b": update}}
    assert read("update.avsc", avro.write_content([b"x"], [(b"y", b"z")])) == {"delete": ["x"], "updates": {"y": b"z"}}
    assert json.loads((FOLDER.parent / "ranges.avsc").read_text()) == ranges.RANGES_SCHEMA
