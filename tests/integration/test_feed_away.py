"""The node feed against nodes that bear little, refuse, are slow or go away: nothing right is lost."""

from __future__ import annotations

import asyncio
import logging

import pytest
from ethereum_blocks import grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    asynchronous,
    everything,
    given,
    hashes,
    next_after_looks,
    opened,
    refs,
    serving,
    take,
)

from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    NodeAnswerError,
    NodeUnreachableError,
)
from cardinal.testing.node import JsonRpcNode, NodeLimits
from cardinal_connectors.ethereum import open_feed
from cardinal_connectors.ethereum.nodes.retry_policy import RetryPolicy
from cardinal_connectors.ethereum.settings import FeedSettings, RpcSettings


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_bears_small_batches_only_is_asked_for_less(scheme: str) -> None:
    chain = grow(None, 60)
    async with serving(replay(chain), limits=NodeLimits(batch=5, body=4096)) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        assert given(await everything(feed.follow(until=59))) == hashes(chain)
        await feed.close()


@asynchronous
async def test_node_without_block_receipts_is_asked_for_each() -> None:
    chain = grow(None, 30)
    async with opened(replay(chain)) as (node, feed):
        node.methods = frozenset(
            {"eth_chainId", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionReceipt"}
        )
        assert given(await everything(feed.follow(until=29))) == hashes(chain)
    assert node.calls["eth_getTransactionReceipt"] == sum(len(block.receipts) for block in chain)


@asynchronous
async def test_node_that_is_busy_now_is_asked_again() -> None:
    chain = grow(None, 40)
    async with opened(replay(chain)) as (node, feed):
        payloads = feed.follow(until=39)
        taken = await take(payloads, 1)
        node.refusals = 2
        refusals = iter(range(3))

        def limit(method: str, _: object) -> None:
            if method == "eth_getBlockByNumber" and next(refusals, None) is not None:
                raise NodeAnswerError("limit exceeded", code=-32005)

        node.before = limit
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_nodes_own_error_text_is_passed_on() -> None:
    async with opened(replay(grow(None, 4))) as (node, feed):
        await feed.chain_id()

        def break_down(method: str, _: object) -> None:
            if method == "eth_getBlockReceipts":
                raise NodeAnswerError("leveldb: corrupted block 0x2", code=-32000)

        node.before = break_down
        with pytest.raises(NodeAnswerError, match=r"eth_getBlockReceipts .*-32000: leveldb: corrupted block 0x2"):
            await everything(feed.follow(until=3))


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_socket_that_is_lost_is_opened_again(scheme: str) -> None:
    chain = grow(None, 30)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served, scheme) as (node, feed):
        payloads = feed.follow()
        taken = await take(payloads, 5)
        for block in chain[5:]:
            await node.disconnect()
            served.set_head(block.name)
            taken += await take(payloads, 1)
    assert given(taken) == hashes(chain)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_node_that_was_never_there_is_one_sentence_without_the_urls_secrets(scheme: str) -> None:
    async with JsonRpcNode(replay(grow(None, 1))) as node:
        port = node.port
    feed = open_feed(f"{scheme}://user:sesame@127.0.0.1:{port}/v3/sesame?key=sesame", settings=QUICK)
    with pytest.raises(NodeUnreachableError) as away:
        await everything(feed.follow())
    await feed.close()
    assert away.value.address == f"{scheme}://127.0.0.1:{port}"
    assert away.value.address in str(away.value)
    assert_secret_kept(away.value)


@asynchronous
async def test_node_that_stays_away_is_given_up_after_the_patience(caplog: pytest.LogCaptureFixture) -> None:
    chain = grow(None, 3)
    impatient = FeedSettings(rpc=RpcSettings(attempts=2, backoff=0.01), poll=0.02, patience=0.3)
    async with JsonRpcNode(replay(chain)) as node:
        feed = open_feed(f"http://user:sesame@127.0.0.1:{node.port}/sesame", settings=impatient)
        payloads = feed.follow()
        await take(payloads, 3)
        await node.stop()
        with caplog.at_level(logging.INFO), pytest.raises(NodeUnreachableError) as away:
            await take(payloads, 1)
        await feed.close()
    assert_secret_kept(away.value)
    assert "retrying for 0.3 seconds" in caplog.text
    assert "sesame" not in caplog.text


def test_node_is_waited_for_without_end_where_no_patience_is_set() -> None:
    now = [0.0]
    retries = RetryPolicy("http://node", FeedSettings(), lambda: now[0])
    away = NodeUnreachableError("no node answers at http://node", address="http://node")
    for now[0] in (0.0, 3_600.0, 1e9):
        assert retries.away(away, delivered=False) == FeedSettings().poll
        assert retries.waits_for == str(away)


@asynchronous
async def test_slow_node_is_a_timeout_in_one_sentence() -> None:
    hasty = FeedSettings(rpc=RpcSettings(timeout=0.05, attempts=2, backoff=0.01), poll=0.02, patience=0.1)
    async with opened(replay(grow(None, 3)), settings=hasty) as (node, feed):
        node.delay = 1.0
        with pytest.raises(NodeUnreachableError, match=r"within 0\.05 seconds"):
            await feed.chain_id()


@asynchronous
async def test_node_that_has_not_caught_up_is_waited_for() -> None:
    chain = grow(None, 12)
    served = replay(chain)
    served.set_head(chain[3].name)
    async with opened(served) as (node, feed):
        payloads = feed.follow(refs(chain[6:9]), until=11)
        first = await next_after_looks(payloads, node, lambda: served.set_head(chain[11].name))
        assert given([first, *await everything(payloads)]) == hashes(chain[9:])


@asynchronous
async def test_address_that_is_no_node_is_one_sentence() -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    feed = open_feed(f"http://127.0.0.1:{port}", settings=QUICK)
    with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
        await feed.chain_id()
    await feed.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_feed_that_is_closed_while_it_reads_leaves_nothing_open(scheme: str) -> None:
    async with opened(replay(grow(None, 200)), scheme) as (node, feed):
        payloads = feed.follow()
        await take(payloads, 3)
        node.delay = 0.2
        await feed.close()
        with pytest.raises(NodeAnswerError, match="was closed"):
            await everything(payloads)
        await feed.close()


def test_scheme_that_no_node_speaks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'ftp'"):
        open_feed("ftp://node")


def assert_secret_kept(error: CardinalError) -> None:
    chain: BaseException | None = error
    while chain is not None:
        assert "sesame" not in f"{chain} {chain!r} {vars(chain)}"
        chain = chain.__cause__
