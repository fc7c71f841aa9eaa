"""Connections of a test node that carry notifications: WebSocket and Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

from cardinal.errors import MissingExtraError, NodeAnswerError

try:
    import msgspec
    from aiohttp import WSMsgType, web
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A JSON-RPC node for tests", "evm") from absent

from ._jsonrpc import INVALID_PARAMS, Json
from .node_chain import NodeChain


class Connection(ABC):
    """One connection and its subscriptions. Heads are queued, so that a slow reader delays no other one."""

    def __init__(self, chain: NodeChain) -> None:
        self._chain = chain
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._subscriptions: dict[str, Callable[[], None]] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = self._loop.create_task(self._write())

    def subscribe(self, params: list[object]) -> str:
        """Subscribe to heads; returns the subscription's id."""
        if params[:1] != ["newHeads"]:
            raise NodeAnswerError(f"no {params[:1]} subscription in eth namespace", code=INVALID_PARAMS)
        name = hex(next(self._ids))

        def announce(header: Json) -> None:
            notice = {"subscription": name, "result": header}
            body = msgspec.json.encode({"jsonrpc": "2.0", "method": "eth_subscription", "params": notice})
            self._loop.call_soon_threadsafe(self._outgoing.put_nowait, body)

        self._subscriptions[name] = self._chain.subscribe(announce)
        return name

    def unsubscribe(self, name: str) -> bool:
        """Cancel a subscription; True if it existed."""
        cancel = self._subscriptions.pop(name, None)
        if cancel is not None:
            cancel()
        return cancel is not None

    async def send(self, body: bytes) -> None:
        """Queue a response."""
        await self._outgoing.put(body)

    async def close(self) -> None:
        """Abort the connection."""
        for name in list(self._subscriptions):
            self.unsubscribe(name)
        self._writer.cancel()
        await self._end()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._put(await self._outgoing.get())

    @abstractmethod
    async def _put(self, body: bytes) -> None:
        """Write one text."""

    @abstractmethod
    async def _end(self) -> None:
        """Close the underlying transport."""


class WebSocketConnection(Connection):
    """A WebSocket."""

    def __init__(self, socket: web.WebSocketResponse, chain: NodeChain) -> None:
        super().__init__(chain)
        self._socket = socket

    async def _put(self, body: bytes) -> None:
        await self._socket.send_str(body.decode())

    async def _end(self) -> None:
        await self._socket.close()


class StreamConnection(Connection):
    """A Unix socket; a text ends with a newline, as geth writes it."""

    def __init__(self, writer: asyncio.StreamWriter, chain: NodeChain) -> None:
        super().__init__(chain)
        self._stream = writer

    async def _put(self, body: bytes) -> None:
        self._stream.write(body + b"\n")
        await self._stream.drain()

    async def _end(self) -> None:
        self._stream.close()
        with contextlib.suppress(OSError):
            await self._stream.wait_closed()


async def texts_of(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    """The requests of a WebSocket."""
    async for message in socket:
        if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
            yield message.data.encode() if isinstance(message.data, str) else message.data


async def lines_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The requests of a Unix socket, one a line."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            yield line
