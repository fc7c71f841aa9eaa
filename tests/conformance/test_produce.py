"""Payloads in the reference's producer and in ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cardinal.errors import CardinalError
from cardinal.protocols.streams import (
    Batch,
    Completed,
    Message,
    Payload,
    Reassembler,
    Record,
    Routed,
    SubBatch,
    SubBatchMsg,
    decode,
    split,
    split_sub_batch,
)
from cardinal.protocols.streams.types import path_text
from vectors import load

CASES = load("produce.json")
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


# --- and back: what was produced is consumed as it was given -------------------------------------------------


def sent(case: dict[str, Any]) -> tuple[dict[bytes, Payload], dict[bytes, set[bytes]]]:
    """The payloads as a consumer should see them, and for each the sub batches that are never sent."""
    blocks: dict[bytes, Payload] = {}
    waiting: dict[bytes, set[bytes]] = {}
    announced: dict[bytes, bytes] = {}
    for call in case["calls"]:
        if call.get("error"):
            continue
        if call["op"] == "add_block":
            block = payload(call)
            blocks[block.hash] = replace(block, sub_batches={})
            waiting[block.hash] = set(block.sub_batches)
            announced |= dict.fromkeys(block.sub_batches, block.hash)
        elif raw(call["id"]) in announced:
            block = blocks[announced.pop(raw(call["id"]))]
            waiting[block.hash].remove(raw(call["id"]))
            merged = {**updates(call), **block.updates}
            removed = block.deletes | set(map(text, call["deletes"] or ()))
            blocks[block.hash] = replace(block, updates=merged, deletes=removed)
    return blocks, waiting


def consumed(case: dict[str, Any], messages: list[Routed]) -> tuple[Reassembler, dict[bytes, object]]:
    reassembler = Reassembler(prefixes=list(case["schema"] or ()))
    log = [Record(topic, 0, offset, key, value) for offset, (topic, key, value) in enumerate(messages)]
    events = reassembler.receive(log)
    return reassembler, {event.payload.hash: event.payload for event in events if isinstance(event, Completed)}


def check(case: dict[str, Any], messages: list[Routed]) -> None:
    blocks, waiting = sent(case)
    reassembler, found = consumed(case, messages)
    for block_hash, block in blocks.items():
        if waiting[block_hash]:
            assert reassembler.explain(block_hash).missing_headers == tuple(sorted(waiting[block_hash]))
        else:
            got = found[block_hash]
            assert isinstance(got, Payload)
            assert replace(got, updates=dict(got.updates)) == block


def theirs_in_order(case: dict[str, Any]) -> list[Routed]:
    return [
        Routed(topic, raw(one["key"]), raw(one["value"]))
        for call in case["calls"]
        for topic, messages in (call.get("messages") or {}).items()
        for one in messages
    ]


def ours_in_order(case: dict[str, Any]) -> list[Routed]:
    schema, default = case["schema"] or {}, case["default_topic"]
    announced: dict[str, tuple[str, str]] = {}
    out: list[Routed] = []
    for call in case["calls"]:
        if call.get("error"):
            continue
        if call["op"] == "add_block":
            block = payload(call)
            announced |= {entry["id"]: (call["hash"], entry["path"]) for entry in call["batches"] or ()}
            # The content of sub batches comes by calls of its own.
            out += [message for message in split(block, schema, default) if message.key[0] not in SUB_BATCH]
        elif call["id"] in announced:
            owner, path = announced.pop(call["id"])
            content = SubBatch(text(path), updates(call), frozenset(map(text, call["deletes"] or ())))
            out += split_sub_batch(raw(owner), raw(call["id"]), content, schema, default)
    return out


@pytest.mark.parametrize("case", [case for case in MADE if "cardinal" not in case], ids=lambda case: case["name"])
def test_what_the_reference_produces_gives_the_payload_back(case: dict[str, Any]) -> None:
    check(case, theirs_in_order(case))


@pytest.mark.parametrize(
    "case", [case for case in MADE if not case.get("cardinal", {}).get("refused")], ids=lambda case: case["name"]
)
def test_what_cardinal_produces_gives_the_payload_back(case: dict[str, Any]) -> None:
    check(case, ours_in_order(case))
