"""An Ethereum-like node that serves any chain over JSON-RPC, HTTP and WebSocket on one port.

    async with JsonRpcNode(chain) as node:
        feed = open_feed(node.url)          # or node.ws_url

Where blocks come from is the chain's business (:class:`NodeChain`): recorded blocks
(:class:`cardinal.testing.replay.ReplayChain`), a development chain, or a few lines of a test.

Rules:

1. It answers like a node: ``null`` for what the chain does not have, an error object for what it refuses, errors of
   a batch inside the batch, one error for a batch or body that is too large (:class:`NodeLimits`).
2. It remembers nothing of the chain: every answer is asked for when the request is there.
3. It never imports a feed and never judges a block; a chain may serve wrong ones, that is what tests are for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from cardinal.errors import ConfigurationError, MissingExtraError, NodeAnswerError

try:
    import msgspec
    from aiohttp import WSMsgType, web
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A JSON-RPC node for tests", "evm") from absent

from ._jsonrpc import INVALID_PARAMS, NO_MARK, NO_METHOD, Json, Request, answer, flag_at, quantity, text_at

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Json", "JsonRpcNode", "Listener", "NodeChain", "NodeLimits", "Tag"]

Listener: TypeAlias = Callable[[Json], None]
"""Called with the header object of every head that a chain announces, in any thread."""

Tag: TypeAlias = Literal["safe", "finalized"]

HASH_TEXT_LENGTH = 66
"""Characters of ``0x`` and 32 bytes: how a request that names a block by hash is told from one by number."""


class NodeChain(Protocol):
    """What a node has. Hashes are lower-case ``0x`` texts, objects are what Ethereum's JSON-RPC shows.

    Methods are called in the node's event loop and answer at once. Any of them may raise
    :class:`~cardinal.errors.NodeAnswerError`, which becomes the JSON-RPC error of that request.
    """

    def chain_id(self) -> int:
        """The chain id."""
        ...

    def head(self) -> int:
        """The number of the newest block."""
        ...

    def mark(self, tag: Tag) -> int | None:
        """The number of the newest safe or finalized block; None where that is not known (an error in JSON-RPC)."""
        ...

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block with this number; None above the head and below the first block."""
        ...

    def block(self, block_hash: str, *, full: bool) -> Json | None:
        """The block, canonical or not, with its transactions as objects (full) or as hashes; None if not had."""
        ...

    def receipts(self, block_hash: str) -> Json | None:
        """The block's receipts in order, an array; None if the block is not had."""
        ...

    def transaction_receipt(self, transaction_hash: str) -> Json | None:
        """The receipt of one transaction of the canonical chain; None if there is none."""
        ...

    def uncle(self, block_hash: str, index: int) -> Json | None:
        """The header object of an uncle; None if there is none."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell ``listener`` every new head (its header object, no transactions) until the returned call is made."""
        ...


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What the node bears: calls in a batch, bytes of a request. The defaults are geth's."""

    batch: int = 1000
    body: int = 5 << 20


class JsonRpcNode:
    """A JSON-RPC server for one chain; an asynchronous context manager.

    Arguments:
        chain: what is served.
        host: the address to listen on.
        port: 0 takes a free one.
        limits: what is refused as too large.

    Attributes for tests, all may be set while the node runs:
        before: called with method and parameters before each answer, to change the chain at an exact moment; what it
            raises of NodeAnswerError is the answer.
        delay: seconds that every request waits.
        refusals: so many HTTP requests are answered with status 503.
        methods: None, or the only methods that exist.
        calls: how often each method was called.

    """

    def __init__(
        self, chain: NodeChain, *, host: str = "127.0.0.1", port: int = 0, limits: NodeLimits | None = None
    ) -> None:
        self.chain = chain
        self.before: Callable[[str, Sequence[object]], None] | None = None
        self.delay = 0.0
        self.refusals = 0
        self.methods: frozenset[str] | None = None
        self.calls: dict[str, int] = {}
        self._host, self._port = host, port
        self._limits = limits or NodeLimits()
        self._runner: web.AppRunner | None = None
        self._sockets: set[_Connection] = set()
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
        """The port that is listened on."""
        return self._port

    @property
    def url(self) -> str:
        """The address over HTTP."""
        return f"http://{self._host}:{self._port}"

    @property
    def ws_url(self) -> str:
        """The address over WebSocket."""
        return f"ws://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. A ConfigurationError says so where the port is taken."""
        application = web.Application(client_max_size=self._limits.body)
        application.router.add_route("*", "/{path:.*}", self._request)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as taken:
            await runner.cleanup()
            raise ConfigurationError(
                f"Cannot listen on {self._host}:{self._port} ({taken.strerror}); choose another port.", setting="port"
            ) from taken
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Close every connection and the port. May be called twice; ``start`` afterwards takes the same port."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await self.disconnect()
            await runner.cleanup()

    async def disconnect(self) -> None:
        """Drop every WebSocket connection, as a node that restarts does."""
        for socket in list(self._sockets):
            await socket.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _request(self, request: web.Request) -> web.StreamResponse:
        if self.refusals > 0:
            self.refusals -= 1
            return web.Response(status=503, text="service unavailable")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            socket = web.WebSocketResponse(max_msg_size=self._limits.body, compress=False)
            await socket.prepare(request)
            await self._converse(_Connection(socket, self.chain))
            return socket
        body = await self._answer(await request.read(), self._call)
        return web.Response(body=body, content_type="application/json")

    async def _converse(self, connection: _Connection) -> None:
        async def call(request: Request) -> Json:
            if request.method == "eth_subscribe":
                self._count(request)
                return connection.subscribe(request.params)
            if request.method == "eth_unsubscribe":
                return connection.unsubscribe(text_at(request.params, 0))
            return await self._call(request)

        self._sockets.add(connection)
        try:
            async for message in connection.socket:
                if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    data = message.data.encode() if isinstance(message.data, str) else message.data
                    await connection.send(await self._answer(data, call))
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


class _Connection:
    """One WebSocket and its subscriptions. Heads are queued, so that a slow reader delays nobody else."""

    def __init__(self, socket: web.WebSocketResponse, chain: NodeChain) -> None:
        self.socket = socket
        self._chain = chain
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._subscriptions: dict[str, Callable[[], None]] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = self._loop.create_task(self._write())

    def subscribe(self, params: list[object]) -> str:
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
        cancel = self._subscriptions.pop(name, None)
        if cancel is not None:
            cancel()
        return cancel is not None

    async def send(self, body: bytes) -> None:
        await self._outgoing.put(body)

    async def close(self) -> None:
        for name in list(self._subscriptions):
            self.unsubscribe(name)
        self._writer.cancel()
        await self.socket.close()

    async def _write(self) -> None:
        while True:
            body = await self._outgoing.get()
            try:
                await self.socket.send_str(body.decode())
            except ConnectionError:
                return
