"""Updates for an event loop, where whoever waits for one may give up waiting."""

from __future__ import annotations

import asyncio
import uuid

from blocks import DEADLINE, Blocks, line, publish, steps
from cardinal.consumer import Consumer
from cardinal.testing.memory import MemoryBroker


def test_whoever_waits_for_an_update_in_vain_waits_again_and_misses_none() -> None:
    async def read(broker: MemoryBroker) -> list[str]:
        with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
            updates, found = aiter(consumer), []
            while len(found) < 3:
                found += steps([await asyncio.wait_for(anext(updates), DEADLINE)])
            for _ in range(2):
                try:
                    await asyncio.wait_for(anext(updates), 0.05)
                except TimeoutError:
                    found.append("nothing")
            publish(broker, line(4, 5))
            while len(found) < 7:
                found += steps([await asyncio.wait_for(anext(updates), DEADLINE)])
            return found

    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 3))
        assert asyncio.run(read(broker)) == ["+1a", "+2a", "+3a", "nothing", "nothing", "+4a", "+5a"]


def test_it_ends_where_nothing_comes_for_too_long_and_where_it_is_closed() -> None:
    async def read(broker: MemoryBroker) -> None:
        with Consumer(broker.url, Blocks(), idle_timeout=0.2) as consumer:
            assert steps([update async for update in consumer]) == ["+1a", "+2a"]
            assert consumer.ready
        assert [update async for update in consumer] == []

    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 2))
        asyncio.run(read(broker))
