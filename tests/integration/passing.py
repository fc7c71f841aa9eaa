"""The way to a real node through a server that writes down what is asked, and may do something at an exact moment."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web


class Passing:
    """``asked`` are the bodies of all requests.

    ``before`` is called with each call of them before it is passed on; ``change`` with each call and the node's reply
    to it, and gives the reply that is passed back.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Any] = []
        self.before: Callable[[str, list[Any]], None] | None = None
        self.change: Callable[[str, list[Any], dict[str, Any]], dict[str, Any]] | None = None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call, alone or of a batch."""
        return [one for body in self.asked for one in (body if isinstance(body, list) else [body])]


@asynccontextmanager
async def passing(url: str) -> AsyncIterator[Passing]:
    """A server before the node at this address."""
    way = Passing()

    async def pass_on(request: web.Request) -> web.Response:
        body = await request.read()
        way.asked.append(said := json.loads(body))
        for one in said if isinstance(said, list) else [said]:
            if way.before is not None:
                way.before(one["method"], one["params"])
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return web.Response(body=_changed(way, said, await answer.read()))

    application = web.Application(client_max_size=1 << 24)
    application.router.add_post("/", pass_on)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    way.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        try:
            yield way
        finally:
            await runner.cleanup()


def _changed(way: Passing, said: Any, body: bytes) -> bytes:  # noqa: ANN401 - JSON
    if way.change is None:
        return body
    asked = {one["id"]: one for one in (said if isinstance(said, list) else [said])}
    read = json.loads(body)
    replies = [
        way.change(asked[one["id"]]["method"], asked[one["id"]]["params"], one)
        for one in (read if isinstance(read, list) else [read])
    ]
    return json.dumps(replies if isinstance(read, list) else replies[0]).encode()
