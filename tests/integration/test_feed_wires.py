"""What may happen to bytes on their way from a node: cut, too many, packed, sent elsewhere, their socket replaced."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
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
    serving,
    take,
)
from rpc_script import QUICK as QUICK_RPC
from rpc_script import calls, refusal, result, scripted

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError, WrongChainError
from cardinal.testing.node import JsonRpcNode
from cardinal.testing.proxy import Link, TcpProxy
from cardinal_connectors.ethereum.rpc.client import RpcClient
from cardinal_connectors.ethereum.settings import RpcSettings, quoted

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
