"""Where a producing service starts, what it logs while it cannot publish, and how it replaces a failed producer."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish
from cardinal.cli.produce import _log_progress
from cardinal.errors import ConfigurationError, NodeAnswerError, NodeUnreachableError, TopicError, UnreachableError
from cardinal.feeds import FeedReport, NodeReport
from cardinal.protocols.streams.types import SEALED_HEADER
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.server.produce.conditions import Condition, Conditions
from cardinal.server.produce.stream_check import StreamCheck
from cardinal.transports.memory import enter
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until_async as until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from cardinal.protocols.streams import BlockRef, Payload
    from cardinal.server.produce import Start

CHAIN = line(1, 40)
HASH = CHAIN[4].hash
QUICK = ProduceSettings("one", watch_seconds=0.01, query_seconds=0.01, stalled_seconds=60.0)


class Node:
    """A node whose chain grows: its head, and how far its blocks may be published."""

    def __init__(self, head: int, final: int | None = None) -> None:
        self.at = head
        self.final = final
        self.target: int | None = None
        self.grown = asyncio.Event()

    @property
    def report(self) -> FeedReport:
        return FeedReport((NodeReport("http://node", self.at, 1, {}),))

    async def head(self) -> int:
        return self.at if self.final is None else min(self.at, self.final)

    async def chain_id(self) -> int:
        return 1

    async def locate(self, text: str) -> int:
        found = {f"0x{HASH.hex()}": 5, "2022-01-13T22:00:00+00:00": 7}
        if text not in found:
            raise NodeAnswerError(f"the node's chain has no block at {text}")
        return found[text]

    def grow(self, head: int, final: int | None = None) -> None:
        self.at, self.final = head, final
        self.grown.set()

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        number = published[-1].number + 1 if published else start or 1
        while until is None or number <= until:
            self.target = await self.head()
            while number <= min(self.target, self.target if until is None else until):
                yield CHAIN[number - 1]
                number += 1
            if until is None or number <= until:
                await self.grown.wait()
                self.grown.clear()

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        yield broker


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "cardinal.produce")
    return caplog


def lines(log: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in log.records if part in record.getMessage()]


@asynccontextmanager
async def running(broker: MemoryBroker, node: Node, start: Start = None) -> AsyncIterator[ProduceService]:
    service = ProduceService(node, broker.url, Blocks(), settings=QUICK, start=start)
    await service.prepare()
    task = asyncio.create_task(service.run())
    try:
        yield service
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await service.close()


def sealed(broker: MemoryBroker) -> list[bytes]:
    return [record.key[1:] for record in broker.records("block") if SEALED_HEADER in dict(record.headers)]


async def produce(broker: MemoryBroker, start: Start, stop: int | None = 12, head: int = 10) -> int:
    """The first block that is published."""
    node = Node(head)
    service = ProduceService(node, broker.url, Blocks(), settings=QUICK, start=start, stop=stop)
    try:
        await service.prepare()
        node.grow(12)
        await asyncio.wait_for(service.run(), DEADLINE)
    finally:
        await service.close()
    return next(number for number, payload in enumerate(CHAIN, 1) if payload.hash in sealed(broker))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (None, 10),
        ("latest", 10),
        ("earliest", 1),
        (3, 3),
        ("3", 3),
        (HASH, 5),
        (f"0x{HASH.hex()}", 5),
        ("2022-01-13T22:00:00+00:00", 7),
    ],
)
def test_a_new_stream_starts_at_the_given_block_and_at_the_head_by_default(
    broker: MemoryBroker, start: Start, first: int
) -> None:
    assert asyncio.run(produce(broker, start)) == first


@pytest.mark.parametrize(
    ("start", "stop", "says"),
    [
        (11, None, "the start, block 11, is above the node's head, block 10"),
        ("2030-01-01", None, "has no block at 2030-01-01"),
        (bytes(32), None, "has no block at 0x00"),
        (8, 7, "the stop, block 7, is below the start, block 8"),
        (None, 7, "the stop, block 7, is below the node's head, block 10"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_topics_are_created(
    broker: MemoryBroker, start: Start, stop: int | None, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        asyncio.run(produce(broker, start, stop))
    assert refused.value.setting == "start"
    assert not broker.topics()


def test_a_stream_that_has_blocks_continues_and_logs_that_the_start_is_ignored(
    broker: MemoryBroker, log: pytest.LogCaptureFixture
) -> None:
    publish(broker, CHAIN[:4])
    assert asyncio.run(produce(broker, 9)) == 1
    assert lines(log, "stream") == [
        "the stream block continues after block 4; its start is ignored, which is for new streams"
    ]
    log.clear()
    asyncio.run(produce(broker, None, stop=7))
    assert lines(log, "stream") == ["the stream block is at block 12: nothing to publish up to 7"]


def test_a_node_behind_the_published_head_is_waited_for_and_named_once(
    broker: MemoryBroker, log: pytest.LogCaptureFixture
) -> None:
    publish(broker, CHAIN[:8])

    async def behind() -> None:
        node = Node(5)
        async with running(broker, node) as service:
            await until(lambda: "behind" in service.progress.waits_for)
            node.grow(6)
            await until(lambda: "at block 6, behind the published block 8" in service.progress.waits_for)
            node.grow(9)
            await until(lambda: service.progress.published == 9 and not service.progress.waits_for)

    asyncio.run(behind())
    assert lines(log, "behind") == ["the node is at block 5, behind the published block 8"]
    assert len(lines(log, "the node has reached the published block (after ")) == 1


def test_a_first_block_and_a_finality_mark_are_waited_for(broker: MemoryBroker, log: pytest.LogCaptureFixture) -> None:
    async def held() -> None:
        node = Node(10, final=4)
        async with running(broker, node, 6) as service:
            await until(lambda: "begins with block 6" in service.progress.waits_for)
            node.grow(10, final=7)
            await until(lambda: service.progress.published == 7 and not service.progress.waits_for)
            node.grow(10, final=5)
            await until(lambda: "the node, less lag or finality, is at block 5" in service.progress.waits_for)
            node.grow(10, final=8)
            await until(lambda: service.progress.published == 8 and not service.progress.waits_for)

    asyncio.run(held())
    assert len(lines(log, "the node, less lag or finality, is at block")) == 2


@pytest.mark.slow
def test_a_broker_that_is_unreachable_is_named_once_and_so_is_its_return(
    broker: MemoryBroker, log: pytest.LogCaptureFixture
) -> None:
    async def away() -> None:
        node = Node(3)
        async with running(broker, node, 1) as service:
            await until(lambda: service.progress.published == 3)
            broker.hold()
            broker.close()
            node.grow(5)
            await until(lambda: not service.progress.connected)
            await until(lambda: service.progress.waits_for.startswith("the broker does not answer, and 2 blocks wait"))
            enter(broker.name, broker)
            broker.release()
            await until(lambda: service.progress.published == 5 and not service.progress.waits_for)
            assert service.progress.connected

    asyncio.run(away())
    assert len(lines(log, "the broker does not answer")) == 1
    assert len(lines(log, "the broker answers again (after ")) == 1


def test_counters_are_idle_while_the_producer_is_replaced(broker: MemoryBroker) -> None:
    async def replaced() -> None:
        node = Node(3)
        async with running(broker, node, 1) as service:
            await until(lambda: service.progress.published == 3)
            before = service.progress.stats
            broker.fail(lambda _: True)
            broker.close()  # no new one until it is back
            node.grow(30)
            await until(lambda: "the broker does not answer" in service.progress.waits_for)
            assert service.progress.renewals == 0
            assert service.progress.stats[:3] == before[:3]
            broker.fail(None)
            enter(broker.name, broker)
            await until(lambda: service.progress.renewals == 1)
            await until(lambda: service.progress.published == 30 and not service.unsealed)
            assert service.progress.stats.blocks == 30

    asyncio.run(replaced())


def test_what_lag_or_finality_holds_back_is_no_lag(broker: MemoryBroker, log: pytest.LogCaptureFixture) -> None:
    async def held() -> None:
        async with running(broker, Node(10, final=4), 1) as service:
            await until(lambda: service.progress.published == 4)
            now = service.progress
            assert (now.head, now.target, now.lag) == (10, 4, 0)
            _log_progress(now, now, 1.0)

    asyncio.run(held())
    assert len(lines(log, "block 4, node head 10, lag 0: ")) == 1


def test_the_lag_in_the_log_is_that_of_the_published_head(broker: MemoryBroker, log: pytest.LogCaptureFixture) -> None:
    """While the broker is away the feed goes on, up to what the producer holds."""

    async def away() -> None:
        async with running(broker, Node(10), 1) as service:
            await until(lambda: service.progress.published == 10)
            now = replace(service.progress, number=10, published=4)
            _log_progress(now, now, 1.0)

    asyncio.run(away())
    (record,) = [one for one in log.records if "lag 6" in one.getMessage()]
    assert isinstance(record.args, dict)
    assert (record.args["block"], record.args["lag"], record.args["head"]) == (10, 6, 10)


class Away(Node):
    """A node that does not answer yet."""

    async def head(self) -> int:
        if not self.at:
            raise NodeUnreachableError("no node answers at http://node", address="http://node")
        return await super().head()


def test_a_node_that_is_unreachable_at_the_start_is_waited_for(
    broker: MemoryBroker, log: pytest.LogCaptureFixture
) -> None:
    async def away() -> None:
        node = Away(0)
        service = ProduceService(node, broker.url, Blocks(), settings=QUICK, stop=12)
        starting = asyncio.create_task(service.prepare())
        await until(lambda: service.progress.waits_for == "no node answers at http://node; the service waits")
        assert not broker.topics()
        node.grow(12)
        await asyncio.wait_for(starting, DEADLINE)
        await asyncio.wait_for(service.run(), DEADLINE)
        await service.close()
        assert service.progress.stats.blocks == 1

    asyncio.run(away())
    assert len(lines(log, "no node answers")) == len(lines(log, "the node answers (after ")) == 1


def test_a_broker_that_is_unreachable_at_the_start_is_waited_for(broker: MemoryBroker) -> None:
    async def away() -> None:
        broker.close()
        service = ProduceService(Node(12), broker.url, Blocks(), settings=QUICK, stop=12)
        starting = asyncio.create_task(service.prepare())
        await until(lambda: service.progress.waits_for.endswith("; the service waits"))
        assert not starting.done()
        enter(broker.name, broker)
        await asyncio.wait_for(starting, DEADLINE)
        await service.close()

    asyncio.run(away())


def test_a_deleted_topic_is_named_when_two_answers_in_a_row_lack_it(broker: MemoryBroker) -> None:
    async def deleted() -> None:
        check = StreamCheck(broker.url, Blocks())
        assert not await check.query()
        with pytest.raises(TopicError, match="the topics a, b, block of this stream no longer exist: restore") as gone:
            await check.query()
        assert gone.value.topic == "a"
        broker.sink(Blocks(), producer_id="one")
        assert await check.query()

    asyncio.run(deleted())


@pytest.mark.slow
def test_another_producer_with_the_same_id_is_noticed(broker: MemoryBroker, log: pytest.LogCaptureFixture) -> None:
    async def doubled() -> None:
        settings = ProduceSettings("one", "standby", watch_seconds=0.01)
        services = [ProduceService(Node(3), broker.url, Blocks(), settings=settings, start=1) for _ in range(2)]
        for service in services:
            await service.prepare()
        tasks = [asyncio.create_task(service.run()) for service in services]
        await until(lambda: len(lines(log, "another running producer of this stream has the id 'one'")) == 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in services:
            await service.close()

    asyncio.run(doubled())


def test_a_condition_is_logged_when_it_begins_and_when_it_ends(log: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    conditions = Conditions(lambda: now[0])
    away = Condition("the broker is unreachable", "the broker answers again")
    silent = Condition("the node is unreachable", "")
    conditions.update({"broker": away, "node": silent})
    assert conditions.waits_for == "the broker is unreachable; the node is unreachable"
    now[0] = 110.0
    conditions.update({"broker": away._replace(begins="the broker is still unreachable")})
    conditions.update({"broker": away._replace(begins="the broker is still unreachable")})
    assert conditions.waits_for == "the broker is still unreachable"
    now[0] = 134.0
    conditions.update({})
    now[0] = 800.0
    conditions.update({"node": silent})
    now[0] = 1399.0
    conditions.update({"node": silent})
    now[0] = 1400.0
    conditions.update({"node": silent})
    assert conditions.waits_for == "the node is unreachable"
    assert [(r.levelname, r.getMessage()) for r in log.records] == [
        ("INFO", "the broker is unreachable"),
        ("WARNING", "the broker is still unreachable (for 10 s now)"),
        ("INFO", "the broker answers again (after 34 s)"),
        ("WARNING", "the node is unreachable (for 600 s now)"),
    ]


@pytest.mark.parametrize("patience", [0, 0.01])
def test_the_start_waits_no_longer_than_its_patience(patience: float) -> None:
    async def away() -> None:
        raise UnreachableError("the broker is away", address="here")

    with pytest.raises(UnreachableError, match="is away"):
        asyncio.run(Conditions(patience=patience).answer(away))
