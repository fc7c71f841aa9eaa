"""What is told of a block beside the block itself: its total difficulty, its uncles, what is final."""

from __future__ import annotations

import pytest
from ethereum_blocks import build, grow, header_rlp, replay
from feeding import (
    QUICK,
    asynchronous,
    everything,
    given,
    hashes,
    opened,
    refs,
)

from cardinal.errors import NodeAnswerError
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum.settings import FeedSettings


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
