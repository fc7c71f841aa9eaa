"""The node feed against nodes that refuse, are slow or go away, and connections that are cut."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from ethereum_blocks import grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    assert_lawful,
    asynchronous,
    connected,
    everything,
    given,
    hashes,
    next_after_looks,
    opened,
    refs,
    serving,
    take,
)
from rpc_script import QUICK as QUICK_RPC
from rpc_script import calls, refusal, result, scripted

from cardinal.config.url import Endpoint
from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    NodeAnswerError,
    NodeUnreachableError,
    WrongChainError,
)
from cardinal.testing.node import JsonRpcNode, NodeLimits
from cardinal.testing.proxy import Link, TcpProxy
from cardinal_connectors.ethereum import open_feed
from cardinal_connectors.ethereum.nodes.retry_policy import RetryPolicy
from cardinal_connectors.ethereum.rpc.client import RpcClient
from cardinal_connectors.ethereum.settings import FeedSettings, RpcSettings, quoted


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


# --- what may happen to bytes on their way from a node: cut, too many, packed, sent elsewhere, their socket replaced -


PATIENT = replace(QUICK, rpc=RpcSettings(timeout=5, attempts=30, backoff=0.001), fetch_blocks=5, patience=60.0)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_connection_that_is_cut_in_the_middle_of_an_answer_loses_nothing(scheme: str) -> None:
    """Connections live for so many bytes, now few and now many; they end in headers, between frames and inside them."""
    chain = grow(None, 60)
    served = replay(chain)
    dice = random.Random(7)
    async with serving(served) as node:
        with TcpProxy(f"127.0.0.1:{node.port}") as proxy:
            async with connected(f"{scheme}://{proxy.address}", PATIENT) as feed:
                payloads = feed.follow(until=59)
                taken = []
                weather = asyncio.create_task(_weather(proxy, dice))
                taken += await take(payloads, 40)
                weather.cancel()
                await asyncio.gather(weather, return_exceptions=True)
                proxy.heal()
                taken += await everything(payloads)
            assert proxy.stats.cut > 5
    assert given(taken) == hashes(chain)
    assert_lawful(taken)


async def _weather(proxy: TcpProxy, dice: random.Random) -> None:
    while True:
        proxy.impair(Link(), Link(cut_after=int(10 ** dice.uniform(0, 5.3))))
        await asyncio.sleep(0.02)


@asynchronous
async def test_socket_file_that_is_replaced_is_opened_anew_and_its_node_compared(tmp_path: Path) -> None:
    chain, another = grow(None, 12), grow(None, 20, "z")
    before, after = replay(chain), replay(chain)
    before.set_head(chain[5].name)
    file = tmp_path / "node.ipc"
    async with JsonRpcNode(before, socket=file) as first, connected(f"ipc://{file}", QUICK) as feed:
        payloads = feed.follow()
        taken = await take(payloads, 6)
        file.unlink()  # the node that is gone has no time to
        async with JsonRpcNode(after, socket=file) as second:
            await first.disconnect()
            taken += await take(payloads, 6)
            assert given(taken) == hashes(chain)
            file.unlink()
            async with JsonRpcNode(replay(another), socket=file):
                await second.disconnect()
                with pytest.raises(WrongChainError, match="first block"):
                    await take(payloads, 1)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_answers_above_the_bound_are_asked_for_in_smaller_batches(scheme: str) -> None:
    chain = grow(None, 60)
    bounded = replace(QUICK, rpc=replace(QUICK.rpc, answer=40_000), walk=1, fetch_blocks=50)
    async with serving(replay(chain)) as node, connected(address(node, scheme), bounded) as feed:
        assert given(await everything(feed.follow(until=59))) == hashes(chain)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_answer_above_the_bound_that_cannot_be_cut_is_one_sentence(scheme: str) -> None:
    async with serving(replay(grow(None, 5))) as node:
        client = RpcClient(Endpoint.parse(address(node, scheme)), replace(QUICK_RPC, answer=500))
        with pytest.raises(NodeAnswerError, match="longer than 500 bytes"):
            await client.call("eth_getBlockByNumber", "0x1", *(True,))
        await client.close()


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server, by its address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynchronous
async def test_packed_answers_are_unpacked_and_bounded_by_what_they_hold() -> None:
    def body(length: int) -> bytes:
        return gzip.compress(json.dumps({"id": 1, "result": "x" * length}).encode(), compresslevel=1)

    bodies = iter([body(10), body(20_000_000)])

    async def packed(request: web.Request) -> web.Response:
        assert "gzip" in request.headers["Accept-Encoding"]
        return web.Response(body=next(bodies), headers={"Content-Encoding": "gzip"})

    async with answering(packed) as url:
        client = RpcClient(Endpoint.parse(url), RpcSettings(answer=1_000_000))
        assert await client.read(str, "echo") == "x" * 10
        with pytest.raises(NodeAnswerError, match="longer than 1000000 bytes"):  # a fiftieth of that on its way
            await client.call("echo")
        await client.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@asynchronous
async def test_redirection_is_told_and_not_followed(status: int) -> None:
    came: list[str] = []

    async def other(request: web.Request) -> web.Response:
        came.append(request.path)
        return web.Response()

    async with answering(other) as elsewhere:

        async def sends(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": f"{elsewhere}/v3/s3cr3t-key"})

        async with answering(sends) as url:
            client = RpcClient(Endpoint.parse(f"{url}/v3/another-s3cr3t-key"), QUICK_RPC)
            with pytest.raises(NodeAnswerError) as refused:
                await client.call("eth_chainId")
            await client.close()
    assert not came
    assert str(refused.value) == f"{url} redirects to another URL (HTTP {status}, to {elsewhere}): use that URL"


@pytest.mark.parametrize("place", ["/login", "http://[", ""])
@asynchronous
async def test_redirection_to_nowhere_is_one_sentence(place: str) -> None:
    async def sends(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": place})

    async with answering(sends) as url:
        client = RpcClient(Endpoint.parse(url), QUICK_RPC)
        with pytest.raises(NodeAnswerError, match=r"another URL \(HTTP 302\): use that URL"):
            await client.call("eth_chainId")
        await client.close()


@asynchronous
async def test_pause_that_is_asked_for_by_a_date_is_one_of_ours() -> None:
    def script(asked: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        later = next(dates, None)
        return (429, "slow down", later) if later else (200, result(asked))

    dates = iter(["Fri, 31 Dec 2100 23:59:59 GMT", "soon"])
    async with scripted(script) as client, asyncio.timeout(5):
        await client.call("echo", 1)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_user_and_password_of_the_url_reach_the_node_and_no_error(scheme: str) -> None:
    came: list[str | None] = []

    async def guarded(request: web.Request) -> web.StreamResponse:
        came.append(request.headers.get("Authorization"))
        return web.Response(status=401, text="no such user alice with s3cr3t-word")

    async with answering(guarded) as url:
        client = RpcClient(Endpoint.parse(f"{scheme}://alice:s3cr3t-word@{url.removeprefix('http://')}/v1"), QUICK_RPC)
        with pytest.raises(NodeAnswerError, match="refuses the credentials") as refused:
            await client.call("eth_chainId")
        await client.close()
    assert came == ["Basic " + base64.b64encode(b"alice:s3cr3t-word").decode()], "not asked again with what was refused"
    shown: BaseException | None = refused.value
    while shown is not None:
        assert "s3cr3t" not in f"{shown} {shown!r} {vars(shown)}"
        shown = shown.__cause__


KEY = "s3cr3t-a1b2c3"
LOUD = f"no quota for http://u:s3cr3t-pass@h/v3/{KEY}?token=s3cr3t-t0k3n\x1b[2J\nsecond line " + "z" * 5000


def _many(asked: Any) -> Any:  # noqa: ANN401 - JSON
    return [refusal(-32000, LOUD, one["id"]) for one in asked] if isinstance(asked, list) else refusal(-32000, LOUD)


@asynchronous
async def test_nodes_words_are_shown_on_one_line_without_what_the_url_hides() -> None:
    async def loud(request: web.Request) -> web.Response:
        return web.json_response(_many(json.loads(await request.read())))

    async with answering(loud) as url:
        client = RpcClient(
            Endpoint.parse(f"{url.replace('//', '//u:s3cr3t-pass@')}/v3/{KEY}?token=s3cr3t-t0k3n"), QUICK_RPC
        )
        with pytest.raises(NodeAnswerError) as refused:
            await client.call("eth_chainId")
        outcomes = await client.batch(calls(2))
        await client.close()
    for one in (refused.value, *outcomes):
        said = str(one)
        assert "no quota for http://u:…@h/v3/…?token=…" in said
        assert said.isprintable()
        assert len(said) < 600


def test_words_that_hide_nothing_are_left_as_they_are() -> None:
    assert (
        quoted(Endpoint.parse("ipc:///var/run/geth.ipc"), "no such file /var/run/geth.ipc")
        == "no such file /var/run/geth.ipc"
    )
    assert quoted(Endpoint.parse("http://node:8545/rpc/v1"), "v1 of rpc is gone") == "v1 of rpc is gone"
