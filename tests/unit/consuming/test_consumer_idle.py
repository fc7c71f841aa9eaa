"""``idle_timeout``: what was there at opening is read to its end, however long that takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from blocks import Blocks, line, publish
from cardinal.consumer import Consumer
from cardinal.protocols.streams.types import Partition, Record
from cardinal.testing.memory import MemoryBroker

IDLE = 5.0
BLOCKS = 30


class Slow(MemoryBroker):
    """To read one record takes longer than a consumer may be idle; to look in vain does not."""

    now = 0.0

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        found = super().read(positions, min(limit, 1), timeout)
        self.now += 2 * IDLE if found else IDLE / 8
        return found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slow_machine_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:  # noqa: FBT001
    with Slow(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, BLOCKS))
        monkeypatch.setattr("cardinal.consumer.time", SimpleNamespace(monotonic=lambda: broker.now))
        with Consumer(broker.url, Blocks(), idle_timeout=IDLE) as consumer:

            async def numbers() -> list[int]:
                return [block.number async for update in consumer for block in update.added]

            found = (
                asyncio.run(numbers())
                if asynchronous
                else [block.number for update in consumer for block in update.added]
            )
        assert found == [*range(1, BLOCKS + 1)]
