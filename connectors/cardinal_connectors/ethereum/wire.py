"""How a request reaches a node and its answer comes back: HTTP or WebSocket, one small interface.

Rules:

1. A wire carries bytes and pairs answers with requests. It does not retry and knows no method.
2. Every failure is one of three: :class:`~cardinal.errors.NodeUnreachableError` (may pass),
   :class:`~cardinal.errors.NodeAnswerError` (the node said no), :class:`TooLargeError` (ask for less at once).
3. ``connects`` counts connections made. Behind a new connection there may be another node: whoever relies on the
   chain compares it again (facts on nodes, rule 7).
4. No error names more of the URL than scheme, host and port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import aiohttp
import msgspec

from cardinal.errors import NodeAnswerError, NodeUnreachableError

from .settings import RpcSettings, public_address


class Refusal(msgspec.Struct):
    """The error object of JSON-RPC 2.0."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()


class Reply(msgspec.Struct):
    """One answer, or one notification of a subscription. ``result`` stays unparsed: its reader knows its type."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: Refusal | None = None
    method: str = ""


Replies: TypeAlias = list[Reply]

_DECODER = msgspec.json.Decoder(Reply | Replies)


class TooLargeError(NodeAnswerError):
    """The node refuses a batch or a body of this size. ``single`` says so where it cannot be cut."""

    retriable = True


class Wire(Protocol):
    """One connection, or pool of connections, to one node."""

    connects: int

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request or batch; return what came back for these ids, in any order, perhaps not for all."""
        ...

    async def close(self) -> None:
        """Release the connection. May be called twice."""
        ...


def read_replies(body: bytes) -> Replies:
    """The answers in a body; NodeAnswerError where it is no JSON-RPC."""
    try:
        read = _DECODER.decode(body)
    except msgspec.DecodeError as malformed:
        raise NodeAnswerError(
            f"The address answers, but not in JSON-RPC ({malformed}); check that the URL is a node's.", code=None
        ) from malformed
    return read if isinstance(read, list) else [read]


class HttpWire:
    """Requests over a pool of HTTP connections."""

    def __init__(self, url: str, settings: RpcSettings) -> None:
        self.connects = 0
        self._url = url
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Post a request; see :class:`Wire`."""
        del ids
        if self._closed:
            raise _closed(self._url)
        session = self._session = self._session or self._open()
        try:
            async with session.post(self._url, data=body, headers={"Content-Type": "application/json"}) as answer:
                text = await self._read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            raise _unreachable(self._url, failure, self._settings) from None
        return self._judge(answer.status, text)

    async def close(self) -> None:
        """Close the pool."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        async def connected(*_: object) -> None:
            self.connects += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._settings.connections),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
            trace_configs=[trace],
        )

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._settings.answer:
                raise TooLargeError(f"The node's answer is longer than {self._settings.answer} bytes; ask for less.")
            parts.append(part)
        return b"".join(parts)

    def _judge(self, status: int, text: bytes) -> Replies:
        """The answers, or the meaning of a status. A JSON-RPC error inside tells more than the status does."""
        address = public_address(self._url)
        match status:
            case 413:
                raise TooLargeError(f"The node at {address} refuses a request of this size (HTTP 413).", code=status)
            case 401 | 403:
                raise NodeAnswerError(
                    f"The node at {address} refuses the credentials (HTTP {status}); check those in the URL.",
                    code=status,
                )
            case 408 | 429 | 500 | 502 | 503 | 504:
                with contextlib.suppress(NodeAnswerError):
                    return read_replies(text)
                raise NodeUnreachableError(
                    f"The node at {address} is not available (HTTP {status}); it is asked again later.",
                    address=address,
                )
            case _ if status >= 300:  # noqa: PLR2004 - the first status of HTTP that is not success
                with contextlib.suppress(NodeAnswerError):
                    return read_replies(text)
                raise NodeAnswerError(f"{address} answers HTTP {status}; is it a node's address?", code=status)
            case _:
                return read_replies(text)


