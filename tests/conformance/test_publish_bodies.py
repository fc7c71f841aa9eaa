"""Payloads as items against `publish.json`: items, body and digest both ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from cardinal.apps.body import digest, frame, items_of, payload_of, unframe
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.payload import SubBatch
from cardinal.protocols.streams.types import path_text
from publishing import load

CASES = [case for case in load("publish.json", "cases") if case["type"] == "EvmBlock"]


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_body(case: dict[str, Any]) -> None:
    block, chain_id = payload(case["fields"]), case["fields"]["chain_id"]
    items = items_of(block, chain_id=chain_id)
    assert [item.hex() for item in items] == case["items"]
    assert frame(items).hex() == case["hex"]
    assert digest(items[:-1]).hex() == case["digest"]
    assert payload_of(unframe(bytes.fromhex(case["hex"]))) == (block, chain_id)
