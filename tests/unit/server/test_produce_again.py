"""A producer that starts again: where it goes on, what of the life before it completes, and when."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, messages, name_of, publish
from cardinal.errors import NodeAnswerError
from cardinal.producing.survey.mux import survey_members
from cardinal.protocols.streams.publishing.splitter import split_reorg
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from cardinal.protocols.streams import BlockRef, Payload


class Node:
    """Its chain, and beside it what it has by hash alone."""

    def __init__(self, chain: list[Payload], beside: Sequence[Payload] = (), *, ends: bool = True) -> None:
        self.chain = chain
        self.has = {payload.hash: payload for payload in (*chain, *beside)}
        self.ends = ends
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
        if not self.ends:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        yield broker


async def run(service: ProduceService) -> list[BlockRef]:
    """Where it went on."""
    published = await service.prepare()
    await asyncio.wait_for(service.run(), DEADLINE)
    await service.close()
    return published


def produced(broker: MemoryBroker, node: Node) -> tuple[list[BlockRef], ProduceService]:
    service = ProduceService(node, broker.url, Blocks(), producer_id="one")
    return asyncio.run(run(service)), service


def sealed(broker: MemoryBroker) -> list[bytes]:
    """Sealed blocks in the order of their Batches; the topic has one partition."""
    return [record.key[1:] for record in broker.records("block") if SEALED_HEADER in dict(record.headers)]


def end_of(broker: MemoryBroker) -> str:
    return name_of(survey_members(broker.url, Blocks(), producer_id="one").chain[-1].hash)


@pytest.mark.parametrize("last", [61, 100])
def test_after_a_reorg_through_a_channel_a_restart_goes_on_where_it_was(broker: MemoryBroker, last: int) -> None:
    """The branch stands in the channel alone; some blocks on the main topics follow it, or none yet."""
    left, taken = line(1, 60), line(31, last, "b", below="30a")
    produced(broker, Node([*left, *taken]))
    published, service = produced(broker, Node([*left[:30], *taken]))
    assert published == [payload.ref for payload in (*left[:30], *taken)]
    assert service.progress.stats.blocks == 0


@pytest.mark.parametrize("seals", [True, False])
def test_a_channel_that_has_not_ended_or_is_not_there_is_not_gone_on_above(
    broker: MemoryBroker, *, seals: bool
) -> None:
    """Killed between two blocks of the channel: no consumer switches, and the branch has to go again as a whole."""
    left, taken = line(1, 60), line(31, 62, "b", below="30a")
    publish(broker, left)
    announcement, channel = split_reorg(left[29].ref, taken, Blocks().topics, Blocks().default_topic)
    sink = broker.sink(Blocks(), producer_id="one")
    sink.send([announcement], None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.open_channel(channel[0].topic)
    for message in channel[:-1]:
        seal = seals and message.key[:1] == b"\0"
        sink.send([] if seal else [message], message if seal else None).result(DEADLINE)
    assert end_of(broker) == "60a"
    sink.send(channel[-1:], None).result(DEADLINE)
    assert end_of(broker) == "62b"


def test_a_block_of_a_channel_that_is_neither_sealed_nor_whole_is_not_gone_on_above(broker: MemoryBroker) -> None:
    left, taken = line(1, 60), line(31, 64, "b", below="30a")
    publish(broker, left)
    announcement, channel = split_reorg(left[29].ref, taken, Blocks().topics, Blocks().default_topic)
    lost = next(one for one in channel if one.key[1:33] == taken[-2].hash and one.key[:1] != b"\0")
    sink = broker.sink(Blocks(), producer_id="one")
    sink.open_channel(channel[0].topic)
    sink.send([announcement, *(one for one in channel if one is not lost)], None).result(DEADLINE)
    assert end_of(broker) == "62b"


CHAIN = line(1, 12)
LEFT = line(6, 6, "b", below="5a")[0]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in other threads
            await asyncio.sleep(0.01)


def left_of(service: ProduceService) -> list[str]:
    return [name_of(one.hash) for one in service.progress.partial]


def test_bytes_that_come_after_the_first_look_are_found_when_all_is_sealed(broker: MemoryBroker) -> None:
    """A killed producer's: the block is completed where the node has it, and named where it has not."""
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")

    async def late(payload: Payload, beside: Sequence[Payload] = ()) -> tuple[list[str], list[str]]:
        node = Node(CHAIN, beside)
        service = ProduceService(node, broker.url, Blocks(), producer_id="one", stop=12)
        await service.prepare()
        named = left_of(service)
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
        await asyncio.wait_for(service.run(), DEADLINE)
        await service.close()
        return named, left_of(service)

    assert asyncio.run(late(LEFT, [LEFT])) == ([], [])
    assert LEFT.hash in sealed(broker)
    other = line(7, 7, "c", below="6a")[0]
    assert asyncio.run(late(other)) == ([], ["7c"])


