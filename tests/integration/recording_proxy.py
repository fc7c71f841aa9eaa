"""Proxy in front of a real node that records requests, with hooks before requests and on responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web


class RecordingProxy:
    """Proxy of a node.

    Attributes:
        requests: the bodies of all requests.
        before: called with method and parameters of each call before it is forwarded.
        change: called with each call and the node's reply; returns the forwarded reply.

    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Any] = []
        self.before: Callable[[str, list[Any]], None] | None = None
        self.change: Callable[[str, list[Any], dict[str, Any]], dict[str, Any]] | None = None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call, alone or of a batch."""
        return [call for body in self.requests for call in (body if isinstance(body, list) else [body])]


@asynccontextmanager
async def recording_proxy(url: str) -> AsyncIterator[RecordingProxy]:
    """A proxy in front of the node at this address."""
    proxy = RecordingProxy()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        proxy.requests.append(sent := json.loads(body))
        for call in sent if isinstance(sent, list) else [sent]:
            if proxy.before is not None:
                proxy.before(call["method"], call["params"])
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return web.Response(body=_changed(proxy, sent, await answer.read()))

    application = web.Application(client_max_size=1 << 24)
    application.router.add_post("/", forward)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        try:
            yield proxy
        finally:
            await runner.cleanup()


def _changed(proxy: RecordingProxy, sent: Any, body: bytes) -> bytes:  # noqa: ANN401 - JSON
    if proxy.change is None:
        return body
    calls = {call["id"]: call for call in (sent if isinstance(sent, list) else [sent])}
    read = json.loads(body)
    replies = [
        proxy.change(calls[reply["id"]]["method"], calls[reply["id"]]["params"], reply)
        for reply in (read if isinstance(read, list) else [read])
    ]
    return json.dumps(replies if isinstance(read, list) else replies[0]).encode()
