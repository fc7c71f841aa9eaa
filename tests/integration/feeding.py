"""Helpers of the node feed tests: a feed on a node, and bounded waits."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.testing.node import JsonRpcNode, NodeChain, NodeLimits
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.settings import FeedSettings, RpcSettings
from looping import on_loop

if TYPE_CHECKING:
    from ethereum_blocks import Built

    from cardinal.feeds import BlockFeed
    from cardinal.protocols.streams.payload import Payload

asynchronous = on_loop

QUICK = FeedSettings(rpc=RpcSettings(timeout=5, attempts=3, backoff=0.01), poll=0.05, patience=5.0)


@asynccontextmanager
async def connected(url: str, settings: FeedSettings = QUICK) -> AsyncIterator[BlockFeed]:
    feed = open_feed(url, settings=settings)
    try:
        yield feed
    finally:
        await feed.close()


SCHEMES = ["http", "ws", "ipc"]


def address(node: JsonRpcNode, scheme: str) -> str:
    return {"http": node.url, "ws": node.ws_url}.get(scheme) or node.ipc_url


@asynccontextmanager
async def serving(chain: NodeChain, *, limits: NodeLimits | None = None) -> AsyncIterator[JsonRpcNode]:
    """A node that can be reached in every way."""
    with tempfile.TemporaryDirectory() as folder:
        async with JsonRpcNode(chain, limits=limits, socket=Path(folder) / "node.ipc") as node:
            yield node


@asynccontextmanager
async def opened(
    chain: NodeChain, scheme: str = "http", settings: FeedSettings = QUICK
) -> AsyncIterator[tuple[JsonRpcNode, BlockFeed]]:
    async with serving(chain) as node, connected(address(node, scheme), settings) as feed:
        yield node, feed


async def take(payloads: AsyncIterator[Payload], count: int) -> list[Payload]:
    async with asyncio.timeout(60):
        return [await anext(payloads) for _ in range(count)]


async def looks(node: JsonRpcNode, times: int = 5) -> None:
    """Wait until the feed has requested blocks so many times more."""
    looked, counter = asyncio.Event(), itertools.count(1)

    def count(method: str, _: Sequence[object]) -> None:
        if method == "eth_getBlockByNumber" and next(counter) >= times:
            looked.set()

    node.before = count
    async with asyncio.timeout(60):
        await looked.wait()
    node.before = None


async def next_after_looks(payloads: AsyncIterator[Payload], node: JsonRpcNode, change: Callable[[], None]) -> Payload:
    """The next payload, which comes only when something changes: not before, though the feed looks again and again."""
    coming = asyncio.ensure_future(anext(payloads))
    await looks(node)
    assert not coming.done()
    change()
    async with asyncio.timeout(60):
        return await coming


async def everything(payloads: AsyncIterator[Payload]) -> list[Payload]:
    async with asyncio.timeout(60):
        return [payload async for payload in payloads]


def hashes(blocks: Iterable[Built]) -> list[bytes]:
    return [block.hash for block in blocks]


def given(payloads: Iterable[Payload]) -> list[bytes]:
    return [payload.hash for payload in payloads]


def refs(blocks: Iterable[Built]) -> list[BlockRef]:
    return [BlockRef(block.number, block.hash) for block in blocks]


def assert_lawful(payloads: Sequence[Payload], published: Iterable[BlockRef] = ()) -> None:
    """Every payload's parent was given before it, is published, or it is the first."""
    before = {ref.hash for ref in published}
    for index, payload in enumerate(payloads):
        assert payload.parent in before or (index == 0 and not before)
        assert payload.hash not in before
        before.add(payload.hash)
