"""The node feed while the chain moves between any two of its requests: nothing wrong, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from ethereum_blocks import Built, build, grow, replay
from feeding import QUICK, SCHEMES, assert_lawful, asynchronous, opened

from cardinal_connectors.ethereum.settings import FeedSettings

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed
    from cardinal.protocols.streams.payload import Payload

MOVES = 60
RESTLESS = FeedSettings(rpc=QUICK.rpc, poll=0.005)


class Storm:
    """A chain that moves at random: grows, forks, rewinds, goes back, forgets orphans, lags and lies."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._moves = 0
        self.blocks: dict[str, Built] = {}
        trunk = grow(None, 20)
        self.chain = replay(trunk)
        self.blocks.update((block.name, block) for block in trunk)
        self.head = trunk[-1]
        self.last: Built | None = None

    def strike(self, method: str, _: Sequence[object]) -> None:
        """Called before each answer of the node."""
        if method.startswith("eth_get") and self.last is None and self._dice.random() < 0.3:
            self._moves += 1
            if self._moves < MOVES:
                self._dice.choice([self._extend, self._extend, self._fork, self._rewind, self._return_to])()
            else:
                self.last = self._grown(self.head, 3, "last")
                self._become(self.last)

    def canonical(self, head: Built) -> list[Built]:
        path = [head]
        while path[-1].number:
            path.append(self.blocks[path[-1].block["parentHash"]])
        return path[::-1]

    def _grown(self, parent: Built, count: int, branch: str) -> Built:
        for _ in range(count):
            parent = build(parent, f"{branch}{self._moves}", transactions=self._dice.randint(0, 3))
            self.blocks[parent.name] = parent
            self.chain.add(parent.block, parent.receipts)
            self._spoil(parent)
        return parent

    def _spoil(self, block: Built) -> None:
        """Sometimes an answer comes late, or wrong the first time."""
        if self._dice.random() < 0.2:
            self.chain.hold(block.name, self._dice.choice(["block", "receipts"]), self._dice.randint(1, 2))
        elif self._dice.random() < 0.2 and block.receipts:
            self.chain.swap(block.name, "receipts", copy.deepcopy(block.receipts)[:-1], 1)

    def _become(self, head: Built) -> None:
        self.head = head
        self.chain.set_head(head.name, announce=self._dice.choice(["each", "final", "silent"]))

    def _extend(self) -> None:
        self._become(self._grown(self.head, self._dice.randint(1, 3), "x"))

    def _fork(self) -> None:
        old = self.canonical(self.head)
        ancestor = old[max(0, len(old) - 1 - self._dice.randint(1, 8))]
        self._become(self._grown(ancestor, self._dice.randint(1, 9), "f"))
        if self._dice.random() < 0.5:
            for block in old[ancestor.number + 1 :]:
                self.chain.forget(block.name)

    def _rewind(self) -> None:
        path = self.canonical(self.head)
        self.head = path[max(0, len(path) - 1 - self._dice.randint(1, 4))]
        self.chain.set_head(self.head.name, announce="silent")

    def _return_to(self) -> None:
        """To any block that the node still has with all its ancestors."""
        whole = [block for block in self.blocks.values() if self._is_had(block)]
        self._become(self._dice.choice(whole[-10:]))

    def _is_had(self, block: Built) -> bool:
        return all(self.chain.block(one.name, full=False) is not None for one in self.canonical(block))


async def read_to_the_last(storm: Storm, feed: BlockFeed) -> list[Payload]:
    taken: list[Payload] = []
    async with asyncio.timeout(60):
        async for payload in feed.follow():
            taken.append(payload)
            if storm.last is not None and payload.hash == storm.last.hash:
                break
    return taken


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", range(8))
@asynchronous
async def test_chain_that_moves_between_any_two_requests_is_given_whole(seed: int, scheme: str) -> None:
    storm = Storm(seed)
    async with opened(storm.chain, scheme, RESTLESS) as (node, feed):
        node.before = storm.strike
        taken = await read_to_the_last(storm, feed)
    assert storm.last is not None
    assert_lawful(taken)
    by_hash = {payload.hash: payload for payload in taken}
    for block in storm.canonical(storm.last):
        assert by_hash[block.hash].weight == block.total
    built = {block.hash for block in storm.blocks.values()}
    assert set(by_hash) <= built