class SocketWire:
    """Requests and notifications over one WebSocket, opened when needed and again when lost.

    Arguments:
        url: ``ws://`` or ``wss://``.
        settings: how the node is asked.
        noticed: called for every notification of a subscription.

    """

    def __init__(self, url: str, settings: RpcSettings, noticed: Callable[[], None]) -> None:
        self.connects = 0
        self._url = url
        self._settings = settings
        self._noticed = noticed
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse[Any] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._closed = False

    async def exchange(self, body: bytes, ids: Sequence[int]) -> Replies:
        """Send a request and wait for its answers; see :class:`Wire`."""
        waiting = _Waiting(asyncio.get_running_loop().create_future(), set(ids))
        try:
            async with asyncio.timeout(self._settings.timeout):
                socket = await self._connected()
                for one in ids:
                    self._waiting[one] = waiting
                await socket.send_str(body.decode())
                return await waiting.future
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            raise _unreachable(self._url, failure, self._settings) from None
        finally:
            for one in ids:
                self._waiting.pop(one, None)

    async def close(self) -> None:
        """Close the socket."""
        self._closed = True
        reader, self._reader = self._reader, None
        socket, self._socket = self._socket, None
        session, self._session = self._session, None
        if socket is not None:
            await socket.close()
        if reader is not None:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        if session is not None:
            await session.close()

    async def _connected(self) -> aiohttp.ClientWebSocketResponse[Any]:
        async with self._opening:
            if self._closed:
                raise _closed(self._url)
            if self._socket is not None and not self._socket.closed:
                return self._socket
            self._session = self._session or aiohttp.ClientSession()
            self._socket = await self._session.ws_connect(self._url, max_msg_size=self._settings.answer, heartbeat=20.0)
            self.connects += 1
            self._reader = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def _read(self, socket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        async for message in socket:
            if message.type not in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}:
                continue
            data = message.data.encode() if isinstance(message.data, str) else message.data
            try:
                replies = read_replies(data)
            except NodeAnswerError as malformed:
                self._fail_all(malformed)
                continue
            self._deliver(replies)
        self._fail_all(
            NodeUnreachableError(
                f"The node at {public_address(self._url)} closed the connection.", address=public_address(self._url)
            )
        )
        self._noticed()  # whoever waits for a head looks by itself now, over a new connection

    def _deliver(self, replies: Replies) -> None:
        if len(replies) == 1 and replies[0].method:
            self._noticed()
            return
        waiting = next(
            (self._waiting[reply.id] for reply in replies if isinstance(reply.id, int) and reply.id in self._waiting),
            None,
        )
        if waiting is not None:
            waiting.settle(replies)
        elif replies and replies[0].error is not None:
            # An error that names no request (a batch or body that could not be read): the node cannot say whose it
            # is. Everything under way is answered with it; what was innocent is asked again by its caller.
            for one in set(self._waiting.values()):
                one.settle(replies)

    def _fail_all(self, failure: NodeUnreachableError | NodeAnswerError) -> None:
        for one in set(self._waiting.values()):
            if not one.future.done():
                one.future.set_exception(failure)


class _Waiting:
    """A request on its way over a WebSocket."""

    __slots__ = ("future", "ids")

    def __init__(self, future: asyncio.Future[Replies], ids: set[int]) -> None:
        self.future = future
        self.ids = ids

    def settle(self, replies: Replies) -> None:
        if not self.future.done():
            self.future.set_result(replies)


def _closed(url: str) -> NodeAnswerError:
    return NodeAnswerError(f"The feed of {public_address(url)} was closed; open another one.")


def _unreachable(url: str, failure: Exception, settings: RpcSettings) -> NodeUnreachableError | NodeAnswerError:
    """The one sentence for a connection that failed; foreign texts may hold the URL and are not repeated."""
    address = public_address(url)
    match failure:
        case aiohttp.InvalidURL() | ValueError():
            return NodeAnswerError(f"{address} is no address of a node; check the URL.")
        case aiohttp.WSServerHandshakeError(status=status):
            if status in {401, 403}:
                message = f"The node at {address} refuses the credentials (HTTP {status}); check those in the URL."
                return NodeAnswerError(message, code=status)
            return NodeUnreachableError(
                f"The node at {address} opens no WebSocket (HTTP {status}); is it its WebSocket port?", address=address
            )
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return NodeUnreachableError(
                f"The certificate of the node at {address} is not accepted; check the address.", address=address
            )
        case TimeoutError():
            return NodeUnreachableError(
                f"The node at {address} did not answer within {settings.timeout:g} seconds.", address=address
            )
        case _:
            return NodeUnreachableError(
                f"No node answers at {address} ({type(failure).__name__}); check that it runs and the URL is right.",
                address=address,
            )
