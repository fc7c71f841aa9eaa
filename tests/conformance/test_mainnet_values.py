"""Real mainnet blocks: what we make of them equals what the reference made, byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cardinal.apps import get
from cardinal.apps.evm import payload_from_rpc, verify
from cardinal.errors import IntegrityError
from cardinal.protocols.streams import decode, split

FIXTURES = Path(__file__).parents[3] / "shared/fixtures/mainnet"
BLOCKS = range(14_000_000, 14_000_011)
pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the mainnet fixtures are not beside the project")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    return loaded


def rpc(case: dict[str, Any]) -> dict[str, Any]:
    """The block with its total difficulty, which nodes no longer serve; the reference's value holds it."""
    total = case["values"][f"c/1/b/{case['hash']}/d"]
    return {**case["block"], "totalDifficulty": "0x" + total}


@pytest.mark.parametrize("number", BLOCKS)
def test_every_value_equals_the_references(number: int) -> None:
    case = load(str(number))
    payload = payload_from_rpc(rpc(case), case["receipts"], chain_id=1)
    assert {path: value.hex() for path, value in payload.updates.items()} == case["values"]
    assert (payload.hash.hex(), payload.parent.hex(), payload.weight) == (
        case["hash"],
        case["parent"],
        int(case["weight"]),
    )


@pytest.mark.parametrize("number", BLOCKS)
def test_every_message_equals_the_references(number: int) -> None:
    case, want = load(str(number)), load(f"{number}.messages")
    app = get("evm", chain_id=1)
    payload = payload_from_rpc(rpc(case), case["receipts"], chain_id=1, state={})
    ours = split(payload, app.topics, app.default_topic)
    assert app.default_topic == want["default_topic"]
    assert dict(app.topics) == want["schema"]

    def readable(messages: list[tuple[str, bytes, bytes]]) -> dict[tuple[str, bytes], object]:
        return {(topic, key): decode(key, value) for topic, key, value in messages}

    theirs = [(m["topic"], bytes.fromhex(m["key"]), bytes.fromhex(m["value"])) for m in want["messages"]]
    assert readable([tuple(message) for message in ours]) == readable(theirs)  # type: ignore[misc]


@pytest.mark.parametrize("number", BLOCKS)
def test_every_block_passes_every_check(number: int) -> None:
    case = load(str(number))
    verify(case["block"], case["receipts"])


def first_logs(case: dict[str, Any]) -> list[dict[str, Any]]:
    return next(receipt["logs"] for receipt in case["receipts"] if receipt["logs"])


def swap(case: dict[str, Any]) -> None:
    transactions = case["block"]["transactions"]
    transactions[0], transactions[1] = transactions[1], transactions[0]


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "hash": lambda case: case["block"].update(gasLimit="0x1"),
    "transaction hashes": lambda case: case["block"]["transactions"][0].update(value="0x1"),
    "transactions root": swap,
    "receipts": lambda case: case["receipts"].pop(),
    "receipts root": lambda case: case["receipts"][0].update(status="0x0"),
    "log indexes": lambda case: first_logs(case)[0].update(logIndex="0x9"),
    "gas": lambda case: case["receipts"][0].update(gasUsed="0x1"),
    "form": lambda case: case["block"].pop("gasLimit"),
}


@pytest.mark.parametrize("check", LIES)
def test_a_lie_fails_the_check_that_is_made_for_it(check: str) -> None:
    case = load("14000000")
    LIES[check](case)
    with pytest.raises(IntegrityError) as caught:
        verify(case["block"], case["receipts"])
    assert caught.value.check == check


def test_a_receipt_without_its_logs_is_found() -> None:
    case = load("14000000")
    first_logs(case).clear()
    with pytest.raises(IntegrityError):
        verify(case["block"], case["receipts"])
