"""An Ethereum-like node that serves any chain over JSON-RPC: HTTP and WebSocket on one port, and a Unix socket.

    async with JsonRpcNode(chain) as node:
        feed = open_feed(node.url)          # or node.ws_url, or node.ipc_url where a socket was named

The chain (:class:`NodeChain`) supplies the blocks: recorded ones (:class:`.replay.ReplayChain`), a development chain,
or a few lines of a test.

Rules:

1. It answers like a node: ``null`` for blocks that the chain does not have, an error object for a refusal, errors of a
   batch inside the batch, one error for a batch or body that is too large (:class:`NodeLimits`).
2. It caches nothing: every response comes from the chain at the time of the request.
3. It never validates a block: tests may serve invalid ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cardinal._stream_server import StreamServer
from cardinal.config.listening import refusal
from cardinal.errors import ConfigurationError, MissingExtraError, NodeAnswerError

try:
    from aiohttp import web
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A JSON-RPC node for tests", "evm") from absent

from ._connections import Connection, StreamConnection, WebSocketConnection, lines_of, texts_of
from ._jsonrpc import INVALID_PARAMS, NO_MARK, NO_METHOD, Json, Request, answer, flag_at, quantity, text_at
from .node_chain import Listener, NodeChain, Tag

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Demand", "Json", "JsonRpcNode", "Listener", "NodeChain", "NodeLimits", "Tag"]

HASH_TEXT_LENGTH = 66
"""Characters of ``0x`` and 32 bytes, which distinguish a hash from a number."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits of a node: calls in a batch, bytes of a request. The defaults are geth's."""

    batch: int = 1000
    body: int = 5 << 20


class Demand(NamedTuple):
    """Credentials that HTTP requests must carry, and the status that refuses others."""

    value: str
    header: str = "Authorization"
    status: int = 401

    @classmethod
    def bearer(cls, token: str) -> Demand:
        """A Bearer token."""
        return cls(f"Bearer {token}")


