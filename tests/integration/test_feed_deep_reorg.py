"""A node's reorg deeper than the threshold: feed, service and producer take consumers along by a reorg channel."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from ethereum_blocks import Built, grow, replay
from feeding import QUICK, SCHEMES, address, asynchronous, serving

from blocks import DEADLINE
from cardinal import Consumer, apps
from cardinal.server.produce import ProduceService
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ethereum.feed import open_feed
from examples import few

CHAIN_ID, THRESHOLD, TRUNK = 1337, 8, 12
APP = apps.get("evm", chain_id=CHAIN_ID, reorg_threshold=THRESHOLD)


def consumed(
    broker: MemoryBroker, last: Built, reorgs: list[int], at_the_old_end: tuple[bytes, threading.Event]
) -> list[bytes]:
    """The chain up to a block, and how many blocks each update removed."""
    chain: list[bytes] = []
    with Consumer(broker.url, APP, idle_timeout=DEADLINE) as reading:
        for update in reading:
            for payload in update.removed:
                assert chain.pop() == payload.hash
            chain += [payload.hash for payload in update.added]
            if update.removed:
                reorgs.append(len(update.removed))
            if chain[-1] == at_the_old_end[0]:
                at_the_old_end[1].set()
            if chain[-1] == last.hash:
                return chain
    raise AssertionError("the consumer ended")


@pytest.mark.parametrize("depth", [THRESHOLD - 1, THRESHOLD + 5, 80], ids=["within", "below", "far below"])
@pytest.mark.parametrize("scheme", few(1, SCHEMES))
@asynchronous
async def test_reorg_of_any_depth_is_one_update(scheme: str, depth: int) -> None:
    trunk = grow(None, TRUNK)
    old, new = grow(trunk[-1], depth, "a"), grow(trunk[-1], depth + 2, "b")
    served = replay([*trunk, *old], new)
    served.set_head(old[-1].name, announce="silent")
    reorgs: list[int] = []
    reached = threading.Event()
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        async with serving(served) as node:
            feed = open_feed(address(node, scheme), settings=QUICK)
            service = ProduceService(feed, broker.url, APP, producer_id="one", start=0, stop=new[-1].number)
            await service.prepare()
            producing = asyncio.create_task(service.run())
            reading = asyncio.create_task(asyncio.to_thread(consumed, broker, new[-1], reorgs, (old[-1].hash, reached)))
            assert await asyncio.to_thread(reached.wait, DEADLINE)
            served.set_head(new[-1].name, announce="final")
            async with asyncio.timeout(DEADLINE):
                await producing
                chain = await reading
            await service.close()
        assert chain == [block.hash for block in (*trunk, *new)]
        assert reorgs == [depth]
        assert any("-re-" in topic for topic in broker.topics()) == (depth > THRESHOLD)
