"""Accounts and blocks with state as the reference's producer publishes them, on a development chain."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import Account, decode, verify_payload
from cardinal_ethereum.chains import chain_of
from vectors import load

HOODI = 560_048
ACCOUNTS = load("accounts.json", "accounts")
BLOCKS = load("state-blocks.json.gz", "blocks")


def payload_of(block: dict[str, Any]) -> Payload:
    updates = {path: bytes.fromhex(value) for path, value in block["updates"].items()}
    block_hash, parent = bytes.fromhex(block["hash"]), bytes.fromhex(block["parent"])
    return Payload(int(block["number"]), block_hash, parent, int(block["weight"]), updates, frozenset(block["deletes"]))


def test_a_leaf_is_published_slim_and_read_back_in_both_forms() -> None:
    assert sum(case["leaf"] != case["slim"] for case in ACCOUNTS) > len(ACCOUNTS) // 2
    for case in ACCOUNTS:
        leaf, slim = bytes.fromhex(case["leaf"]), bytes.fromhex(case["slim"])
        assert Account.decode(leaf) == Account.decode(slim)
        assert (Account.decode(leaf).slim(), Account.decode(slim).leaf()) == (slim, leaf), case["path"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block["number"]))
def test_blocks_with_state_pass_and_decode_without_loss(block: dict[str, Any]) -> None:
    payload = payload_of(block)
    verify_payload(payload, chain_of(HOODI))
    assert decode(payload).encode() == payload


def test_every_account_of_the_blocks_is_slim() -> None:
    published = {
        path: value
        for block in BLOCKS
        for path, value in payload_of(block).updates.items()
        if "/a/" in path and path.endswith("/d")
    }
    assert len(published) > 10
    for path, value in published.items():
        assert Account.decode(value).slim() == value, path
