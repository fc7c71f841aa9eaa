"""Faults of a node: errors and their messages, wrong chains, broken answers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from ethereum_blocks import Built, build, grow, header_rlp, keccak, replay, text
from feeding import (
    QUICK,
    SCHEMES,
    address,
    asynchronous,
    everything,
    given,
    hashes,
    opened,
    refs,
    serving,
    take,
)

from cardinal.errors import (
    IntegrityError,
    NodeAnswerError,
    WrongChainError,
)
from cardinal.testing.node import JsonRpcNode
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum import open_feed
from cardinal_connectors.ethereum.settings import FeedSettings

Lie = Callable[[dict[str, Any], list[dict[str, Any]]], None]


def changed_log(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[1]["logs"][0]["data"] = "0x01"


def log_out_of_order(_: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    receipts[1]["logs"][0]["logIndex"] = "0x5"


def pruned_to_nothing(block: dict[str, Any], receipts: list[dict[str, Any]]) -> None:
    block["transactions"].clear()
    receipts.clear()


def header_changed(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["stateRoot"] = text(keccak(b"another state"))


def difficulty_claimed(block: dict[str, Any], _: list[dict[str, Any]]) -> None:
    block["totalDifficulty"] = "0x1234567"


def lied(block: Built, lie: Lie) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    shown, receipts = copy.deepcopy((block.block, block.receipts))
    lie(shown, receipts)
    return shown, receipts


LIES = [changed_log, log_out_of_order, pruned_to_nothing, header_changed, difficulty_claimed]


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


# --- which chain a node serves, at the first connection and at each later one ---


@asynchronous
async def test_chain_id_is_the_nodes_and_another_is_refused() -> None:
    async with JsonRpcNode(replay(grow(None, 2), chain_id=7)) as node:
        feed = open_feed(node.url, settings=QUICK)
        assert await feed.chain_id() == 7
        await feed.close()
        other = open_feed(node.url, chain_id=8, settings=QUICK)
        with pytest.raises(WrongChainError, match="serves chain 7, not chain 8"):
            await other.chain_id()
        await other.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_comes_back_with_another_chain_is_refused(scheme: str) -> None:
    chain, another = grow(None, 5), grow(None, 9, "z")
    async with serving(replay(chain)) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        payloads = feed.follow()
        await take(payloads, 5)
        await node.stop()
        node.chain = replay(another)
        await node.start()
        with pytest.raises(WrongChainError, match="first block"):
            await take(payloads, 1)
        await feed.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_comes_back_is_followed_on(scheme: str) -> None:
    chain = grow(None, 9)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with serving(served) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        payloads = feed.follow(until=8)
        await take(payloads, 5)
        coming = asyncio.ensure_future(anext(payloads))
        await node.stop()
        served.set_head(chain[8].name)
        await node.start()
        async with asyncio.timeout(10):
            first = await coming
        rest = await everything(payloads)
        await feed.close()
    assert given([first, *rest]) == hashes(chain[5:])


# --- what is told of a block beside the block itself: its total difficulty, its uncles, what is final ---


@asynchronous
async def test_total_difficulty_is_added_up_where_the_node_serves_none() -> None:
    chain = grow(None, 12, serve_total=False)
    async with opened(replay(chain)) as (_, feed):
        whole = await everything(feed.follow(until=11))
        resumed = await everything(feed.follow(refs(chain[:6]), until=11))
        from_the_middle = await everything(feed.follow(start=8, until=11))
    expected = [block.total for block in chain]
    assert [payload.weight for payload in whole] == expected
    assert [payload.weight for payload in resumed] == expected[6:]
    assert [payload.weight for payload in from_the_middle] == expected[8:]


@asynchronous
async def test_chain_that_is_too_long_to_add_up_its_difficulty_is_one_sentence() -> None:
    chain = grow(None, 12, serve_total=False)
    short = FeedSettings(rpc=QUICK.rpc, poll=QUICK.poll, sum_blocks=7)
    async with opened(replay(chain), settings=short) as (_, feed):
        assert given(await everything(feed.follow(start=7, until=8))) == hashes(chain[7:9])
        with pytest.raises(NodeAnswerError, match="too far from the first for a sum"):
            await everything(feed.follow(start=8, until=9))


@asynchronous
async def test_uncles_are_fetched_checked_and_published() -> None:
    chain = grow(None, 3)
    uncle = build(chain[1], "u", transactions=0)
    nephew = build(chain[2], uncles=[uncle.block])
    chain.append(nephew)
    async with opened(replay(chain)) as (node, feed):
        payloads = await everything(feed.follow(until=3))
    assert given(payloads) == hashes(chain)
    assert node.calls["eth_getUncleByBlockHashAndIndex"] == 1
    assert payloads[3].updates[f"c/539/b/{nephew.hash.hex()}/u/0"] == header_rlp(uncle.block)


async def marks_of(served: ReplayChain) -> list[tuple[bytes | None, bytes | None]]:
    async with opened(served) as (_, feed):
        payloads = await everything(feed.follow(until=served.head()))
    return [(one.updates.get("c/539/n/safe"), one.updates.get("c/539/n/finalized")) for one in payloads]


@asynchronous
async def test_finality_is_told_after_the_merge_and_never_of_blocks_above() -> None:
    before = grow(None, 3)
    served = replay([*before, *grow(before[-1], 4, difficulty=0)])
    served.safe, served.finalized = 5, 3
    expected = [(b"\x03", b"\x03"), (b"\x04", b"\x03"), (b"\x05", b"\x03"), (b"\x05", b"\x03")]
    assert await marks_of(served) == [(None, None)] * 3 + expected


@asynchronous
async def test_finality_that_the_node_will_not_tell_is_empty() -> None:
    before = grow(None, 1)
    served = replay([*before, *grow(before[-1], 2, difficulty=0)])
    served.safe = 1
    assert await marks_of(served) == [(None, None), (b"\x01", b""), (b"\x01", b"")]


@asynchronous
async def test_total_difficulty_stays_after_the_merge_and_the_weight_grows() -> None:
    before = grow(None, 3)
    chain = [*before, *grow(before[-1], 3, difficulty=0)]
    async with opened(replay(chain)) as (_, feed):
        payloads = await everything(feed.follow(until=5))
    assert [payload.weight for payload in payloads] == [1000, 2000, 3000, 3003, 3004, 3005]
    totals = [payload.updates[f"c/539/b/{payload.hash.hex()}/d"] for payload in payloads]
    assert totals[2:] == [(3000).to_bytes(2, "big")] * 4
