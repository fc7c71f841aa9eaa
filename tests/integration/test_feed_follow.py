"""The node feed against a node whose chain is scripted: the order of what is given, through everything that moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from ethereum_blocks import grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    assert_lawful,
    asynchronous,
    everything,
    given,
    hashes,
    next_after_looks,
    opened,
    refs,
    take,
)

from cardinal.errors import ReorgTooDeepError
from cardinal_connectors.ethereum.settings import FeedSettings


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_backfill_gives_every_block_in_order_and_stops_at_until(scheme: str) -> None:
    chain = grow(None, 200)
    async with opened(replay(chain), scheme) as (_, feed):
        payloads = await everything(feed.follow(until=180))
    assert given(payloads) == hashes(chain[:181])
    assert [payload.weight for payload in payloads] == [block.total for block in chain[:181]]


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_head_is_followed_from_where_the_backfill_ended(scheme: str) -> None:
    chain = grow(None, 120)
    served = replay(chain)
    served.set_head(chain[99].name, announce="silent")
    async with opened(served, scheme) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 100)
        for block in chain[100:]:
            served.set_head(block.name)
            taken += await take(payloads, 1)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_subscription_is_a_hint_that_needs_no_poll() -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.set_head(chain[2].name, announce="silent")
    never = FeedSettings(rpc=QUICK.rpc, poll=3600.0)
    async with opened(served, "ws", never) as (_, feed):
        payloads = feed.follow()
        await take(payloads, 3)
        coming = asyncio.ensure_future(anext(payloads))
        await asyncio.sleep(0)
        served.set_head(chain[3].name)
        async with asyncio.timeout(10):
            assert (await coming).hash == chain[3].hash


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("announce", ["each", "final", "silent"])
@asynchronous
async def test_reorg_gives_the_new_branch_parents_first(scheme: str, announce: str) -> None:
    trunk = grow(None, 6)
    old, new = grow(trunk[-1], 3, "a"), grow(trunk[-1], 4, "b")
    served = replay([*trunk, *old], new)
    async with opened(served, scheme) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 9)
        served.set_head(new[-1].name, announce=announce)  # type: ignore[arg-type] # parametrised
        taken += await take(payloads, 4)
    assert given(taken) == hashes([*trunk, *old, *new])
    assert_lawful(taken)


@asynchronous
async def test_reorg_to_a_shorter_branch_is_followed() -> None:
    trunk = grow(None, 3)
    old, new = grow(trunk[-1], 5, "a"), grow(trunk[-1], 2, "b", difficulty=9000)
    served = replay([*trunk, *old], new)
    async with opened(served) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 8)
        served.set_head(new[-1].name, announce="final")
        taken += await take(payloads, 2)
    assert given(taken[8:]) == hashes(new)


@asynchronous
async def test_orphans_that_are_gone_at_once_do_not_stop_the_walk() -> None:
    trunk = grow(None, 3)
    old, new = grow(trunk[-1], 3, "a"), grow(trunk[-1], 4, "b")
    served = replay([*trunk, *old], new)
    async with opened(served) as (_, feed):
        payloads = feed.follow()
        await take(payloads, 6)
        served.set_head(new[-1].name)
        for block in old:
            served.forget(block.name)
        assert given(await take(payloads, 4)) == hashes(new)


@asynchronous
async def test_reorg_while_walking_a_reorg_restarts_from_the_present_head() -> None:
    trunk = grow(None, 3)
    old, middle, new = grow(trunk[-1], 3, "a"), grow(trunk[-1], 5, "b"), grow(trunk[-1], 6, "c")
    served = replay([*trunk, *old], middle, new)
    async with opened(served) as (node, feed):
        payloads = feed.follow()
        await take(payloads, 6)

        def switch(method: str, params: Sequence[object]) -> None:
            if method == "eth_getBlockByHash" and params[0] == middle[2].name:
                for block in middle:
                    served.forget(block.name)
                served.set_head(new[-1].name)

        node.before = switch
        served.set_head(middle[-1].name)
        assert given(await take(payloads, 6)) == hashes(new)


@asynchronous
async def test_reorg_while_backfilling_leaves_no_gap_and_no_double() -> None:
    trunk = grow(None, 40)
    old, new = grow(trunk[-1], 160, "a"), grow(trunk[-1], 170, "b")
    served = replay([*trunk, *old], new)
    async with opened(served) as (node, feed):

        def switch(method: str, params: Sequence[object]) -> None:
            if method == "eth_getBlockByNumber" and params[0] == hex(150):
                served.set_head(new[-1].name)

        node.before = switch
        taken = await everything(feed.follow(until=new[-1].number))
    assert_lawful(taken)
    ours = {payload.hash for payload in taken}
    assert ours >= set(hashes([*trunk, *new]))
    assert given(taken)[-1] == new[-1].hash


@asynchronous
async def test_silent_rewind_gives_nothing_and_the_next_branch_follows_it() -> None:
    trunk = grow(None, 4)
    old, new = grow(trunk[-1], 4, "a"), grow(trunk[-1], 3, "b")
    served = replay([*trunk, *old], new)
    async with opened(served) as (node, feed):
        payloads = feed.follow()
        await take(payloads, 8)
        served.set_head(trunk[-1].name, announce="silent")

        def repeat_a_number() -> None:
            served.set_head(new[0].name, announce="silent")

        assert (await next_after_looks(payloads, node, repeat_a_number)).hash == new[0].hash
        served.set_head(new[-1].name, announce="silent")
        assert given(await take(payloads, 2)) == hashes(new[1:])


@asynchronous
async def test_going_back_to_a_branch_gives_only_what_is_new_on_it() -> None:
    trunk = grow(None, 3)
    one, other = grow(trunk[-1], 4, "a"), grow(trunk[-1], 4, "b")
    served = replay([*trunk, *one], other)
    served.set_head(one[2].name)
    async with opened(served) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 6)
        served.set_head(other[-1].name)
        taken += await take(payloads, 4)
        served.set_head(one[-1].name)
        taken += await take(payloads, 1)
    assert given(taken) == hashes([*trunk, *one[:3], *other, one[3]])
    assert_lawful(taken)


@asynchronous
async def test_deep_reorg_within_the_window_is_followed_by_bisection() -> None:
    trunk = grow(None, 10)
    old, new = grow(trunk[-1], 150, "a"), grow(trunk[-1], 160, "b")
    served = replay([*trunk, *old], new)
    async with opened(served) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 160)
        served.set_head(new[-1].name, announce="final")
        taken += await take(payloads, 160)
    assert given(taken) == hashes([*trunk, *old, *new])
    assert_lawful(taken)


@asynchronous
async def test_reorg_through_all_that_is_published_is_followed_though_the_window_is_smaller() -> None:
    old = grow(None, 12)
    new = grow(old[0], 12, "b")
    served = replay(old, new)
    served.set_head(new[-1].name)
    async with opened(served, settings=replace(QUICK, window=4)) as (_, feed):
        taken = await take(feed.follow(refs(old)), 12)
    assert given(taken) == hashes(new)
    assert_lawful(taken, refs(old))


@asynchronous
async def test_reorg_that_is_deeper_than_the_window_is_refused() -> None:
    trunk = grow(None, 30)
    deep, deeper = grow(trunk[-5], 6, "b"), grow(trunk[-6], 12, "c")
    served = replay(trunk, deep, deeper)
    async with opened(served, settings=replace(QUICK, window=4)) as (_, feed):
        payloads = feed.follow()
        taken = await take(payloads, 30)
        served.set_head(deep[3].name, announce="final")  # as high as before: nothing more is forgotten
        taken += await take(payloads, 4)
        served.set_head(deeper[-1].name, announce="final")
        with pytest.raises(ReorgTooDeepError) as refused:
            await take(payloads, 1)
    assert given(taken) == hashes([*trunk, *deep[:4]])
    assert refused.value.number == trunk[-5].number


@asynchronous
async def test_reorg_through_the_first_block_gives_its_sibling_and_deeper_is_refused() -> None:
    trunk = grow(None, 5)
    old, sibling, deep = grow(trunk[-1], 2, "a"), grow(trunk[-1], 3, "b"), grow(trunk[-3], 8, "c")
    served = replay([*trunk, *old], sibling, deep)
    async with opened(served) as (_, feed):
        payloads = feed.follow(start=5)
        assert given(await take(payloads, 2)) == hashes(old)
        served.set_head(sibling[-1].name)
        assert given(await take(payloads, 3)) == hashes(sibling)
        served.set_head(deep[-1].name)
        with pytest.raises(ReorgTooDeepError) as refused:
            await take(payloads, 1)
    assert refused.value.number == 4
