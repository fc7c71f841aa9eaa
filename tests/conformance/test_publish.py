"""Publish protocol against its vectors: messages and items, bodies, and everything that comes out of the arbiter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.payload import SubBatch
from cardinal.protocols.streams.types import path_text
from cardinal_ingest.body import digest, frame, items_of, payload_of, unframe
from cardinal_ingest.protocols.publish import (
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    EndStream,
    Header,
    Kind,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    decode_request,
    decode_response,
    encode,
    read_item,
    read_set,
)
from model.publish_scenario import Scenario, by_recipient, told
from vectors import Case, load

# --- messages and items ---------------------------------------------------------------------------------------------


CASES = [case for case in load("publish.json", "cases") if case["type"] != "EvmBlock"]
READERS = {"PublishStreamRequest": decode_request, "PublishStreamResponse": decode_response}


def kind_of(item: bytes) -> dict[str, Any]:
    match read_item(item):
        case Header(number):
            return {"kind": "header", "number": number, "raw": item.hex()}
        case kind:
            return {"kind": kind.name.lower(), "raw": item.hex()}


def fields_of(message: Request | Response | None) -> dict[str, Any]:  # noqa: PLR0911 - one for each kind
    """A message in the vectors' format."""
    match message:
        case None:
            return {}
        case BlockItemSet(items):
            return {"block_items": [kind_of(item) for item in items]}
        case BlockEnd(number):
            return {"end_of_block": {"block_number": number}}
        case EndStream(code, earliest, latest):
            numbers = {"earliest_block_number": earliest, "latest_block_number": latest}
            return {"end_stream": {"end_code": code} | numbers}
        case EndOfStream(status, number, proximate):
            numbers = {"block_number": number, "proximate_block_number": proximate}
            return {"end_stream": {"status": status} | numbers}
        case Acknowledgement(number):
            return {"acknowledgement": {"block_number": number}}
        case SkipBlock(number):
            return {"skip_block": {"block_number": number}}
        case ResendBlock(number):
            return {"resend_block": {"block_number": number}}
        case BehindPublisher(number):
            return {"node_behind_publisher": {"block_number": number}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_bytes_are_read_and_written_as_in_the_case(case: Case) -> None:
    data, read = bytes.fromhex(case["hex"]), READERS[case["type"]]
    if "error" in case:
        with pytest.raises(RemoteProtocolError):
            read(data)
        return
    message = read(data)
    assert fields_of(message) == case["fields"]
    if message is not None:
        assert (encode(message) == data) is case["canonical"]
        assert read(encode(message)) == message


@pytest.mark.parametrize("case", [case for case in CASES if "verdict" in case], ids=lambda case: str(case["name"]))
def test_a_set_that_breaks_a_rule_is_refused(case: Case) -> None:
    message = decode_request(bytes.fromhex(case["hex"]))
    usable = read_set(message.block_items) is not None if isinstance(message, BlockItemSet) else message is not None
    assert usable is (case["verdict"] == "ok")


def test_no_malformed_item_is_of_another_kind() -> None:
    kinds = {item["kind"] for case in CASES for item in case.get("fields", {}).get("block_items", [])}
    assert not CASES or kinds == {"header"} | {kind.name.lower() for kind in Kind}


# --- bodies ---------------------------------------------------------------------------------------------------------


BODIES = [case for case in load("publish.json", "cases") if case["type"] == "EvmBlock"]


def text(path: str) -> str:
    return path_text(bytes.fromhex(path))


def values(updates: Mapping[str, str]) -> dict[str, bytes]:
    return {text(path): bytes.fromhex(value) for path, value in updates.items()}


def prefixes(deletes: Iterable[str]) -> frozenset[str]:
    return frozenset(map(text, deletes))


def payload(fields: Mapping[str, Any]) -> Payload:
    return Payload(
        fields["number"],
        bytes.fromhex(fields["hash"]),
        bytes.fromhex(fields["parent"]),
        fields["weight"],
        values(fields["updates"]),
        prefixes(fields["deletes"]),
        {
            bytes.fromhex(batch_id): SubBatch(text(part["path"]), values(part["updates"]), prefixes(part["deletes"]))
            for batch_id, part in fields["sub_batches"].items()
        },
    )


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case["name"])
def test_body(case: dict[str, Any]) -> None:
    block, chain_id = payload(case["fields"]), case["fields"]["chain_id"]
    items = items_of(block, chain_id=chain_id)
    assert [item.hex() for item in items] == case["items"]
    assert frame(items).hex() == case["hex"]
    assert digest(items[:-1]).hex() == case["digest"]
    assert payload_of(unframe(bytes.fromhex(case["hex"]))) == (block, chain_id)


# --- arbiter --------------------------------------------------------------------------------------------------------


SCENARIOS = load("publish-arbiter.json", "scenarios")


@pytest.mark.parametrize("case", SCENARIOS, ids=lambda case: str(case["name"]))
def test_every_step_has_the_output_of_the_scenario(case: Case) -> None:
    expected = defaultdict(list)
    for out in case["expect"]:
        expected[out["step"]].append((out["to"], out["send"]))
    for i, effects in enumerate(Scenario(case).play()):
        found = [out for effect in effects if (out := told(effect)) is not None]
        assert by_recipient(found) == by_recipient(expected[i]), f"step {i}: {case['steps'][i]}"
