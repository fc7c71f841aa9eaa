"""Which blocks of the node's chain are given: below a lag, as final as asked for, from a hash or a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import pytest
from ethereum_blocks import grow, replay
from feeding import address, asynchronous, connected, everything, given, hashes, next_after_looks, refs, serving, take

from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError
from cardinal_connectors.ethereum.feed import NodeFeed


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
async def test_only_what_is_as_final_as_asked_for_is_given(tag: str, caplog: pytest.LogCaptureFixture) -> None:
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
    told = [message for message in caplog.messages if f"says of no block that it is {tag}" in message]
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
