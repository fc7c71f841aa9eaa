"""The node feed against nodes that lie, or do not have yet what they announce: nothing wrong is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ethereum_blocks import Built, grow, keccak, replay, text
from feeding import (
    SCHEMES,
    asynchronous,
    everything,
    given,
    hashes,
    opened,
    take,
)

from cardinal.errors import (
    IntegrityError,
    NodeAnswerError,
)

Lie = Callable[[dict[str, Any], list[dict[str, Any]]], None]


def dropped_log(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[0]["logs"].clear()


def changed_log(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[1]["logs"][0]["data"] = "0x01"


def log_out_of_order(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[1]["logs"][0]["logIndex"] = "0x5"


def failed_status(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[0]["status"] = "0x0"


def failed_beside_a_root(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[0] |= {"root": "0x01", "status": "0x0"}


def receipts_swapped(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts.reverse()


def receipts_empty(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts.clear()


def transactions_swapped(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["transactions"].reverse()


def transaction_changed(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["transactions"][0]["value"] = "0xff"


def pruned_to_nothing(block: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    block["transactions"].clear()
    receipts.clear()


def header_changed(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["stateRoot"] = text(keccak(b"another state"))


def bloom_emptied(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["logsBloom"] = "0x" + "00" * 256


def difficulty_claimed(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["totalDifficulty"] = "0x1234567"


LIES = [
    dropped_log,
    changed_log,
    log_out_of_order,
    failed_status,
    failed_beside_a_root,
    receipts_swapped,
    receipts_empty,
    transactions_swapped,
    transaction_changed,
    pruned_to_nothing,
    header_changed,
    bloom_emptied,
    difficulty_claimed,
]


def lied(block: Built, lie: Lie) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    shown, receipts = copy.deepcopy((block.block, block.receipts))
    lie(shown, receipts)
    return shown, receipts


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("at", [2, 8], ids=["in the backfill", "at the head"])
@asynchronous
async def test_lie_told_once_is_asked_again_and_never_given(lie: Lie, at: int) -> None:
    chain = grow(None, 10)
    served = replay(chain)
    served.set_head(chain[5].name)
    block, receipts = lied(chain[at], lie)
    served.swap(chain[at].name, "block", block, 1)
    served.swap(chain[at].name, "receipts", receipts, 1)
    async with opened(served) as (_, feed):
        payloads = feed.follow(until=9)
        taken = await take(payloads, 6)
        served.set_head(chain[9].name)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)
    assert taken[at].weight == chain[at].total


@pytest.mark.parametrize("lie", LIES)
@asynchronous
async def test_lie_that_is_kept_up_is_reported_and_never_given(lie: Lie) -> None:
    chain = grow(None, 6)
    served = replay(chain)
    block, receipts = lied(chain[3], lie)
    served.swap(chain[3].name, "block", block, 100)
    served.swap(chain[3].name, "receipts", receipts, 100)
    async with opened(served) as (_, feed):
        payloads = feed.follow(until=5)
        assert given(await take(payloads, 3)) == hashes(chain[:3])
        with pytest.raises(IntegrityError) as refused:
            await take(payloads, 1)
    assert (refused.value.number, refused.value.hash) == (3, chain[3].hash)


@asynchronous
async def test_node_that_answers_with_another_block_gives_nothing_wrong() -> None:
    chain, other = grow(None, 6), grow(None, 6, "z")
    served = replay(chain)
    served.set_head(chain[4].name)
    served.swap(chain[5].name, "block", other[5].block, 2)
    served.swap(chain[5].name, "receipts", other[5].receipts, 2)
    async with opened(served) as (_, feed):
        payloads = feed.follow(until=5)
        await take(payloads, 5)
        served.set_head(chain[5].name)
        assert given(await everything(payloads)) == hashes(chain[5:])


@pytest.mark.parametrize("what", ["block", "receipts"])
@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_head_that_is_announced_before_it_can_be_read_is_given_once_it_can(what: str, scheme: str) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    served.set_head(chain[4].name)
    served.hold(chain[6].name, what, 4)  # type: ignore[arg-type] # parametrised
    async with opened(served, scheme) as (_, feed):
        payloads = feed.follow(until=7)
        await take(payloads, 5)
        served.set_head(chain[7].name)
        assert given(await everything(payloads)) == hashes(chain[5:])


@asynchronous
async def test_receipts_that_are_null_are_not_taken_for_no_receipts() -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.hold(chain[2].name, "receipts", 10_000)
    async with opened(served) as (_, feed):
        payloads = feed.follow(until=3)
        await take(payloads, 2)
        with pytest.raises(NodeAnswerError, match="contradicted itself"):
            await take(payloads, 1)


@asynchronous
async def test_header_that_was_never_a_block_is_ignored() -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.set_head(chain[2].name)
    async with opened(served, "ws") as (_, feed):
        payloads = feed.follow()
        await take(payloads, 3)
        served.announce({"number": "0xffff", "hash": "0x12", "parentHash": None})
        served.set_head(chain[3].name)
        assert given(await take(payloads, 1)) == hashes(chain[3:])
