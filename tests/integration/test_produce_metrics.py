"""Metrics of a producer and of a consumer, read over HTTP and compared with what was really done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from ethereum_blocks import Built, grow, replay
from feeding import QUICK, asynchronous, serving
from prometheus_client.parser import text_string_to_metric_families

from cardinal import Consumer, Producer
from cardinal.apps import get
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal.metrics import Endpoint
from cardinal.protocols.streams import Payload
from cardinal.server.produce import ProduceService, ProduceSettings
from cardinal.server.produce.metrics import ProduceMetrics
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ethereum.feed import open_feed
from waiting import until_async as until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from cardinal.protocols.streams.payload import AnyPayload
    from cardinal_devkit.testing.node import JsonRpcNode
    from cardinal_devkit.testing.replay import ReplayChain

DEADLINE = 60.0
GENESIS = 1_600_000_000
"""Time of block 0; each block is 12 seconds younger than its parent."""

APP = get("evm", chain_id=1337)
SETTINGS = ProduceSettings("one", watch_seconds=0.02, query_seconds=0.05, stalled_seconds=0.3)


def get_text(endpoint: Endpoint, path: str) -> tuple[int, str]:
    connection = HTTPConnection(endpoint.address, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scrape(endpoint: Endpoint, prefix: str) -> dict[str, float]:
    """Values by name, with the values of labels behind it: ``node_errors_total unreachable one``."""
    families = text_string_to_metric_families(get_text(endpoint, "/metrics")[1])
    return {
        " ".join((sample.name.removeprefix(prefix), *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


@dataclass
class Deployment:
    """Two nodes of one chain, a producer and its metrics; the consumer is each test's own."""

    broker: MemoryBroker
    chain: ReplayChain
    nodes: list[JsonRpcNode]
    service: ProduceService
    endpoint: Endpoint
    now: list[float]
    stop_first_node: Callable[[], Awaitable[None]] = field(repr=False)

    def values(self) -> dict[str, float]:
        return scrape(self.endpoint, "cardinal_produce_")

    async def publishes(self, number: int) -> None:
        await until(lambda: self.service.progress.published == number and not self.service.unsealed)
        await until(lambda: self.values()["lag_blocks"] == 0)


@contextlib.asynccontextmanager
async def deployment(trunk: list[Built]) -> AsyncIterator[Deployment]:
    chain, now = replay(trunk), [GENESIS + 12.0 * trunk[-1].number + 3]
    chain.safe, chain.finalized = 5, 3
    metrics = ProduceMetrics(APP, clock=lambda: now[0])
    async with contextlib.AsyncExitStack() as stack:
        broker = stack.enter_context(MemoryBroker(uuid.uuid4().hex))
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        nodes = [await first.enter_async_context(serving(chain)), await stack.enter_async_context(serving(chain))]
        feed = open_feed(",".join(node.url for node in nodes), settings=QUICK)
        service = ProduceService(feed, broker.url, APP, settings=SETTINGS, start="earliest", observer=metrics)
        endpoint = stack.enter_context(Endpoint("127.0.0.1:0", metrics.registry, metrics.waits_for))
        assert get_text(endpoint, "/readyz") == (503, "the service is connecting to the node\n")
        metrics.progress = lambda: service.progress
        assert get_text(endpoint, "/readyz") == (503, "the service is connecting to the stream\n")
        await service.prepare()
        running = asyncio.create_task(service.run())
        try:
            yield Deployment(broker, chain, nodes, service, endpoint, now, first.aclose)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.close()


def consumed(broker: MemoryBroker) -> list[AnyPayload]:
    with Consumer(broker.url, APP, until="end") as consumer:
        return [block for update in consumer for block in update.added]


@pytest.fixture(scope="module")
def trunk() -> list[Built]:
    return grow(None, 10)


