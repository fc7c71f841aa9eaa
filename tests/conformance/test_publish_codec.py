"""Messages and items against `publish.json`: bytes both ways, kinds of items, verdicts on sets."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.publish import (
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
from publishing import load
from vectors import Case

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
def test_bytes_are_read_and_written_as_the_case_says(case: Case) -> None:
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
