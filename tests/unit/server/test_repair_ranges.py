"""Completing a range by hand, around a broker in memory: what is read and held for it, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, messages, name_of, publish
from cardinal.errors import ConfigurationError
from cardinal.producer import Producer
from cardinal.producing.survey import height_range
from cardinal.producing.survey.mux import range_in_members
from cardinal.server.produce import ProduceService
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from cardinal.protocols.streams import BlockRef, Payload

CHAIN = line(1, 12)


class Node:
    """A chain whose head is the last block: it waits for what is above. Some blocks it has by hash alone."""

    def __init__(self, chain: list[Payload] = CHAIN, beside: Sequence[Payload] = ()) -> None:
        self.chain = chain
        self.has = {payload.hash: payload for payload in (*chain, *beside)}
        self.target: int | None = None

    async def chain_id(self) -> int:
        return 1

    async def block(self, block_hash: bytes) -> Payload | None:
        return self.has.get(block_hash)

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        await asyncio.sleep(0)
        head = self.chain[-1].number
        self.target = head if until is None else min(head, until)
        known = {ref.hash for ref in published}
        for payload in self.chain:
            if payload.hash not in known and (start or 0) <= payload.number <= self.target:
                yield payload
        if self.target != until:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def repaired(broker: MemoryBroker, node: Node, first: int, last: int, *, dry_run: bool = False) -> Repaired:
    async def within() -> Repaired:
        what = RepairRange(first, last, "fix", dry_run)
        return await asyncio.wait_for(repair(node, broker.url, Blocks(), what, lambda _: None), DEADLINE)

    return asyncio.run(within())


def left(done: Repaired) -> list[tuple[int | None, str]]:
    return [(one.number, name_of(one.hash)) for one in done.left]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_range_that_ends_above_the_head_is_refused_instead_of_waited_for(
    broker: MemoryBroker, *, dry_run: bool
) -> None:
    publish(broker, CHAIN[:5])
    before = len(broker.records())
    for first in (3, 14):
        with pytest.raises(ConfigurationError, match="up to 12 now, and block 15 is above") as caught:
            repaired(broker, Node(), first, 15, dry_run=dry_run)
        assert caught.value.setting == "stop"
    assert len(broker.records()) == before
    assert repaired(broker, Node(), 3, 12, dry_run=dry_run).sent == (0 if dry_run else 7)


def test_what_has_no_batch_is_sent_where_the_node_has_it_by_hash_and_named_where_it_has_not(
    broker: MemoryBroker,
) -> None:
    known, unknown, above = (line(number, number, "b", below=f"{number - 1}a")[0] for number in (4, 6, 11))
    publish(broker, CHAIN)
    killed = broker.sink(Blocks(), producer_id="killed")
    for payload in (known, unknown, above):
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
    node = Node(beside=[known, above])
    done = repaired(broker, node, 2, 8, dry_run=True)
    assert ([ref.hash for ref in done.missing], left(done), done.sent) == ([known.hash], [(None, "6b")], 0)
    assert repaired(broker, node, 2, 8).sent == 1
    done = repaired(broker, node, 2, 8)
    assert (done.missing, left(done), done.complete) == ((), [(None, "6b")], 7)


def test_what_has_no_batch_is_not_looked_for_in_a_very_wide_range(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, CHAIN)
    broker.sink(Blocks(), producer_id="killed").send(messages(line(6, 6, "b", below="5a")[0])[:-1], None)
    assert repaired(broker, Node(), 1, 12).looked
    monkeypatch.setattr(height_range, "_LOOKED_AROUND", 11)
    done = repaired(broker, Node(), 1, 12)
    assert (done.looked, left(done), done.complete) == (False, [], 12)


def test_what_is_held_of_a_stream_is_the_range_and_some_next_to_it(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2_000))
    found = range_in_members(broker.url, Blocks(), 1_000, 1_009)
    numbers = {batch.number for batch in found.batches.values()}
    assert numbers >= set(range(980, 1_030))
    assert len(found.batches) < 200
    assert {found.batches[block].number for block in found.complete} == set(range(1_000, 1_010))


def test_what_came_through_the_channel_of_a_reorg_is_not_sent_again(broker: MemoryBroker) -> None:
    old, taken = line(1, 60), line(31, 70, "b", below="30a")

    async def produce() -> None:
        service = ProduceService(Node([*old, *taken]), broker.url, Blocks(), producer_id="one", stop=70)
        await service.prepare()
        await asyncio.wait_for(service.run(), DEADLINE)
        await service.close()

    asyncio.run(produce())
    assert any("-re-" in topic for topic in broker.topics())
    done = repaired(broker, Node([*old[:30], *taken]), 1, 70)
    assert (done.complete, done.missing, done.sent) == (70, (), 0)


def test_a_sealed_block_that_has_lost_a_message_is_reported_and_sent_again(broker: MemoryBroker) -> None:
    publish(broker, [*CHAIN[:5], *CHAIN[6:]])
    *content, batch = messages(CHAIN[5])
    broker.sink(Blocks(), producer_id="one").send(content[1:], batch).result(DEADLINE)
    done = repaired(broker, Node(), 3, 9, dry_run=True)
    assert (done.complete, done.partial, done.missing, done.sent) == (6, (CHAIN[5].ref,), (), 0)
    assert repaired(broker, Node(), 3, 9).sent == 1
    done = repaired(broker, Node(), 3, 9)
    assert (done.complete, done.partial, done.sent) == (7, (), 0)


def test_a_topic_that_was_emptied_is_reported_and_filled_again(broker: MemoryBroker) -> None:
    publish(broker, CHAIN)
    for partition, end in {tp: high for tp, (_, high) in broker.source(["a"]).watermarks().items()}.items():
        broker.trim(*partition, end)
    done = repaired(broker, Node(), 1, 12, dry_run=True)
    assert (done.complete, [ref.number for ref in done.partial]) == (0, list(range(1, 13)))
    assert repaired(broker, Node(), 1, 12).sent == 12
    assert repaired(broker, Node(), 1, 12).complete == 12


def test_a_block_that_a_channel_has_lost_a_message_of_is_sent_again(broker: MemoryBroker) -> None:
    old, taken = line(1, 60), line(31, 70, "b", below="30a")
    publish(broker, old)
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.reorg(old[29].ref, taken).result(DEADLINE)
    channel = next(topic for topic in broker.topics() if "-re-" in topic)
    broker.trim(channel, 0, 4)
    node = Node([*old[:30], *taken])
    assert repaired(broker, node, 31, 70, dry_run=True).missing == (taken[0].ref,)