@asynchronous
async def test_metrics_equal_what_a_producer_has_done(trunk: list[Built], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cardinal.produce")
    async with deployment(trunk) as deployed:
        await deployed.publishes(9)
        values = deployed.values()
        assert {
            name: values[name]
            for name in ("node_head", "published_head", "target", "blocks_total", "in_flight_blocks", "queued_bytes")
        } == {
            "node_head": 9,
            "published_head": 9,
            "target": 9,
            "blocks_total": 10,
            "in_flight_blocks": 0,
            "queued_bytes": 0,
        }
        assert (values["latency_seconds_count"], values["latency_seconds_sum"]) == (10, 12 * 45 + 10 * 3)
        assert values["queue_seconds_count"] == 10
        assert values["first_arrivals_total one"] == 10
        assert (values["producers"], values["duplicates_total"], values["divergences_total"]) == (1, 0, 0)
        assert (values["broker_connected"], values["node_connected"], values["ready"]) == (1, 1, 1)
        assert values["reorg_depth_blocks_count"] == 0
        followed = deployed.nodes[0].url
        assert values[f"node_height {followed}"] == 9
        assert values[f"node_requests_total {followed}"] > 10

        # A reorg: two blocks leave, four come.
        branch = grow(trunk[7], 4, "b")
        for one in branch:
            deployed.chain.add(one.block, one.receipts, one.uncles)
        deployed.chain.set_head(branch[-1].name, announce="silent")
        await deployed.publishes(11)
        values = deployed.values()
        assert (values["reorg_depth_blocks_count"], values["reorg_depth_blocks_sum"]) == (1, 2)
        assert (values["published_head"], values["blocks_total"]) == (11, 14)
        lines = [record.getMessage() for record in caplog.records if "reorg" in record.getMessage()]
        (said,) = lines
        assert said.startswith(f"reorg of depth 2 above block 7: from block 9 0x{trunk[9].hash.hex()[:10]}… to block ")

        # Another producer: copies of all blocks, one of which differs.
        blocks = [block for block in await asyncio.to_thread(consumed, deployed.broker) if isinstance(block, Payload)]
        with Producer(deployed.broker.url, APP, producer_id="two") as two:
            for block in blocks[:-1]:
                two.add(block)
            other = blocks[-1]
            two.add(Payload(other.number, other.hash, other.parent, other.weight + 1, other.updates))
            two.flush(DEADLINE)
            await until(lambda: deployed.values()["duplicates_total"] == len(blocks))
            values = deployed.values()
        assert (values["divergences_total"], values["producers"]) == (1, 2)
        assert values["first_arrivals_total one"] == 14
        assert "first_arrivals_total two" not in values
        assert values["producer_lag_seconds two"] >= 0 == values["producer_lag_seconds one"]


@asynchronous
async def test_metrics_distinguish_a_dead_node_a_hanging_broker_and_an_idle_chain(
    trunk: list[Built], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cardinal")
    async with deployment(trunk[:6]) as deployed:
        await deployed.publishes(5)
        idle = deployed.values()["idle_seconds"]

        def idles() -> bool:
            """A chain without a new block is no fault."""
            values = deployed.values()
            waited = values["idle_seconds"] > max(idle, SETTINGS.stalled_seconds)
            return waited and (values["stalled_seconds"], values["ready"]) == (0, 1)

        await until(idles)

        dead, alive = (node.url for node in deployed.nodes)
        await deployed.stop_first_node()
        for one in trunk[6:8]:
            deployed.chain.add(one.block, one.receipts, one.uncles)
        deployed.chain.set_head(trunk[7].name, announce="silent")
        await deployed.publishes(7)
        values = deployed.values()
        assert values[f"node_errors_total unreachable {dead}"] >= 1
        assert f"node_errors_total unreachable {alive}" not in values
        assert (values[f"node_height {alive}"], values["node_head"]) == (7, 7)

        deployed.broker.hold()
        for one in trunk[8:]:
            deployed.chain.add(one.block, one.receipts, one.uncles)
        deployed.chain.set_head(trunk[9].name, announce="silent")
        await until(lambda: deployed.values()["ready"] == 0)
        values = deployed.values()
        assert (values["node_head"], values["published_head"], values["lag_blocks"]) == (9, 7, 2)
        assert values["in_flight_blocks"] == 2
        assert values["queued_messages"] > 2
        assert values["queued_bytes"] > 100
        assert values["stalled_seconds"] >= SETTINGS.stalled_seconds
        await until(lambda: deployed.values()["oldest_in_flight_seconds"] >= SETTINGS.stalled_seconds)
        status, sentence = get_text(deployed.endpoint, "/readyz")
        assert (status, sentence.startswith("nothing was published for")) == (503, True), sentence
        assert get_text(deployed.endpoint, "/healthz") == (200, "ok\n")
        deployed.broker.release()
        await deployed.publishes(9)
        await until(lambda: get_text(deployed.endpoint, "/readyz")[0] == 200)
    said = [record.getMessage() for record in caplog.records if record.name == "cardinal.produce"]
    assert sum(line.startswith("nothing was published for") for line in said) == 1, "once a state"
    assert sum(line.startswith("blocks are published again (after ") for line in said) == 1


@asynchronous
async def test_metrics_of_a_lagging_consumer_give_its_lag_and_deliveries(trunk: list[Built]) -> None:
    async with deployment(trunk) as deployed:
        await deployed.publishes(9)
        with Consumer(deployed.broker.url, APP, start=0, max_update=1) as consumer:
            metrics = ConsumerMetrics(consumer, clock=lambda: deployed.now[0])
            with Endpoint("127.0.0.1:0", metrics.registry, metrics.waits_for) as endpoint:
                updates = aiter(consumer)

                async def delivered() -> dict[str, float]:
                    async with asyncio.timeout(DEADLINE):
                        metrics.delivered(await anext(updates))
                    return await asyncio.to_thread(scrape, endpoint, "cardinal_consumer_")

                while (values := await delivered())["head"] < 9:
                    assert values["blocks_total added"] == values["head"] + 1 == values["seq"]
                branch = grow(trunk[7], 4, "b")
                for one in branch:
                    deployed.chain.add(one.block, one.receipts, one.uncles)
                deployed.chain.set_head(branch[-1].name, announce="silent")
                await deployed.publishes(11)
                while (values := await delivered())["head"] < 11:
                    assert values["connected"] == 1
                assert (values["reorg_depth_blocks_count"], values["reorg_depth_blocks_sum"]) == (1, 2)
                assert (values["blocks_total added"], values["blocks_total removed"]) == (14, 2)
                assert values["seq"] == 16
                assert values["missing_payloads_total"] == 0
                assert min(values["lag_records"], values["lag_seconds"]) > 0, "the update is being handled"
                assert values["open_blocks"] == 0
                assert values["held_bytes"] > 0
                assert values["delivery_latency_seconds_count"] >= 4, "blocks of the backlog do not count"
