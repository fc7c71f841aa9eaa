"""Blocks of a feed by hash, on the node's chain or not."""

from __future__ import annotations

from ethereum_blocks import grow, replay
from feeding import asynchronous, everything, opened

from cardinal.feeds import ByHash
from cardinal_connectors.dev import open_feed as open_dev_feed


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
