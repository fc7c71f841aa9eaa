"""What the reference's producer makes of a payload, and what ours makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cardinal.errors import CardinalError
from cardinal.protocols.streams import Batch, Message, Payload, SubBatch, SubBatchMsg, decode, split, split_sub_batch
from cardinal.protocols.streams.types import path_text

VECTORS = Path(__file__).parents[2] / "schemas/vectors/produce.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]
MADE = [case for case in CASES if "constructor_error" not in case]
SUB_BATCH = (1, 2)

raw = bytes.fromhex


def text(path: str) -> str:
    return path_text(raw(path))


def updates(call: dict[str, Any]) -> dict[str, bytes]:
    return {text(entry["path"]): raw(entry["value"]) for entry in call["updates"] or ()}


def payload(call: dict[str, Any]) -> Payload:
    announced = {raw(entry["id"]): SubBatch(text(entry["path"])) for entry in call["batches"] or ()}
    deletes = frozenset(map(text, call["deletes"] or ()))
    return Payload(
        int(call["number"]),
        raw(call["hash"]),
        raw(call["parent"]),
        int(call["weight"] or 0),
        updates(call),
        deletes,
        announced,
    )


def said(key: bytes, value: bytes) -> Message:
    """The message, deletes in order: the reference writes them as they come, ours sorted."""
    message = decode(key, value)
    return replace(message, deletes=tuple(sorted(message.deletes))) if isinstance(message, SubBatchMsg) else message


def theirs(call: dict[str, Any]) -> dict[str, dict[bytes, object]]:
    return {
        topic: {raw(one["key"]): said(raw(one["key"]), raw(one["value"])) for one in messages}
        for topic, messages in call["messages"].items()
    }


@pytest.mark.parametrize("case", MADE, ids=lambda case: case["name"])
def test_a_payload_becomes_the_references_messages(case: dict[str, Any]) -> None:
    ours = case.get("cardinal", {})
    for call in case["calls"]:
        if call["op"] != "add_block":
            continue
        if call.get("error"):
            with pytest.raises(CardinalError):
                split(payload(call), case["schema"] or {}, case["default_topic"])
            continue
        if ours.get("refused"):
            with pytest.raises(CardinalError):
                split(payload(call), case["schema"] or {}, case["default_topic"])
            return
        routed = split(payload(call), case["schema"] or {}, case["default_topic"])
        assert isinstance(decode(routed[-1].key, routed[-1].value), Batch)
        assert routed[-1].topic == case["default_topic"]
        made: dict[str, dict[bytes, object]] = {}
        for topic, key, value in routed:
            if key[0] not in SUB_BATCH:  # the reference sends sub batches by a call of their own
                made.setdefault(topic, {})[key] = decode(key, value)
        if "unmatched" in ours:
            batch = decode(routed[-1].key, routed[-1].value)
            assert isinstance(batch, Batch)
            assert set(ours["unmatched"]) <= batch.updates.keys()
        else:
            assert made == theirs(call)


@pytest.mark.parametrize("case", MADE, ids=lambda case: case["name"])
def test_a_sub_batch_becomes_the_references_messages(case: dict[str, Any]) -> None:
    announced: dict[str, tuple[str, str]] = {}
    for call in case["calls"]:
        if call["op"] == "add_block":
            announced |= {entry["id"]: (call["hash"], entry["path"]) for entry in call["batches"] or ()}
        elif not call.get("error"):
            block_hash, path = announced[call["id"]]
            content = SubBatch(text(path), updates(call), frozenset(map(text, call["deletes"] or ())))
            routed = split_sub_batch(
                raw(block_hash), raw(call["id"]), content, case["schema"] or {}, case["default_topic"]
            )
            made = [(topic, key, said(key, value)) for topic, key, value in routed]
            want = [
                (topic, key, message) for topic, messages in theirs(call).items() for key, message in messages.items()
            ]
            assert made == want


@pytest.mark.parametrize("case", [case for case in CASES if "constructor_error" in case], ids=lambda case: case["name"])
def test_a_schema_that_cannot_work_is_refused(case: dict[str, Any]) -> None:
    block = Payload(1, bytes(32), bytes(32), 1, {"a/b/c": b"1"})
    with pytest.raises(CardinalError):
        split(block, case["schema"] or {}, case["default_topic"])
