"""A producer that starts again: where it goes on, what of the life before it completes, and when."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, name_of, publish
from cardinal.producing.members import survey_members
from cardinal.protocols.streams.splitter import split_reorg
from cardinal.server.produce import ProduceService
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from cardinal.protocols.streams import BlockRef, Payload


class Node:
    """Its chain, and beside it what it has by hash alone."""

    def __init__(self, chain: list[Payload], beside: Sequence[Payload] = ()) -> None:
        self.chain = chain
        self.has = {payload.hash: payload for payload in (*chain, *beside)}
        self.asked: list[str] = []

    async def chain_id(self) -> int:
        return 1

    async def block(self, block_hash: bytes) -> Payload | None:
        self.asked.append(name_of(block_hash))
        return self.has.get(block_hash)

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        known = {ref.hash for ref in published}
        for payload in self.chain:
            above = start is None or payload.number >= start
            if payload.hash not in known and (known or above) and (until is None or payload.number <= until):
                yield payload

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


async def run(service: ProduceService, until: int | None = None) -> list[BlockRef]:
    """Where it went on."""
    published = await service.prepare()
    await asyncio.wait_for(service.run(published, start=None, until=until), DEADLINE)
    await service.close()
    return published


def produced(broker: MemoryBroker, node: Node) -> tuple[list[BlockRef], ProduceService]:
    service = ProduceService(node, broker.url, Blocks(), producer_id="one")
    return asyncio.run(run(service)), service


def end_of(broker: MemoryBroker) -> str:
    return name_of(survey_members(broker.url, Blocks(), producer_id="one").chain[-1].hash)


@pytest.mark.parametrize("last", [61, 100])
def test_after_a_reorg_through_a_channel_a_restart_goes_on_where_it_was(broker: MemoryBroker, last: int) -> None:
    """The branch stands in the channel alone; some blocks on the main topics follow it, or none yet."""
    left, taken = line(1, 60), line(31, last, "b", below="30a")
    produced(broker, Node([*left, *taken]))
    published, service = produced(broker, Node([*left[:30], *taken]))
    assert published == [payload.ref for payload in (*left[:30], *taken)]
    assert service.progress.blocks == 0


def test_a_channel_that_has_not_ended_or_is_not_there_is_not_gone_on_above(broker: MemoryBroker) -> None:
    """Killed between two blocks of the channel: no consumer switches, and the branch has to go again as a whole."""
    left, taken = line(1, 60), line(31, 62, "b", below="30a")
    publish(broker, left)
    announcement, messages = split_reorg(left[29].ref, taken, Blocks().topics, Blocks().default_topic)
    sink = broker.sink(Blocks(), producer_id="one")
    sink.send([announcement], None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.open_channel(messages[0].topic)
    for message in messages[:-1]:
        batch = message.key[:1] == b"\0"
        sink.send([] if batch else [message], message if batch else None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.send(messages[-1:], None).result(DEADLINE)
    assert end_of(broker) == "62b"
