"""A feed behind a gateway with every fault of real ones: it never ends, and yields every block once, in order."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from ethereum_blocks import build, grow, replay
from faulty_gateway import faulty_gateway
from feeding import asynchronous, connected, given, hashes
from prometheus_client import generate_latest

from cardinal import Consumer
from cardinal.apps import get
from cardinal.server.produce import ProduceService
from cardinal.server.produce.metrics import ProduceMetrics
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.settings import FeedSettings

if TYPE_CHECKING:
    from ethereum_blocks import Built

    from cardinal.protocols.streams.payload import AnyPayload, Payload

APP = get("evm", chain_id=1337)
SETTINGS = FeedSettings(poll=0.02, workers=0)


async def read(url: str, count: int, settings: FeedSettings = SETTINGS) -> tuple[list[Payload], float, dict[str, int]]:
    """All blocks, the seconds that they took, and the first node's failures by kind."""
    async with connected(url, settings) as feed, asyncio.timeout(600):
        began = time.monotonic()
        taken = [payload async for payload in feed.follow(until=count - 1)]
        seconds = time.monotonic() - began
        errors = {node.address: dict(node.errors) for node in feed.report.nodes}  # type: ignore[attr-defined]
        return taken, seconds, errors[url.split(",", maxsplit=1)[0].rstrip("/")]


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_faulty_answers_in_every_form_lose_and_end_nothing(scheme: str) -> None:
    chain = grow(None, 60)
    served = replay(chain)
    quick = replace(SETTINGS, fetch_blocks=10, rpc=replace(SETTINGS.rpc, backoff=0.002))
    drawn: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for seed in range(4):
        async with faulty_gateway(served, 0.15, seed) as (url, gateway):
            taken, _, errors = await read(url.replace("http", scheme, 1), 60, quick)
        assert given(taken) == hashes(chain)
        drawn += gateway.drawn
        counted.update(errors)
    assert {"one request", "rates", "methods", "wrong"} <= set(drawn)
    assert {"request", "rate", "method", "history", "parameters", "wrong"} <= set(counted)


@asynchronous
async def test_faulty_answers_at_the_head_lose_and_end_nothing() -> None:
    chain = grow(None, 30)
    served = replay(chain)
    served.set_head(chain[3].name, announce="silent")
    quick = replace(SETTINGS, poll=0.005, rpc=replace(SETTINGS.rpc, backoff=0.002))
    async with faulty_gateway(served, 0.2) as (url, _), connected(url, quick) as feed, asyncio.timeout(60):
        taken: list[Payload] = []
        async for payload in feed.follow(until=29):
            taken.append(payload)
            served.set_head(chain[min(payload.number + 1, 29)].name, announce="silent")
    assert given(taken) == hashes(chain)


class Published(NamedTuple):
    """What a producer did: the delivered blocks, the number of sealed Batches, its seconds and its metrics."""

    blocks: list[AnyPayload]
    batches: int
    seconds: float
    kinds: dict[str, float]


async def published(url: str, last: int) -> Published:
    """Run a producer until it has published all blocks."""
    metrics = ProduceMetrics(APP)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        service = ProduceService(
            *(open_feed(url, settings=SETTINGS), broker.url, APP),
            producer_id="one",
            start=0,
            stop=last,
            observer=metrics,
        )
        metrics.progress = lambda: service.progress
        try:
            await service.prepare()
            async with asyncio.timeout(600):
                began = time.monotonic()
                await service.run()
            seconds = time.monotonic() - began
            text = generate_latest(metrics.registry).decode()
            batches = service.progress.stats.blocks
        finally:
            await service.close()
        blocks = await asyncio.to_thread(consumed, broker)
    errors = re.findall(r'cardinal_produce_node_errors_total{kind="(\w+)",node="([^"]+)"} (\S+)', text)
    return Published(
        blocks, batches, seconds, {kind: float(count) for kind, node, count in errors if url.startswith(node)}
    )


def consumed(broker: MemoryBroker) -> list[AnyPayload]:
    with Consumer(broker.url, APP, until="end") as consumer:
        updates = list(consumer)
    assert not any(update.removed for update in updates)
    return [block for update in updates for block in update.added]


@pytest.mark.slow  # three producers of 2,000 blocks
@asynchronous
async def test_two_thousand_blocks_through_a_faulty_gateway_are_published_once_and_in_order() -> None:
    """None is wrong; alone, and with a clean node. The times beside clean runs before and after are printed."""
    chain = long_chain(2_000)
    served = replay(chain)
    async with faulty_gateway(served, 0.0) as (url, _):
        clean = await published(url, 1_999)
    async with faulty_gateway(served, 0.05) as (url, gateway):
        alone = await published(url, 1_999)
    async with faulty_gateway(served, 0.0) as (url, _):
        again = await published(url, 1_999)  # other work on the machine may have begun since
    async with faulty_gateway(served, 0.05, 2) as (url, _), faulty_gateway(served, 0.0) as (second, __):
        together = await published(f"{url},{second}", 1_999)
    print(  # noqa: T201 - figures of a long run
        f"clean {clean.seconds:.1f} and {again.seconds:.1f} s; "
        f"faulty {alone.seconds:.1f} s, of which {gateway.paused:.1f} s were requested; "
        f"with a clean node {together.seconds:.1f} s; faults {dict(gateway.drawn)}; counted {alone.kinds}"
    )
    assert [block.hash for block in clean.blocks] == hashes(chain)
    assert alone.blocks == clean.blocks
    assert together.blocks == clean.blocks
    assert {alone.batches, together.batches} == {2_000}
    assert {"request", "rate", "method", "history", "parameters", "wrong"} <= set(alone.kinds)


def long_chain(count: int) -> list[Built]:
    blocks: list[Built] = []
    for _ in range(count):
        blocks.append(build(blocks[-1] if blocks else None, transactions=6))
    return blocks
