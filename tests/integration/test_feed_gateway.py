"""A feed behind a gateway with every fault of real ones: it never ends, and yields every block once, in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from ethereum_blocks import grow, replay
from faulty_gateway import faulty_gateway
from feeding import asynchronous, connected, given, hashes

from cardinal_connectors.ethereum.settings import FeedSettings

if TYPE_CHECKING:
    from ethereum_blocks import Built

    from cardinal.protocols.streams.payload import Payload

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


def long_chain() -> list[Built]:
    blocks: list[Built] = []
    for _ in range(20):
        blocks += grow(blocks[-1] if blocks else None, 100)
    return blocks


@pytest.mark.slow  # three runs over 2,000 blocks
@asynchronous
async def test_two_thousand_blocks_through_a_faulty_gateway_take_little_longer() -> None:
    """Also that a node beside it takes over while it requests a pause."""
    chain = long_chain()
    served = replay(chain)
    async with faulty_gateway(served, 0.0) as (clean, _):
        taken, before, _ = await read(clean, 2_000)
    assert given(taken) == hashes(chain)
    async with faulty_gateway(served, 0.05) as (url, gateway):
        taken, alone, errors = await read(url, 2_000)
    assert given(taken) == hashes(chain)
    assert {"request", "rate", "method", "history", "parameters", "address", "wrong"} <= set(errors)
    async with faulty_gateway(served, 0.05, 2) as (url, _), faulty_gateway(served, 0.0) as (second, __):
        taken, together, _ = await read(f"{url},{second}", 2_000)
    assert given(taken) == hashes(chain)
    print(f"clean {before:.1f} s, faulty {alone:.1f} s ({gateway.paused:.1f} s requested), two nodes {together:.1f} s")  # noqa: T201
    print(dict(gateway.drawn), errors)  # noqa: T201
    assert alone <= 1.5 * before + gateway.paused
    assert together <= 1.5 * before
