"""A JSON-RPC server that answers as a test says, and a client of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.outcomes import RpcCall
from cardinal_ethereum.feed.settings import RpcSettings

QUICK = RpcSettings(timeout=2, attempts=3, backoff=0.001)

Script = Callable[[Any], Any]


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


@asynccontextmanager
async def scripted(script: Script, scheme: str = "http", settings: RpcSettings = QUICK) -> AsyncIterator[RpcClient]:
    """A client of a server that answers as the script says: a status, a body, and perhaps when to come again."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            answered = script(json.loads(await request.read()))
            status, body, *later = await answered if inspect.isawaitable(answered) else answered
            headers = {"Retry-After": later[0]} if later else {}
            return web.Response(
                status=status, text=body if isinstance(body, str) else json.dumps(body), headers=headers
            )
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(json.dumps(script(json.loads(message.data))[1]))
        return socket

    async with answering(answer) as url:
        client = RpcClient(Endpoint.parse(url.replace("http", scheme, 1)), settings)
        try:
            yield client
        finally:
            await client.close()


def result(request: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request["id"], "result": request["params"]}


def refusal(code: int, message: str, request_id: int | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def calls(count: int) -> list[RpcCall]:
    return [RpcCall("echo", (number,)) for number in range(count)]


async def numbers(client: RpcClient, count: int) -> list[int]:
    outcomes = await client.batch(calls(count))
    assert not any(isinstance(outcome, NodeAnswerError) for outcome in outcomes)
    return [msgspec.json.decode(outcome)[0] for outcome in outcomes if isinstance(outcome, msgspec.Raw)]
