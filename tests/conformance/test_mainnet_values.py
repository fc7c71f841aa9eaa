"""Recorded blocks: what we make of them equals what the reference made of mainnet's, byte for byte.

Of the own recordings it equals what the tests recompute from the node's JSON (``evm_values``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cardinal.apps import get
from cardinal.errors import IntegrityError
from cardinal.protocols.streams import decode, split
from cardinal_ethereum import verify
from evm_values import messages_of
from recorded_blocks import RecordedBlock, cases, elsewhere, mainnet, messages, own, real

EVERY = pytest.mark.parametrize("recorded", [*cases(), *real([*mainnet(), *elsewhere()])])
SAMPLES = pytest.mark.parametrize(
    "recorded", [*cases(own("geth-byzantium-14"), own("geth-osaka-44")), *real(mainnet()[:1])]
)


@EVERY
def test_every_value_equals_the_references(recorded: RecordedBlock) -> None:
    payload = recorded.payload()
    assert payload.updates == recorded.values == recorded.recomputed()
    assert (payload.number, payload.weight) == (recorded.number, recorded.weight)
    hashes = (payload.hash.hex(), payload.parent.hex())
    assert hashes == (recorded.block["hash"][2:], recorded.block["parentHash"][2:])


@EVERY
def test_every_message_equals_the_references(recorded: RecordedBlock) -> None:
    chain_id = recorded.chain.chain_id
    app = get("evm", chain_id=chain_id)
    payload = recorded.payload(state={} if recorded in mainnet() else None)
    ours = [tuple(message) for message in split(payload, app.topics, app.default_topic)]
    if recorded not in mainnet():
        assert readable(ours) == messages_of(recorded.block, recorded.values, recorded.weight, chain_id)
        return
    want = messages(recorded.number)
    assert app.default_topic == want["default_topic"]
    assert dict(app.topics) == want["schema"]
    theirs = [(m["topic"], bytes.fromhex(m["key"]), bytes.fromhex(m["value"])) for m in want["messages"]]
    assert readable(ours) == readable(theirs)


def readable(messages: Iterable[tuple[str, bytes, bytes]]) -> dict[tuple[str, bytes], object]:
    return {(topic, key): decode(key, value) for topic, key, value in messages}


@EVERY
def test_every_block_passes_every_check(recorded: RecordedBlock) -> None:
    verify(recorded.block, recorded.receipts, uncles=recorded.uncles, chain=recorded.chain)


def first_logs(case: dict[str, Any]) -> list[dict[str, Any]]:
    return next(receipt["logs"] for receipt in case["receipts"] if receipt["logs"])


def swap(case: dict[str, Any]) -> None:
    transactions = case["block"]["transactions"]
    transactions[0], transactions[1] = transactions[1], transactions[0]


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "hash": lambda case: case["block"].update(gasLimit="0x1"),
    "transaction hashes": lambda case: case["block"]["transactions"][0].update(value="0x7"),
    "transactions root": swap,
    "receipts": lambda case: case["receipts"].pop(),
    "receipts root": lambda case: case["receipts"][0].update(status="0x0"),
    "log indexes": lambda case: first_logs(case)[0].update(logIndex="0x9"),
    "gas": lambda case: case["receipts"][0].update(gasUsed="0x1"),
    "form": lambda case: case["block"].pop("gasLimit"),
}


@SAMPLES
@pytest.mark.parametrize("check", LIES)
def test_a_lie_fails_the_check_that_is_made_for_it(check: str, recorded: RecordedBlock) -> None:
    case = copy.deepcopy({"block": recorded.block, "receipts": recorded.receipts})
    LIES[check](case)
    with pytest.raises(IntegrityError) as caught:
        verify(case["block"], case["receipts"])
    assert caught.value.check == check


@SAMPLES
def test_a_receipt_without_its_logs_is_found(recorded: RecordedBlock) -> None:
    case = copy.deepcopy({"block": recorded.block, "receipts": recorded.receipts})
    first_logs(case).clear()
    with pytest.raises(IntegrityError):
        verify(case["block"], case["receipts"])
