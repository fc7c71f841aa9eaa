"""Server of gRPC streams."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from cardinal._stream_server import StreamServer
from cardinal_ingest.rpc.capacity import Capacity
from cardinal_ingest.rpc.connection import Connection
from cardinal_ingest.rpc.status import Code, RpcError, trailers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from cardinal_ingest.rpc.stream import Stream

    Handler = Callable[["Call"], Coroutine[Any, Any, None]]

_HANDSHAKE_SECONDS: Final = 10.0
_END_SECONDS: Final = 1.0
_CONNECTIONS_MOST: Final = 512
"""Connections at once, TLS handshakes included: twice the publishers that a node serves by default."""
_OF_ADDRESS_MOST: Final = 256
"""Connections of one address: many publishers may stand behind one, and none takes all."""
_HEADERS: Final = [(":status", "200"), ("content-type", "application/grpc")]
_LOG: Final = logging.getLogger(__name__)


class Call:
    """One call, on the server's side.

    Attributes:
        address: of the peer, without its port.
        name: of its certificate; empty where it has none.

    """

    def __init__(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        self._stream = stream
        self.address: str = (writer.get_extra_info("peername") or ("unknown",))[0]
        self.name = _name(writer.get_extra_info("peercert"))
        self.receive = stream.receive
        self.answers = False

    @property
    def failure(self) -> str:
        """The reason for which it was lost; empty where it was not."""
        return "" if self._stream.failure is None else self._stream.failure.details

    async def send(self, message: bytes) -> None:
        """Send a message."""
        self.open()
        await self._stream.send(message)

    def open(self) -> None:
        """Send the headers, where they have not been sent."""
        if not self.answers:
            self.answers = True
            self._stream.connection.respond(self._stream, _HEADERS)

    def end(self, code: Code, details: str) -> None:
        """Send the trailers; without headers before them, they are one with these."""
        headers = [] if self.answers else _HEADERS
        self._stream.connection.respond(self._stream, [*headers, *trailers(code, details)], end=True)


class Server:
    """Serves calls by their paths.

    Arguments:
        handlers: of paths; one that returns ends its call with OK, one that raises RpcError with that.
        limit: bytes of the largest message.
        capacity: of unread bytes, of all connections.
        tls: context of a server; None: not encrypted.
        keepalive: see :class:`.connection.Connection`.

    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        limit: int,
        capacity: Capacity,
        tls: ssl.SSLContext | None = None,
        keepalive: float = 20.0,
    ) -> None:
        self._handlers = dict(handlers)
        self._limit = limit
        self._capacity = capacity
        self._keepalive = keepalive
        self._connections: set[Connection] = set()
        self._calls: set[Call] = set()
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server = StreamServer(
            self._connected,
            tls=tls,
            handshake_seconds=_HANDSHAKE_SECONDS,
            most=_CONNECTIONS_MOST,
            most_of_address=_OF_ADDRESS_MOST,
        )
        self.port = 0

    async def start(self, host: str, port: int) -> Self:
        """Listen. OSError: the address cannot be had."""
        await self._server.start(host, port)
        self.port = self._server.port
        return self

    async def close(self) -> None:
        """Refuse new calls; those that are open have a second to end."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._idle.wait()
        for connection in self._connections:
            connection.terminate()
        await self._server.close()
        self._capacity.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:

        async def serve(stream: Stream) -> None:
            await self._serve(stream, writer)

        connection = Connection(
            reader, writer, self._capacity, limit=self._limit, serve=serve, keepalive=self._keepalive
        )
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _serve(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        call = Call(stream, writer)
        self._calls.add(call)
        self._idle.clear()
        try:
            await self._handler(stream.headers)(call)
            call.open()
            call.end(Code.OK, "")
        except RpcError as error:
            call.end(error.code, error.details)
        except Exception:  # noqa: BLE001 - the outermost of a call: the other calls are served on
            _LOG.exception("a call failed")
            call.end(Code.INTERNAL, "the call failed: the server's log says why")
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _handler(self, headers: Mapping[str, str]) -> Handler:
        """The handler of a call. RpcError: it has none."""
        if self._closing:
            raise RpcError(Code.UNAVAILABLE, "the server ends: call another")
        handler = self._handlers.get(headers.get(":path", ""))
        if handler is None or not headers.get("content-type", "").startswith("application/grpc"):
            raise RpcError(Code.UNIMPLEMENTED, "there is no such method here: is it the right server?")
        return handler


def _name(certificate: Mapping[str, Any] | None) -> str:
    """The common name of a certificate; empty where there is none."""
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""
