"""Total difficulties of nodes: checked sums, and published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from ethereum_blocks import Built, grow, replay
from feeding import QUICK, asynchronous, connected, everything, hashes, opened, refs, serving

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal.testing.replay import Recorded, ReplayChain
from cardinal_connectors.ethereum.feed import NodeFeed
from cardinal_connectors.ethereum.settings import FeedSettings

LIE = hex(10**30)
ALONE = replace(QUICK, workers=0, walk=4)
BESIDE = replace(ALONE, workers=1, worker_blocks=10, worker_bytes=0, fetch_blocks=8)
WITHOUT_SUMS = replace(QUICK, sum_blocks=1)


def merged_later(length: int) -> list[Built]:
    """Four blocks of work, then others: the total stays 4,000."""
    before = grow(None, 4)
    return [*before, *grow(before[-1], length, difficulty=0)]


def weights(chain: Sequence[Built]) -> list[int]:
    """As they are published: from the merge on the number is added."""
    return [one.total + (one.number if one.block["difficulty"] == "0x0" else 0) for one in chain]


def lying(chain: Sequence[Built], at: int, total: str = LIE, times: int = 1000) -> ReplayChain:
    """A node that says another total of one block."""
    served = replay(list(chain))
    served.swap(chain[at].name, "block", {**chain[at].block, "totalDifficulty": total}, times)
    return served


async def resumed(
    served: ReplayChain, chain: Sequence[Built], published: int, settings: FeedSettings = QUICK
) -> list[Payload]:
    """What a feed gives above so many published blocks whose weights it was told."""
    async with serving(served) as node, connected(node.url, settings) as feed:
        assert isinstance(feed, NodeFeed)
        feed.learn(dict(zip(hashes(chain[:published]), weights(chain[:published]), strict=True)))
        return await everything(feed.follow(refs(chain[:published]), until=chain[-1].number))


@asynchronous
async def test_a_chain_without_work_is_as_heavy_whatever_its_node_serves() -> None:
    chain = grow(None, 6, difficulty=0)
    for served in (replay(chain), lying(chain, 0), lying(chain, 3), lying(chain, 5)):
        async with opened(served) as (_, feed):
            assert [payload.weight for payload in await everything(feed.follow(until=5))] == [1, 2, 3, 4, 5, 6]
        async with opened(served) as (_, feed):
            assert [payload.weight for payload in await everything(feed.follow(start=3, until=5))] == [4, 5, 6]


@pytest.mark.parametrize("settings", [ALONE, BESIDE], ids=["alone", "beside"])
@asynchronous
async def test_where_work_ended_the_total_stays_what_it_was(settings: FeedSettings) -> None:
    chain = merged_later(40)
    for served in (replay(chain), lying(chain, 4), lying(chain, 30)):
        async with serving(served) as node, connected(node.url, settings) as feed:
            payloads = await everything(feed.follow(until=43))
        assert [payload.weight for payload in payloads] == weights(chain)


@pytest.mark.parametrize("settings", [ALONE, BESIDE], ids=["alone", "beside"])
@pytest.mark.parametrize("published", [3, 4, 5, 7])
@asynchronous
async def test_a_resumed_feed_goes_on_from_the_weights_that_are_published(
    published: int, settings: FeedSettings
) -> None:
    chain = merged_later(40)
    whole = await resumed(replay(chain), chain, 0, settings)
    assert [payload.weight for payload in whole] == weights(chain)
    assert await resumed(lying(chain, 20), chain, published, settings) == whole[published:]


@asynchronous
async def test_a_resumed_feed_without_anything_to_add_up_needs_no_totals_of_its_node() -> None:
    chain = grow(None, 12, serve_total=False)
    payloads = await resumed(replay(chain), chain, 10, WITHOUT_SUMS)
    assert [payload.weight for payload in payloads] == [11_000, 12_000]


@pytest.mark.parametrize("published", [1, 5])
@asynchronous
async def test_the_first_block_after_a_start_is_held_to_what_is_published(published: int) -> None:
    chain = grow(None, 8)
    payloads = await resumed(lying(chain, published, times=1), chain, published)
    assert [payload.weight for payload in payloads] == weights(chain)[published:]
    with pytest.raises(IntegrityError) as refused:
        await resumed(lying(chain, published), chain, published)
    assert (refused.value.number, refused.value.check) == (published, "total difficulty")


class Headers(ReplayChain):
    """A node that says once of a header, asked for alone, what it is not."""

    lies: dict[str, dict[str, str]]

    def block(self, block_hash: str, *, full: bool) -> msgspec.Raw | None:
        shown = super().block(block_hash, full=full)
        if full or shown is None or (lie := self.lies.pop(block_hash, None)) is None:
            return shown
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(shown) | lie))


@pytest.mark.parametrize("lie", [{"difficulty": "0x1"}, {"stateRoot": "no root"}])
@asynchronous
async def test_a_published_header_is_held_to_its_hash_before_its_weight_is_read(lie: dict[str, str]) -> None:
    chain = merged_later(5)
    served = Headers([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.lies = {chain[6].name: lie}
    assert [payload.weight for payload in await resumed(served, chain, 7)] == weights(chain)[7:]
    assert not served.lies


@asynchronous
async def test_a_block_by_its_hash_has_the_weight_that_it_was_given_with() -> None:
    chain = merged_later(5)
    async with opened(lying(chain, 6)) as (_, feed):
        assert isinstance(feed, NodeFeed)
        payloads = await everything(feed.follow(until=8))
        assert await feed.block(chain[6].hash) == payloads[6]
