"""Where a long way is fetched by number while the chain moves: nothing twice, and not block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ethereum_blocks import grow, replay
from feeding import QUICK, assert_lawful, asynchronous, given, hashes, opened, take

if TYPE_CHECKING:
    from ethereum_blocks import Built

    from cardinal.testing.replay import ReplayChain

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
    asked: Counter[str] = Counter()

    def count(method: str, params: Sequence[object]) -> None:
        if params[-1:] == [True]:
            asked[method] += 1

    async with opened(served) as (node, feed):
        payloads = feed.follow()
        taken = await take(payloads, len(trunk) + len(old))
        node.before = count
        served.set_head(new[-1].name, announce="silent")
        taken += await take(payloads, len(new))
    assert given(taken) == hashes([*trunk, *old, *new])
    assert asked["eth_getBlockByHash"] <= QUICK.walk, "it went on by hash, each block in memory"
    assert asked["eth_getBlockByNumber"] >= len(new)
