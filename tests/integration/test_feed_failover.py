"""Failover between several nodes of one chain: outages, lag, forks and false blocks."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from ethereum_blocks import Built, grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    assert_lawful,
    asynchronous,
    connected,
    everything,
    given,
    hashes,
    looks,
    next_after_looks,
    refs,
    serving,
    take,
)

from cardinal.errors import IntegrityError, NodeUnreachableError, ReorgTooDeepError
from cardinal.testing.replay import ReplayChain

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed
    from cardinal.testing.node import JsonRpcNode

SOON = replace(QUICK, watch=0.01, rest=60.0)


@dataclass
class Several:
    nodes: list[JsonRpcNode]
    feed: BlockFeed


@asynccontextmanager
async def several(*chains: ReplayChain, scheme: str = "http", options: str = "") -> AsyncIterator[Several]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(serving(chain)) for chain in chains]
        urls = ",".join(address(node, scheme) for node in nodes)
        yield Several(nodes, await stack.enter_async_context(connected(urls + options, SOON)))


def at(chain: Sequence[Built], head: int) -> ReplayChain:
    """A replay whose head is this block of the chain."""
    served = replay(list(chain))
    served.set_head(chain[head].name, announce="silent")
    return served


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_goes_away_is_left_for_the_other_at_once(scheme: str) -> None:
    chain = grow(None, 30)
    first, second = at(chain, 9), at(chain, 9)
    async with several(first, second, scheme=scheme) as these:
        payloads = these.feed.follow(until=29)
        taken = await take(payloads, 10)
        await these.nodes[0].stop()
        second.set_head(chain[29].name)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_node_that_is_away_from_the_beginning_is_not_needed() -> None:
    chain = grow(None, 5)
    async with several(at(chain, 4), at(chain, 4)) as these:
        await these.nodes[0].stop()
        assert await these.feed.chain_id() == 1337
        assert given(await everything(these.feed.follow(until=4))) == hashes(chain)


@asynchronous
async def test_all_nodes_away_are_waited_for_and_any_that_comes_back_will_do() -> None:
    chain = grow(None, 12)
    first, second = at(chain, 5), at(chain, 5)
    async with several(first, second, options="#patience=20") as these:
        payloads = these.feed.follow(until=11)
        taken = await take(payloads, 6)
        coming = asyncio.ensure_future(anext(payloads))
        for node in these.nodes:
            await node.stop()
        second.set_head(chain[11].name)
        await these.nodes[1].start()
        async with asyncio.timeout(20):
            taken.append(await coming)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_all_nodes_away_for_longer_than_the_patience_is_one_sentence() -> None:
    chain = grow(None, 5)
    async with several(at(chain, 4), at(chain, 4), options="#patience=0.2&attempts=1") as these:
        payloads = these.feed.follow()
        await take(payloads, 5)
        for node in these.nodes:
            await node.stop()
        with pytest.raises(NodeUnreachableError, match="no node answers at"):
            await take(payloads, 1)


@asynchronous
async def test_failover_node_that_lags_gives_nothing_twice_and_goes_on_when_it_is_there() -> None:
    chain = grow(None, 30)
    first, second = at(chain, 20), at(chain, 12)
    async with several(first, second) as these:
        payloads = these.feed.follow(until=29)
        taken = await take(payloads, 21)
        await these.nodes[0].stop()
        coming = asyncio.ensure_future(anext(payloads))
        await looks(these.nodes[1])
        assert not coming.done()
        second.set_head(chain[18].name)
        await looks(these.nodes[1])
        assert not coming.done()
        second.set_head(chain[29].name)
        taken += [await coming, *await everything(payloads)]
    assert given(taken) == hashes(chain)


@asynchronous
async def test_failover_node_on_another_fork_is_followed_from_the_common_ancestor() -> None:
    trunk = grow(None, 10)
    ours, theirs = grow(trunk[-1], 4, "a"), grow(trunk[-1], 6, "b")
    first, second = replay([*trunk, *ours]), replay([*trunk, *theirs])
    async with several(first, second) as these:
        payloads = these.feed.follow(until=15)
        taken = await take(payloads, 14)
        await these.nodes[0].stop()
        taken += await everything(payloads)
    assert given(taken) == hashes([*trunk, *ours, *theirs])
    assert_lawful(taken)


@asynchronous
async def test_failover_node_that_has_nothing_of_the_stream_is_never_followed() -> None:
    trunk, ours = grow(None, 1), grow(None, 20)[1:]
    stranger = replay([*trunk, *grow(trunk[-1], 30, "z")])
    chain = [*trunk, *ours]
    first = at(chain, 15)
    published = refs(chain[10:13])
    async with several(first, stranger, options="#patience=20") as these:
        payloads = these.feed.follow(published, until=19)
        taken = await take(payloads, 3)
        await these.nodes[0].stop()
        coming = asyncio.ensure_future(anext(payloads))
        await looks(these.nodes[1], 2)
        first.set_head(chain[19].name)
        await these.nodes[0].start()
        async with asyncio.timeout(20):
            taken.append(await coming)
        taken += await everything(payloads)
        assert given(taken) == hashes(chain[13:])
    async with several(stranger, stranger) as these:
        with pytest.raises(ReorgTooDeepError):
            await everything(these.feed.follow(published, until=19))


@asynchronous
async def test_node_that_falls_behind_is_left_while_it_still_answers(caplog: pytest.LogCaptureFixture) -> None:
    chain = grow(None, 40)
    first, second = at(chain, 10), at(chain, 10)
    with caplog.at_level(logging.WARNING):
        async with several(first, second) as these:
            payloads = these.feed.follow(until=39)
            taken = await take(payloads, 11)
            second.set_head(chain[39].name)
            taken += await everything(payloads)
    assert given(taken) == hashes(chain)
    assert any("blocks behind" in message for message in caplog.messages)


@asynchronous
async def test_block_that_one_node_gets_wrong_is_fetched_from_the_other() -> None:
    chain = grow(None, 10)
    first, second = at(chain, 9), at(chain, 9)
    wrong = copy.deepcopy(chain[4].receipts)
    wrong[0]["logs"].clear()
    first.swap(chain[4].name, "receipts", wrong, 1000)
    async with several(first, second) as these:
        taken = await everything(these.feed.follow(until=9))
        assert given(taken) == hashes(chain)
        assert these.nodes[1].calls["eth_getBlockByHash"] == 1


@asynchronous
async def test_block_that_no_node_gets_right_is_reported_and_never_given() -> None:
    chain = grow(None, 10)
    nodes = [at(chain, 9), at(chain, 9)]
    for served in nodes:
        wrong = copy.deepcopy(chain[4].block)
        wrong["stateRoot"] = wrong["transactionsRoot"]
        served.swap(chain[4].name, "block", wrong, 10_000)
    async with several(*nodes) as these:
        payloads = these.feed.follow(until=9)
        assert given(await take(payloads, 4)) == hashes(chain[:4])
        with pytest.raises(IntegrityError) as refused:
            await take(payloads, 1)
    assert (refused.value.number, refused.value.check) == (4, "hash")


@asynchronous
async def test_chain_that_one_node_made_up_is_left_for_the_other_nodes() -> None:
    chain = grow(None, 20)
    lies = [copy.deepcopy(block) for block in chain]
    for block in lies[8:]:
        block.block["gasUsed"] = "0x1"
    first, second = replay(lies), at(chain, 19)
    async with several(first, second) as these:
        assert given(await everything(these.feed.follow(until=19))) == hashes(chain)


@asynchronous
async def test_node_of_another_chain_is_named_and_never_used(caplog: pytest.LogCaptureFixture) -> None:
    chain, another = grow(None, 10), grow(None, 30, "z")
    for stranger in (replay(chain, chain_id=6), replay(another)):
        first = at(chain, 5)
        async with several(first, stranger, options="#patience=0.2&attempts=1") as these:
            payloads = these.feed.follow()
            taken = await take(payloads, 6)
            change = partial(first.set_head, chain[9].name)
            taken.append(await next_after_looks(payloads, these.nodes[0], change))
            taken += await take(payloads, 3)
            assert given(taken) == hashes(chain)
            await these.nodes[0].stop()
            with pytest.raises(NodeUnreachableError):
                await take(payloads, 1)
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2
    assert "serves chain 6, not chain 1337" in told[0]
    assert "first block" in told[1]


@asynchronous
async def test_node_that_comes_back_with_another_chain_is_left_for_the_other() -> None:
    chain, another = grow(None, 10), grow(None, 30, "z")
    first, second = at(chain, 5), at(chain, 5)
    async with several(first, second, options="#patience=20") as these:
        payloads = these.feed.follow(until=9)
        taken = await take(payloads, 6)
        coming = asyncio.ensure_future(anext(payloads))
        for node in these.nodes:
            await node.stop()
        these.nodes[0].chain = replay(another)
        await these.nodes[0].start()
        second.set_head(chain[9].name)
        await these.nodes[1].start()
        async with asyncio.timeout(20):
            taken.append(await coming)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_block_by_hash_comes_from_whichever_node_has_it() -> None:
    trunk = grow(None, 5)
    orphan = grow(trunk[-1], 1, "b")
    async with several(replay(trunk), replay(trunk, orphan)) as these:
        payload = await these.feed.block(orphan[0].hash)  # type: ignore[attr-defined] # what a feed may have beside
        assert payload is not None
        assert payload.hash == orphan[0].hash
        await these.nodes[0].stop()
        assert await these.feed.block(orphan[0].hash) == payload  # type: ignore[attr-defined] # the same