class JsonRpcNode:
    """A JSON-RPC server for one chain; an asynchronous context manager.

    Arguments:
        chain: the served chain.
        host: the address to listen on.
        port: 0 takes a free one.
        limits: limits of requests.
        socket: the file of an additional Unix socket; None for none.

    Attributes for tests, all may be set while the node runs:
        before: called with method and parameters before each response, to change the chain at an exact time; a
            NodeAnswerError that it raises is the response.
        delay: seconds that every request waits.
        refusals: number of HTTP requests to answer with status 503.
        demand: credentials of every HTTP request and WebSocket handshake; None: none. Open connections are not
            checked again.
        denials: number of requests that were refused because of their credentials.
        methods: None, or the only methods that exist.
        calls: number of calls by method.

    """

    def __init__(
        self,
        chain: NodeChain,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: NodeLimits | None = None,
        socket: Path | None = None,
    ) -> None:
        self.chain = chain
        self.before: Callable[[str, Sequence[object]], None] | None = None
        self.delay = 0.0
        self.refusals = 0
        self.demand: Demand | None = None
        self.denials = 0
        self.methods: frozenset[str] | None = None
        self.calls: dict[str, int] = {}
        self._host, self._port = host, port
        self._limits = limits or NodeLimits()
        self._runner: web.AppRunner | None = None
        self._sockets: set[Connection] = set()
        self._socket = socket
        self._stream_server: StreamServer | None = None
        self._handlers: dict[str, Callable[[list[object]], Json]] = {
            "eth_chainId": lambda _: hex(self.chain.chain_id()),
            "net_version": lambda _: str(self.chain.chain_id()),
            "web3_clientVersion": lambda _: "cardinal-testing",
            "eth_syncing": lambda _: False,
            "eth_blockNumber": lambda _: hex(self.chain.head()),
            "eth_getBlockByNumber": self._block_by_number,
            "eth_getBlockByHash": lambda params: self.chain.block(text_at(params, 0), full=flag_at(params, 1)),
            "eth_getBlockReceipts": self._block_receipts,
            "eth_getTransactionReceipt": lambda params: self.chain.transaction_receipt(text_at(params, 0)),
            "eth_getUncleByBlockHashAndIndex": lambda params: self.chain.uncle(
                text_at(params, 0), quantity(text_at(params, 1))
            ),
        }

    @property
    def port(self) -> int:
        """The port that the node listens on."""
        return self._port

    @property
    def url(self) -> str:
        """The address over HTTP."""
        return f"http://{self._host}:{self._port}"

    @property
    def ws_url(self) -> str:
        """The address over WebSocket."""
        return f"ws://{self._host}:{self._port}"

    @property
    def ipc_url(self) -> str:
        """The address of the Unix socket. ConfigurationError: it has none."""
        if self._socket is None:
            raise ConfigurationError("This node was given no socket to listen on.", setting="socket")
        return f"ipc://{self._socket}"

    async def start(self) -> None:
        """Listen. ConfigurationError: the port is taken."""
        application = web.Application(client_max_size=self._limits.body)
        application.router.add_route("*", "/{path:.*}", self._request)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as taken:
            await runner.cleanup()
            raise ConfigurationError(
                f"Cannot listen on {self._host}:{self._port} ({refusal(taken)}); choose another port.", setting="port"
            ) from taken
        self._runner = runner
        self._port = runner.addresses[0][1]
        if self._socket is not None:
            self._stream_server = StreamServer(self._stream, limit=self._limits.body)
            await self._stream_server.start_unix(self._socket)

    async def stop(self) -> None:
        """Close every connection and the port. May be called twice; a later ``start`` uses the same port."""
        runner, self._runner = self._runner, None
        stream_server, self._stream_server = self._stream_server, None
        if runner is not None:
            await self.disconnect()
            await runner.cleanup()
        if stream_server is not None and self._socket is not None:
            await stream_server.close()
            self._socket.unlink(missing_ok=True)

    async def disconnect(self) -> None:
        """Close every WebSocket and socket connection, as a restart does."""
        for socket in list(self._sockets):
            await socket.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _request(self, request: web.Request) -> web.StreamResponse:
        if self.refusals > 0:
            self.refusals -= 1
            return web.Response(status=503, text="service unavailable")
        if (demand := self.demand) is not None and request.headers.getall(demand.header, []) != [demand.value]:
            self.denials += 1
            return web.Response(status=demand.status, text=f"not with {dict(request.headers)}")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            socket = web.WebSocketResponse(max_msg_size=self._limits.body, compress=False)
            await socket.prepare(request)
            await self._converse(WebSocketConnection(socket, self.chain), texts_of(socket))
            return socket
        body = await self._answer(await request.read(), self._call)
        return web.Response(body=body, content_type="application/json")

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._converse(StreamConnection(writer, self.chain), lines_of(reader))

    async def _converse(self, connection: Connection, requests: AsyncIterator[bytes]) -> None:
        async def call(request: Request) -> Json:
            if request.method == "eth_subscribe":
                self._count(request)
                return connection.subscribe(request.params)
            if request.method == "eth_unsubscribe":
                return connection.unsubscribe(text_at(request.params, 0))
            return await self._call(request)

        self._sockets.add(connection)
        try:
            async for body in requests:
                await connection.send(await self._answer(body, call))
        finally:
            self._sockets.discard(connection)
            await connection.close()

    async def _answer(self, body: bytes, call: Callable[[Request], Awaitable[Json]]) -> bytes:
        if self.delay:
            await asyncio.sleep(self.delay)
        return await answer(body, call, most=self._limits.batch)

    async def _call(self, request: Request) -> Json:
        self._count(request)
        handler = self._handlers.get(request.method)
        if request.method == "eth_subscribe":
            raise NodeAnswerError("notifications not supported", code=NO_METHOD)
        if handler is None or (self.methods is not None and request.method not in self.methods):
            message = f"the method {request.method} does not exist/is not available"
            raise NodeAnswerError(message, code=NO_METHOD)
        return handler(request.params)

    def _count(self, request: Request) -> None:
        self.calls[request.method] = self.calls.get(request.method, 0) + 1
        if self.before is not None:
            self.before(request.method, request.params)

    def _block_by_number(self, params: list[object]) -> Json:
        block_hash = self._hash_of(text_at(params, 0))
        return None if block_hash is None else self.chain.block(block_hash, full=flag_at(params, 1))

    def _block_receipts(self, params: list[object]) -> Json:
        named = params[0] if params else None
        if isinstance(named, dict):
            named = named.get("blockHash", named.get("blockNumber"))
        if not isinstance(named, str):
            raise NodeAnswerError("missing value for required argument 0", code=INVALID_PARAMS)
        block_hash = named if len(named) == HASH_TEXT_LENGTH else self._hash_of(named)
        return None if block_hash is None else self.chain.receipts(block_hash)

    def _hash_of(self, named: str) -> str | None:
        """The canonical hash under a tag or a number in hexadecimal."""
        match named:
            case "latest" | "pending":
                number: int | None = self.chain.head()
            case "earliest":
                number = 0
            case "safe" | "finalized":
                number = self.chain.mark("safe" if named == "safe" else "finalized")
                if number is None:
                    raise NodeAnswerError(f"{named} block not found", code=NO_MARK)
            case _:
                number = quantity(named)
        return None if number is None else self.chain.hash_at(number)
