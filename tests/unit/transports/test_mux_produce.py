"""Producing to several places at once: what one of them lacks after a death is sent again, and what is refused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish
from cardinal.errors import ConfigurationError
from cardinal.producer import Producer
from cardinal.producing.survey.mux import common_chain
from cardinal.protocols.streams import BlockRef, Payload, split
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.server.produce import ProduceService
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import open_sink

Brokers = tuple[MemoryBroker, MemoryBroker]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with MemoryBroker(f"old-{uuid.uuid4().hex}") as old, MemoryBroker(f"new-{uuid.uuid4().hex}", partitions=3) as new:
        yield old, new


def mux(brokers: Brokers) -> str:
    return "mux:" + ",".join(broker.url for broker in brokers)


class Line:
    """A node with one chain from block 1 on."""

    def __init__(self) -> None:
        self.asked_above: BlockRef | None = None

    async def chain_id(self) -> int:
        return 7

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        if published:
            self.asked_above = published[-1]
        for payload in line(published[-1].number + 1 if published else start or 1, until or 0):
            yield payload

    async def close(self) -> None:
        """Nothing is open."""


async def produce(feed: Line, url: str, until: int) -> tuple[int | None, ...]:
    """What was half published, by number; the chain is on the topics then."""
    service = ProduceService(feed, url, Blocks(), producer_id="one", start=1, stop=until)
    await service.prepare()
    half = tuple(one.number for one in service.progress.partial)
    await asyncio.wait_for(service.run(), DEADLINE)
    await service.close()
    return half


def sealed(broker: MemoryBroker) -> set[bytes]:
    return {record.key[1:] for record in broker.records("block") if SEALED_HEADER in dict(record.headers)}


def hashes(first: int, last: int) -> set[bytes]:
    return {payload.hash for payload in line(first, last)}


@pytest.mark.parametrize("lacks", [0, 1])
def test_what_one_member_lacks_after_a_death_is_sent_again(brokers: Brokers, lacks: int) -> None:
    """Killed when one had three seals, and the other the first one's content alone."""
    app = Blocks()
    publish(mux(brokers), line(1, 10))
    publish(brokers[1 - lacks], line(11, 13))
    *content, _ = split(line(11, 11)[0], app.topics, app.default_topic)
    brokers[lacks].sink(app, producer_id="one").send(content, None).result(DEADLINE)
    feed = Line()
    half = asyncio.run(produce(feed, mux(brokers), 16))
    assert feed.asked_above == BlockRef(10, hash_of("10a"))
    assert half == (11,)
    assert [sealed(broker) for broker in brokers] == [hashes(1, 16)] * 2


def test_a_member_that_begins_now_is_not_given_what_was_before(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 10))
    asyncio.run(produce(Line(), mux(brokers), 12))
    asyncio.run(produce(Line(), mux(brokers), 14))
    assert (sealed(old), sealed(new)) == (hashes(1, 14), hashes(11, 14))


def refs(spec: str) -> list[BlockRef]:
    return [BlockRef(int(name[:-1]), hash_of(name)) for name in spec.split()]


@pytest.mark.parametrize(
    ("chains", "common"),
    [
        (["1a 2a 3a 4a", "1a 2a 3a"], "1a 2a 3a"),
        (["1a 2a 3a 4a", "3a 4a"], "1a 2a 3a 4a"),
        (["1a 2a 3a 4a", ""], "1a 2a 3a 4a"),
        (["1a 2a 3a 4a", "1a 2a 3b 4b 5b"], "1a 2a"),
        (["1a 2a 3a 4a", "3b"], "1a 2a"),
        (["8a 9a", "2a 3a"], "2a 3a"),
        (["1a 2a 3a", "2a 3a 4a", "3a 4a 5a"], "1a 2a 3a"),
        (["", ""], ""),
    ],
)
def test_the_chain_that_all_members_have_each_from_where_it_begins(chains: list[str], common: str) -> None:
    for order in (chains, chains[::-1]):
        assert common_chain([refs(chain) for chain in order]) == refs(common)


async def repaired(url: str, first: int, last: int, *, dry_run: bool = False) -> tuple[Repaired, list[int]]:
    sent: list[int] = []
    what = RepairRange(first, last, "one", dry_run)
    return await repair(Line(), url, Blocks(), what, lambda ref: sent.append(ref.number)), sent


def test_repair_completes_what_one_member_lacks(brokers: Brokers) -> None:
    publish(mux(brokers), line(1, 4))
    publish(brokers[0], line(5, 6))
    publish(mux(brokers), line(7, 8))
    found, would = asyncio.run(repaired(mux(brokers), 1, 8, dry_run=True))
    assert (found.complete, len(found.partial), found.missing, would) == (6, 2, (), [5, 6])
    assert asyncio.run(repaired(mux(brokers), 1, 8))[0].sent == 2
    assert [sealed(broker) for broker in brokers] == [hashes(1, 8)] * 2


def test_transactions_are_refused_before_a_member_is_opened() -> None:
    with pytest.raises(ConfigurationError, match="no transaction") as caught:
        open_sink("mux:null://,kafka://user:s3cr3t@host:1?transactional=update", Blocks(), producer_id="one")
    assert caught.value.setting == "transactional"
    assert "s3cr3t" not in str(caught.value)
    open_sink("mux:null://,null://", Blocks(), producer_id="one").close()


def test_a_standby_over_several_clusters_is_refused(brokers: Brokers) -> None:
    with pytest.raises(ConfigurationError, match="one of the members") as caught:
        Producer(mux(brokers), Blocks(), producer_id="one", redundancy="standby")
    assert caught.value.setting == "redundancy"
    assert not brokers[0].topics()
