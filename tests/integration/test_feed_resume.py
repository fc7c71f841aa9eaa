"""Where a feed begins and ends: at a number, above what is published, at a block that is not there yet."""

from __future__ import annotations

import pytest
from ethereum_blocks import Built, build, grow, replay
from feeding import (
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
from cardinal.testing.replay import Recorded, ReplayChain


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
        with pytest.raises(ReorgTooDeepError, match="none of the published") as refused:
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


class Elsewhere(ReplayChain):
    """A node that answers the question for one height with another block, whole and right, so many times."""

    asked: int
    instead: str
    times: int

    def hash_at(self, number: int) -> str | None:
        if number == self.asked and self.times:
            self.times -= 1
            return self.instead
        return super().hash_at(number)


def elsewhere(chain: list[Built], asked: int, instead: Built) -> Elsewhere:
    served = Elsewhere([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.add(instead.block, instead.receipts)
    served.asked, served.instead, served.times = asked, instead.name, 0
    return served


@pytest.mark.parametrize("instead", [0, 5, 7])
@asynchronous
async def test_a_stream_begins_with_the_block_that_was_asked_for(instead: int) -> None:
    chain = grow(None, 8)
    served = elsewhere(chain, 2, chain[instead])
    async with opened(served) as (_, feed):
        await feed.chain_id()
        served.times = 2  # the block, and its receipts
        payloads = await everything(feed.follow(start=2, until=7))
    assert served.times == 0
    assert given(payloads) == hashes(chain[2:])


@asynchronous
async def test_a_stream_from_block_0_begins_with_the_first_block_of_its_chain() -> None:
    chain = grow(None, 8)
    served = elsewhere(chain, 0, build(None, "z"))
    async with opened(served) as (_, feed):
        await feed.chain_id()
        served.times = 2
        payloads = await everything(feed.follow(until=7))
    assert served.times == 0
    assert given(payloads) == hashes(chain)


class Lagging(Elsewhere):
    """A node some of whose answers come from one that has nothing yet but the lowest blocks."""

    def hash_at(self, number: int) -> str | None:
        if self.asked <= number < self.head() and self.times:
            self.times -= 1
            return None
        return super().hash_at(number)


@asynchronous
async def test_null_is_not_another_chain() -> None:
    chain = grow(None, 110)
    served = Lagging([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.asked, served.times = 1, 0
    async with opened(served) as (_, feed):
        await feed.chain_id()
        served.times = 6
        assert given(await everything(feed.follow(refs(chain[2:10]), until=109))) == hashes(chain[10:])
        assert served.times == 0


@asynchronous
async def test_a_shorter_chain_that_has_none_of_the_published_blocks_is_refused_by_name() -> None:
    ours, theirs = grow(None, 150, "a"), grow(None, 100, "b")
    async with opened(replay(theirs)) as (_, feed):
        with pytest.raises(ReorgTooDeepError, match="none of the published"):
            await everything(feed.follow(refs(ours[2:]), until=99))


@pytest.mark.parametrize("number", ["0x0", "0x2"])
@asynchronous
async def test_a_number_that_is_not_the_blocks_own_is_no_deep_reorg(number: str) -> None:
    chain = grow(None, 10)
    served = replay(chain)
    served.swap(chain[8].name, "block", {**chain[8].block, "number": number}, 1)
    async with opened(served) as (_, feed):
        assert given(await everything(feed.follow(refs(chain[2:6]), until=9))) == hashes(chain[6:])
