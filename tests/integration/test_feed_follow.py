"""The node feed against a node whose chain is scripted: the order of what is given, through everything that moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from ethereum_blocks import build, grow, header_rlp, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    assert_lawful,
    asynchronous,
    everything,
    given,
    hashes,
    next_after_looks,
    opened,
    refs,
    serving,
    take,
)

from cardinal.errors import NodeAnswerError, ReorgTooDeepError, WrongChainError
from cardinal.testing.node import JsonRpcNode
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum import open_feed
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


# --- start, until, published -----------------------------------------------------------------------------------


@asynchronous
async def test_start_is_the_first_block_given() -> None:
    chain = grow(None, 20)
    async with opened(replay(chain)) as (_, feed):
        assert given(await everything(feed.follow(start=12, until=15))) == hashes(chain[12:16])


@asynchronous
async def test_start_above_the_head_waits_for_it() -> None:
    chain = grow(None, 20)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served, "ws") as (node, feed):
        payloads = feed.follow(start=10)
        first = await next_after_looks(payloads, node, lambda: served.set_head(chain[10].name))
    assert first.hash == chain[10].hash


@pytest.mark.parametrize("length", [3, 100])
@asynchronous
async def test_resumes_above_what_is_published(length: int) -> None:
    chain = grow(None, 10 + length)
    async with opened(replay(chain)) as (_, feed):
        payloads = await everything(feed.follow(refs(chain[5:10]), until=9 + length))
    assert given(payloads) == hashes(chain[10:])
    assert payloads[-1].weight == chain[-1].total


@pytest.mark.parametrize("length", [3, 100])
@asynchronous
async def test_resumes_above_the_highest_published_block_that_the_chain_still_has(length: int) -> None:
    trunk = grow(None, 10)
    lost, kept = grow(trunk[-1], 4, "a"), grow(trunk[-1], length, "b")
    async with opened(replay([*trunk, *kept])) as (_, feed):
        payloads = await everything(feed.follow(refs([*trunk, *lost]), until=kept[-1].number))
    assert given(payloads) == hashes(kept)


@pytest.mark.parametrize("length", [3, 100])
@asynchronous
async def test_published_blocks_of_another_chain_are_refused_by_name(length: int) -> None:
    ours, theirs = grow(None, 8, "a"), grow(None, 8 + length, "b")
    async with opened(replay(theirs)) as (_, feed):
        with pytest.raises(ReorgTooDeepError, match="none of the blocks") as refused:
            await everything(feed.follow(refs(ours[2:]), until=7 + length))
    assert (refused.value.number, refused.value.hash) == (2, ours[2].hash)


@asynchronous
async def test_until_that_is_published_already_ends_at_once() -> None:
    chain = grow(None, 10)
    async with opened(replay(chain)) as (_, feed):
        assert await everything(feed.follow(refs(chain), until=9)) == []
        assert await everything(feed.follow(refs(chain[5:]), until=2)) == []
        assert await everything(feed.follow(start=5, until=2)) == []


@asynchronous
async def test_until_is_awaited_on_a_chain_that_is_not_there_yet() -> None:
    chain = grow(None, 10)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served) as (_, feed):
        payloads = feed.follow(until=7)
        await take(payloads, 5)
        served.set_head(chain[9].name)
        assert given(await everything(payloads)) == hashes(chain[5:8])


# --- total difficulty ------------------------------------------------------------------------------------------


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
        with pytest.raises(NodeAnswerError, match="too far from the first to add it up"):
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


# --- which chain -----------------------------------------------------------------------------------------------


@asynchronous
async def test_chain_id_is_the_nodes_and_another_is_refused() -> None:
    async with JsonRpcNode(replay(grow(None, 2), chain_id=7)) as node:
        feed = open_feed(node.url, settings=QUICK)
        assert await feed.chain_id() == 7
        await feed.close()
        other = open_feed(node.url, chain_id=8, settings=QUICK)
        with pytest.raises(WrongChainError, match="serves chain 7, but chain 8"):
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
