"""Following a node: backfill, reorgs, resume, ranges, targets, hints; blocks by hash; recorded chains."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from ethereum_blocks import Built, build, grow, replay
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
    next_after_looks,
    opened,
    refs,
    serving,
    take,
)

from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError, ReorgTooDeepError
from cardinal.feeds import ByHash
from cardinal_devkit.devchain import DevFeed, DevSettings
from cardinal_devkit.devchain import open_feed as open_dev_feed
from cardinal_devkit.testing.replay import Recorded, ReplayChain
from cardinal_ethereum.archive.feed import ArchiveFeed
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.feed.settings import FeedSettings
from evm_blocks import data
from recorded_blocks import RecordedBlock, chains, node_of


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_backfill_gives_every_block_in_order_and_stops_at_until(scheme: str) -> None:
    chain = grow(None, 200)
    async with opened(replay(chain), scheme) as (_, feed):
        payloads = await everything(feed.follow(until=180))
    assert given(payloads) == hashes(chain[:181])
    assert [payload.weight for payload in payloads] == [block.total for block in chain[:181]]


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


# --- which blocks of the node's chain are yielded: below a lag, of a finality, from a hash or a time ---


@asynchronous
async def test_lag_stays_so_many_blocks_below_the_head() -> None:
    chain = grow(None, 12)
    served = replay(chain)
    served.set_head(chain[7].name)
    async with serving(served) as node, connected(node.url + "#lag=3") as feed:
        payloads = feed.follow(until=8)
        taken = await take(payloads, 5)
        taken.append(await next_after_looks(payloads, node, partial(served.set_head, chain[8].name)))
        served.set_head(chain[11].name)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain[:9])


@asynchronous
async def test_reorg_above_the_lag_is_never_seen() -> None:
    trunk = grow(None, 8)
    old, new = grow(trunk[-1], 3, "a"), grow(trunk[-1], 6, "b")
    served = replay([*trunk, *old], new)
    served.set_head(old[-1].name)
    async with serving(served) as node, connected(node.url + "#lag=3") as feed:
        payloads = feed.follow(until=10)
        taken = await take(payloads, 8)
        served.set_head(new[-1].name)
        taken += await everything(payloads)
    assert given(taken) == hashes([*trunk, *new[:3]])


@pytest.mark.parametrize("tag", ["safe", "finalized"])
@asynchronous
async def test_only_blocks_of_the_requested_finality_are_yielded(tag: str, caplog: pytest.LogCaptureFixture) -> None:
    chain = grow(None, 12)
    served = replay(chain)
    async with serving(served) as node, connected(f"{node.url}#finality={tag}") as feed:
        payloads = feed.follow(until=9)
        first = await next_after_looks(payloads, node, partial(setattr, served, tag, 4))  # none is final before
        taken = [first, *await take(payloads, 4)]
        taken.append(await next_after_looks(payloads, node, partial(setattr, served, tag, 6)))
        setattr(served, tag, 11)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain[:10])
    told = [message for message in caplog.messages if f"has no block that is {tag}" in message]
    assert len(told) == 1


@asynchronous
async def test_what_is_published_above_the_lag_already_is_waited_for() -> None:
    chain = grow(None, 14)
    served = replay(chain)
    served.set_head(chain[8].name)
    async with serving(served) as node, connected(node.url + "#lag=4") as feed:
        payloads = feed.follow(refs(chain[6:8]), until=9)
        taken = [await next_after_looks(payloads, node, partial(served.set_head, chain[13].name))]
        taken += await everything(payloads)
    assert given(taken) == hashes(chain[8:10])


@pytest.mark.parametrize("scheme", ["http", "ipc"])
@asynchronous
async def test_block_is_located_by_number_hash_and_time(scheme: str) -> None:
    chain = grow(None, 30)
    orphan = grow(chain[10], 1, "b")[0]
    served = replay(chain, [orphan])
    async with serving(served) as node:
        feed = NodeFeed(address(node, scheme))
        assert await feed.locate("17") == 17
        assert await feed.locate(chain[12].name) == 12
        assert await feed.locate(chain[12].name[2:].upper()) == 12
        for block in (chain[0], chain[1], chain[14], chain[29]):
            second = int(block.block["timestamp"], 16)
            assert await feed.locate(_iso(second)) == block.number
            assert await feed.locate(_iso(second - 11)) == block.number
        assert await feed.locate("1970-01-01") == 0
        assert await feed.locate("2020-09-13T14:26:40+02:00") == 0
        for unknown in (orphan.name, "0x" + "12" * 32, "2030-01-01"):
            with pytest.raises(NodeAnswerError, match="has no block"):
                await feed.locate(unknown)
        with pytest.raises(ConfigurationError, match="its number, its hash or a time"):
            await feed.locate("yesterday")
        await feed.close()


@pytest.mark.slow
@asynchronous
async def test_block_is_located_by_another_node_where_the_first_one_cannot() -> None:
    chain = grow(None, 30)

    def fails(method: str, params: Sequence[object]) -> None:
        if method != "eth_chainId" and params[0] != "0x0":
            raise NodeAnswerError("missing trie node", code=-32000)

    pruned = replay(chain[20:])
    async with serving(replay(chain)) as one, serving(replay(chain)) as two, serving(pruned) as three:
        for urls, text in ((f"{one.url},{two.url}", chain[12].name), (f"{three.url},{two.url}", chain[12].name)):
            feed = NodeFeed(urls)
            await feed.chain_id()
            one.before = fails
            assert await feed.locate(text) == 12
            await feed.close()
        feed = NodeFeed(f"{one.url},{two.url}")
        with pytest.raises(NodeAnswerError, match="missing trie node"):  # of the first, though the second answers
            await feed.locate("0x" + "12" * 32)
        await two.stop()
        with pytest.raises(NodeAnswerError, match="missing trie node"):
            await feed.locate(chain[12].name)
        await feed.close()


@asynchronous
async def test_target_is_the_block_that_is_gone_to() -> None:
    chain = grow(None, 30)
    async with serving(replay(chain)) as node:
        feed = NodeFeed(node.url + "#lag=2")
        assert feed.target is None
        payloads = feed.follow()
        await take(payloads, 1)
        assert feed.target == 27
        await payloads.aclose()
        bounded = feed.follow(until=9)
        await take(bounded, 1)
        assert feed.target == 9
        await bounded.aclose()
        await feed.close()


@asynchronous
async def test_lag_does_not_hide_a_node_that_is_far_behind() -> None:
    chain = grow(None, 30)
    served = replay(chain)
    served.set_head(chain[5].name)
    async with serving(served) as node, connected(node.url + "#lag=2&patience=0.1") as feed:
        with pytest.raises(NodeUnreachableError, match="below 20"):
            await everything(feed.follow(refs(chain[20:25])))


def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z")


# --- where a feed begins and ends: at a number, above what is published, at a block that is not there yet ---


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
async def test_resumes_above_the_highest_published_block_that_the_chain_still_has(length: int) -> None:
    trunk = grow(None, 10)
    lost, kept = grow(trunk[-1], 4, "a"), grow(trunk[-1], length, "b")
    async with opened(replay([*trunk, *kept])) as (_, feed):
        payloads = await everything(feed.follow(refs([*trunk, *lost]), until=kept[-1].number))
    assert given(payloads) == hashes(kept)


@pytest.mark.parametrize(("own", "other"), [(8, 11), (8, 108), (150, 100)])
@asynchronous
async def test_published_blocks_of_another_chain_are_refused_by_name(own: int, other: int) -> None:
    ours, theirs = grow(None, own, "a"), grow(None, other, "b")
    async with opened(replay(theirs)) as (_, feed):
        with pytest.raises(ReorgTooDeepError, match="none of the published") as refused:
            await everything(feed.follow(refs(ours[2:]), until=other - 1))
    assert (refused.value.number, refused.value.hash) == (2, ours[2].hash)


@asynchronous
async def test_until_that_is_published_already_ends_at_once() -> None:
    chain = grow(None, 10)
    async with opened(replay(chain)) as (_, feed):
        assert await everything(feed.follow(refs(chain), until=9)) == []
        assert await everything(feed.follow(refs(chain[5:]), until=2)) == []
        assert await everything(feed.follow(start=5, until=2)) == []


class Elsewhere(ReplayChain):
    """A node that answers the question for one height with another block, whole and right, so many times."""

    requested: int
    instead: str
    times: int

    def hash_at(self, number: int) -> str | None:
        if number == self.requested and self.times:
            self.times -= 1
            return self.instead
        return super().hash_at(number)


def elsewhere(chain: list[Built], requested: int, instead: Built) -> Elsewhere:
    served = Elsewhere([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.add(instead.block, instead.receipts)
    served.requested, served.instead, served.times = requested, instead.name, 0
    return served


@pytest.mark.parametrize(("start", "instead"), [(2, 0), (2, 5), (2, 7), (0, None)])
@asynchronous
async def test_a_stream_begins_with_the_requested_block(start: int, instead: int | None) -> None:
    chain = grow(None, 8)
    served = elsewhere(chain, start, build(None, "z") if instead is None else chain[instead])
    async with opened(served) as (_, feed):
        await feed.chain_id()
        served.times = 2  # the block, and its receipts
        payloads = await everything(feed.follow(start=start, until=7))
    assert served.times == 0
    assert given(payloads) == hashes(chain[start:])


class Lagging(Elsewhere):
    """A node some of whose answers come from one that has nothing yet but the lowest blocks."""

    def hash_at(self, number: int) -> str | None:
        if self.requested <= number < self.head() and self.times:
            self.times -= 1
            return None
        return super().hash_at(number)


@asynchronous
async def test_null_is_not_another_chain() -> None:
    chain = grow(None, 110)
    served = Lagging([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.requested, served.times = 1, 0
    async with opened(served) as (_, feed):
        await feed.chain_id()
        served.times = 6
        assert given(await everything(feed.follow(refs(chain[2:10]), until=109))) == hashes(chain[10:])
        assert served.times == 0


@pytest.mark.parametrize("number", ["0x0", "0x2"])
@asynchronous
async def test_a_number_that_is_not_the_blocks_own_is_no_deep_reorg(number: str) -> None:
    chain = grow(None, 10)
    served = replay(chain)
    served.swap(chain[8].name, "block", {**chain[8].block, "number": number}, 1)
    async with opened(served) as (_, feed):
        assert given(await everything(feed.follow(refs(chain[2:6]), until=9))) == hashes(chain[6:])


# --- where a long way is fetched by number while the chain moves: nothing twice, and not block by block ---


LONG = QUICK.walk + 40


def _two_branches() -> tuple[list[Built], list[Built], list[Built], ReplayChain]:
    """A trunk, and two branches above it that are longer than what is walked by hash; the head is on the first."""
    trunk = grow(None, 10)
    old = grow(trunk[-1], LONG, "a")
    new = grow(trunk[-1], LONG + 5, "b")
    return trunk, old, new, replay([*trunk, *old], new)


@asynchronous
async def test_blocks_that_were_given_are_not_given_again_when_the_chain_goes_back_during_the_way_to_a_branch() -> None:
    """While blocks above the common one are fetched by number, those numbers become blocks of the old branch again."""
    trunk, old, new, served = _two_branches()
    more = grow(old[-1], 10, "a")
    for one in more:
        served.add(one.block, one.receipts, one.uncles)
    first_above = hex(trunk[-1].number + 1)

    def go_back(method: str, params: Sequence[object]) -> None:
        if method == "eth_getBlockByNumber" and tuple(params) == (first_above, True):
            node.before = None
            served.set_head(more[-1].name, announce="silent")

    async with opened(served) as (node, feed):
        payloads = feed.follow()
        taken = await take(payloads, len(trunk) + len(old))
        node.before = go_back
        served.set_head(new[-1].name, announce="silent")
        taken += await take(payloads, len(more))
        assert node.before is None
    assert given(taken) == hashes([*trunk, *old, *more])
    assert_lawful(taken)


@asynchronous
async def test_a_branch_longer_than_what_is_walked_is_fetched_by_number() -> None:
    trunk, old, new, served = _two_branches()
    requested: Counter[str] = Counter()

    def count(method: str, params: Sequence[object]) -> None:
        if params[-1:] == [True]:
            requested[method] += 1

    async with opened(served) as (node, feed):
        payloads = feed.follow()
        taken = await take(payloads, len(trunk) + len(old))
        node.before = count
        served.set_head(new[-1].name, announce="silent")
        taken += await take(payloads, len(new))
    assert given(taken) == hashes([*trunk, *old, *new])
    assert requested["eth_getBlockByHash"] <= QUICK.walk, "it went on by hash, each block in memory"
    assert requested["eth_getBlockByNumber"] >= len(new)


# --- how far a feed goes, which it says for those who wait: archives and development chains (nodes: test_feed ---


@asynchronous
async def test_target_of_an_archive_is_its_last_file_or_the_requested_block(tmp_path: Path) -> None:
    for one in grow(None, 8):
        content = {"block": one.block, "receipts": one.receipts}
        (tmp_path / f"{one.number}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    feed = ArchiveFeed(tmp_path, chain_id=1337)
    assert feed.target is None
    for until, target in ((None, 7), (4, 4), (90, 7)):
        payloads = await everything(feed.follow(until=until))
        assert (feed.target, payloads[-1].number) == (target, target)
    with pytest.raises(ConfigurationError, match="holds blocks 0 to 7, not block 9"):
        await everything(feed.follow(start=9))
    assert feed.target is None, "nothing will come"


@asynchronous
async def test_target_of_a_development_chain_is_its_last_block_or_the_requested_block() -> None:
    feed = DevFeed(DevSettings(blocks=12, reorg_rate=0.0))
    assert feed.target is None
    for until, target in ((None, 12), (5, 5), (90, 12)):
        payloads = feed.follow(until=until)
        await take(payloads, 1)
        assert feed.target == target
        rest = await everything(payloads)
        assert rest[-1].number == target


# --- a head that is announced after the feed has looked is given for the announcement's sake alone ---


@pytest.mark.parametrize("scheme", ["ws", "ipc"])
@pytest.mark.parametrize("announce", ["each", "final"])
@asynchronous
async def test_an_announced_head_is_given_though_the_next_poll_is_an_hour_away(scheme: str, announce: str) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    served.set_head(chain[2].name, announce="silent")

    def move_behind_its_back(method: str, params: Sequence[object]) -> None:
        """The answer to this look still says block 2."""
        if method == "eth_getBlockByNumber" and params[0] == "latest":
            node.before = None
            asyncio.get_running_loop().call_soon(lambda: served.set_head(chain[7].name, announce=announce))  # type: ignore[arg-type] # one of its words

    async with opened(served, scheme, FeedSettings(rpc=QUICK.rpc, poll=3600.0)) as (node, feed):
        payloads = feed.follow()
        assert [one.hash for one in await take(payloads, 3)] == [one.hash for one in chain[:3]]
        node.before = move_behind_its_back
        assert [one.hash for one in await take(payloads, 5)] == [one.hash for one in chain[3:]]


@asynchronous
async def test_an_orphan_that_the_node_still_has_is_given_as_when_it_was_followed() -> None:
    trunk = grow(None, 6)
    old, new = grow(trunk[-1], 3, "a"), grow(trunk[-1], 5, "b")
    served = replay([*trunk, *old], new)
    served.set_head(old[-1].name, announce="silent")
    async with opened(served) as (_, feed):
        assert isinstance(feed, ByHash)
        followed = {payload.hash: payload for payload in await everything(feed.follow(until=8))}
        assert await feed.block(old[0].hash) == followed[old[0].hash]
        served.set_head(new[-1].name, announce="silent")
        assert await feed.block(old[0].hash) == followed[old[0].hash]
        assert await feed.block(trunk[3].hash) == followed[trunk[3].hash]
        assert await feed.block(bytes(32)) is None


@asynchronous
async def test_a_development_chain_gives_any_block_of_its_script() -> None:
    feed = open_dev_feed("dev://?seed=7&blocks=30&reorg-rate=0.3")
    assert isinstance(feed, ByHash)
    payloads = [payload async for payload in feed.follow()]
    assert len(payloads) > 31, "there are orphans among them"
    for payload in payloads[::7]:
        found = await feed.block(payload.hash)
        assert found is not None
        assert (found.ref, found.parent, found.updates.keys()) == (payload.ref, payload.parent, payload.updates.keys())
    assert await feed.block(bytes(32)) is None


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("recording", chains())
@asynchronous
async def test_values_of_a_recorded_chain_equal_the_references(
    recording: Callable[[], list[RecordedBlock]], scheme: str
) -> None:
    recorded = recording()
    first, settings = recorded[0], replace(QUICK, chain=recorded[0].chain)
    served = node_of(recorded)
    async with opened(served, scheme, settings) as (_, feed):
        payloads = await everything(feed.follow(start=first.number, until=recorded[-1].number))
    assert [payload.ref for payload in payloads] == [one.ref for one in recorded]
    for payload, one in zip(payloads, recorded, strict=True):
        assert payload.parent == data(one.block["parentHash"])
        assert payload.weight == one.weight
        assert not payload.deletes
        assert payload.updates == one.values
