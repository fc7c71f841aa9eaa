"""Consistent parts that contradict the header, and a block that is another one: each found by one check only."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ethereum_blocks import Built, build, grow, raw

from cardinal.apps.evm import verify
from cardinal.apps.evm.checks.integrity import CHECKS
from cardinal.apps.evm.rpc.structures import RpcBlock, RpcReceipt
from cardinal.errors import IntegrityError
from cardinal_connectors.ethereum.settings import FeedSettings
from cardinal_connectors.ethereum.verify.rules import Rules

msgspec = pytest.importorskip("msgspec")


def _swapped(mine: Built, other: Built) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block with another one's transactions: they are genuine, and the receipts, which fit as well, name them."""
    block, receipts = copy.deepcopy(mine.block), copy.deepcopy(mine.receipts)
    block["transactions"] = copy.deepcopy(other.block["transactions"])
    for receipt, transaction in zip(receipts, block["transactions"], strict=True):
        receipt["transactionHash"] = transaction["hash"]
    return block, receipts


def _exchanged(mine: Built) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The block's own transactions in another order; the receipts stay."""
    block, receipts = copy.deepcopy(mine.block), copy.deepcopy(mine.receipts)
    block["transactions"].reverse()
    for receipt, transaction in zip(receipts, block["transactions"], strict=True):
        receipt["transactionHash"] = transaction["hash"]
    return block, receipts


def test_transactions_that_agree_with_all_but_the_header_are_found_by_their_root_alone() -> None:
    parent = build(None)
    mine, other = build(parent, "a"), build(parent, "b")
    verify(mine.block, mine.receipts)
    for block, receipts in (_swapped(mine, other), _exchanged(mine)):
        with pytest.raises(IntegrityError) as caught:
            verify(block, receipts)
        assert caught.value.check == "transactions root"
        verify(block, receipts, checks=[name for name in CHECKS if name != "transactions root"])


def test_a_genuine_block_that_is_not_the_one_asked_for_does_not_pass() -> None:
    mine, other = (grow(build(None), 1, branch)[0] for branch in "ab")
    rules = Rules.of(1337, FeedSettings())
    block = msgspec.convert(mine.block, RpcBlock)
    receipts = msgspec.convert(mine.receipts, list[RpcReceipt])
    assert rules.checked(block, receipts, [], mine.hash).hash == mine.hash
    with pytest.raises(IntegrityError) as caught:
        rules.checked(block, receipts, [], other.hash)
    assert (caught.value.check, caught.value.hash) == ("hash", other.hash)
    assert raw(mine.name).hex() in str(caught.value)