def test_a_service_that_follows_looks_again_after_a_while_and_when_it_is_told_to_stop(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")
    other = line(7, 7, "c", below="6a")[0]

    async def follow() -> list[str]:
        node = Node(CHAIN, [LEFT], ends=False)
        settings = ProduceSettings("one", look_again_seconds=0.2)
        service = ProduceService(node, broker.url, Blocks(), settings=settings)
        await service.prepare()
        killed.send(messages(LEFT)[:-1], None).result(DEADLINE)
        running = asyncio.create_task(service.run())
        await until(lambda: LEFT.hash in sealed(broker))
        assert node.asked == ["6b"], "what is under way is not taken for half published"
        killed.send(messages(other)[:-1], None).result(DEADLINE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
        return left_of(service)

    assert asyncio.run(follow()) == ["7c"]


def test_what_comes_by_itself_is_not_asked_for_and_the_rest_goes_parents_first(broker: MemoryBroker) -> None:
    """A backfill was killed when no Batch of so many blocks had gone; beside them there is a branch."""
    branch = line(6, 12, "b", below="5a")
    publish(broker, CHAIN[:5])
    killed = broker.sink(Blocks(), producer_id="one")
    for payload in (*CHAIN[5:], *branch):
        killed.send(messages(payload)[:-1], None).result(DEADLINE)
    node = Node(CHAIN, branch)
    _, service = produced(broker, node)
    assert sorted(node.asked) == sorted(name_of(payload.hash) for payload in branch)
    assert service.progress.stats.blocks == 14, "each once"
    assert left_of(service) == []
    places = {block: place for place, block in enumerate(sealed(broker))}
    for line_ in (CHAIN, branch):
        assert [places[payload.hash] for payload in line_] == sorted(places[payload.hash] for payload in line_)


def test_a_half_block_above_what_the_feed_gives_is_left_until_it_gets_there(broker: MemoryBroker) -> None:
    """As with --lag or --finality: its node has it, and it is not to be published yet."""
    publish(broker, CHAIN[:5])
    broker.sink(Blocks(), producer_id="one").send(messages(CHAIN[11])[:-1], None).result(DEADLINE)
    other = line(7, 7, "c", below="6a")[0]
    broker.sink(Blocks(), producer_id="one").send(messages(other)[:-1], None).result(DEADLINE)
    _, service = produced(broker, Node(CHAIN[:9], CHAIN))
    assert (sorted(left_of(service)), end_of(broker)) == (["12a", "7c"], "9a")
    assert CHAIN[11].hash not in sealed(broker)
    named = [(one.number, name_of(one.hash)) for one in service.progress.above]
    assert named == [(12, "12a")], "the other one the node does not have"
    assert service.progress.absent == {other.hash}


class Refusing(Node):
    """Does not serve one of the blocks now."""

    async def block(self, block_hash: bytes) -> Payload | None:
        if name_of(block_hash) == "7c":
            raise NodeAnswerError("the node answers with an error")
        return await super().block(block_hash)


def test_only_what_the_node_has_answered_to_lack_is_absent(broker: MemoryBroker) -> None:
    publish(broker, CHAIN[:5])
    for lost in (line(7, 7, "c", below="6a")[0], line(8, 8, "d", below="7a")[0]):
        broker.sink(Blocks(), producer_id="one").send(messages(lost)[:-1], None).result(DEADLINE)
    _, service = produced(broker, Refusing(CHAIN[:9]))
    assert sorted(left_of(service)) == ["7c", "8d"]
    assert [name_of(one) for one in service.progress.absent] == ["8d"]
