"""Client of gRPC streams: one connection, and the calls on it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from cardinal_ingest.rpc.capacity import Capacity
from cardinal_ingest.rpc.connection import Connection
from cardinal_ingest.rpc.status import Code, RpcError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from cardinal_ingest.rpc.stream import Stream

_CAPACITY_BYTES: Final = 16 << 20


class Client:
    """A connection to a server.

    Arguments:
        connection: that runs.
        authority: ``host:port`` of the server.
        scheme: ``http`` or ``https``.
        agent: the name that the server sees.

    """

    def __init__(self, connection: Connection, authority: str, scheme: str, agent: str) -> None:
        self._connection = connection
        self._authority = authority
        self._scheme = scheme
        self._agent = agent

    @asynccontextmanager
    async def call(self, path: str) -> AsyncIterator[Stream]:
        """Open a call; it is given up at the end of the block, where it has not ended."""
        if self._connection.failure is not None:
            raise self._connection.failure
        stream = self._connection.call(
            [
                (":method", "POST"),
                (":scheme", self._scheme),
                (":path", path),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", self._agent),
            ]
        )
        try:
            yield stream
        finally:
            if stream.has_ended:
                self._connection.release(stream)
            else:
                self._connection.cancel(stream)

    async def query(self, path: str, message: bytes) -> bytes:
        """One request, one response."""
        async with self.call(path) as stream:
            await stream.send(message)
            await stream.end()
            response = await stream.receive()
            if response is None:
                raise RpcError(Code.INTERNAL, "there is no response")
            if await stream.receive() is not None:
                raise RpcError(Code.INTERNAL, "there is more than one response")
            return response


@asynccontextmanager
async def connected(
    address: str, tls: ssl.SSLContext | None = None, *, limit: int, agent: str = "cardinal", keepalive: float = 20.0
) -> AsyncIterator[Client]:
    """A connection to ``host:port``, for the time of the block.

    Raises:
        OSError: it cannot be had.

    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    connection = Connection(reader, writer, Capacity(_CAPACITY_BYTES), limit=limit, keepalive=keepalive)
    running = asyncio.ensure_future(connection.run())
    try:
        yield Client(connection, address, "http" if tls is None else "https", agent)
    finally:
        connection.terminate()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        with suppress(OSError):
            await writer.wait_closed()
