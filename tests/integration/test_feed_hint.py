"""A head that is announced after the feed has looked is given for the announcement's sake alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from ethereum_blocks import grow, replay
from feeding import QUICK, asynchronous, opened, take

from cardinal_connectors.ethereum.settings import FeedSettings

NEVER = FeedSettings(rpc=QUICK.rpc, poll=3600.0)


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

    async with opened(served, scheme, NEVER) as (node, feed):
        payloads = feed.follow()
        assert [one.hash for one in await take(payloads, 3)] == [one.hash for one in chain[:3]]
        node.before = move_behind_its_back
        assert [one.hash for one in await take(payloads, 5)] == [one.hash for one in chain[3:]]
