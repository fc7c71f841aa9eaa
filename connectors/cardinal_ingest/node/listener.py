"""Listener of an ingest node: one gRPC stream for each publisher.

Rules:

1. Messages pass as bytes, both ways: the listener decodes nothing.
2. Not to read is the only back-pressure: a stream is read when the node has taken what came before, and has memory.
   What comes before it is read counts as the node's memory: see :mod:`cardinal_ingest.rpc.capacity`.
3. A publisher that reads no responses loses its stream.
4. A stream ends after its EndOfStream was sent, or when the publisher leaves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from cardinal.errors import ConfigurationError
from cardinal_ingest.protocols.publish import METHOD, NONE, SERVICE, STATUS_METHOD, STATUS_SERVICE
from cardinal_ingest.protocols.publish.node_status_pb2 import ServerStatusResponse
from cardinal_ingest.rpc.capacity import Capacity
from cardinal_ingest.rpc.server import Call, Server
from cardinal_ingest.rpc.status import Code, RpcError

if TYPE_CHECKING:
    import ssl

    from cardinal_ingest.node.node import IngestNode

MESSAGE_BYTES: Final = 131_072_000 + (64 << 10)
"""The largest message: a block of ``max_block_bytes`` may be one item, and is framed."""
RESPONSES_MOST: Final = 1_000
"""Responses that wait for a publisher that does not read; one that reads leaves a few."""


class Listener:
    """Serves publishers at an address.

    Arguments:
        node: decides.
        address: ``HOST:PORT``; port 0 takes a free one.
        tls: context of a server; None: not encrypted.
        keepalive: seconds after which a silent publisher is pinged; it has half of them to answer.

    Attributes:
        port: at which it listens.

    """

    def __init__(
        self, node: IngestNode, address: str, tls: ssl.SSLContext | None = None, *, keepalive: float = 20.0
    ) -> None:
        self._node = node
        self._address = address
        self._streams = 0
        handlers = {f"/{SERVICE}/{METHOD}": self._stream, f"/{STATUS_SERVICE}/{STATUS_METHOD}": self._status}
        capacity = Capacity(node.memory_most, lambda: node.memory)
        self._server = Server(handlers, limit=MESSAGE_BYTES, capacity=capacity, tls=tls, keepalive=keepalive)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return self._server.port

    async def __aenter__(self) -> Self:
        """Serve.

        Raises:
            ConfigurationError: the address cannot be had.

        """
        host, _, port = self._address.rpartition(":")
        try:
            await self._server.start(host.strip("[]"), int(port))
        except (OSError, OverflowError, ValueError):
            raise ConfigurationError(
                f"publishers cannot be served at {self._address}: choose an address of this machine, and a port that "
                "is free",
                setting="listen",
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse new streams, and end those that the node has not ended."""
        await self._server.close()

    async def _stream(self, call: Call) -> None:
        """One publisher's stream."""
        responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams += 1
        connection = self._streams

        def deliver(response: bytes | None) -> None:
            if responses.qsize() < RESPONSES_MOST:
                responses.put_nowait(response)
            elif not writing.cancelling():
                writing.cancel()
                asyncio.get_running_loop().call_soon(self._node.unread, connection)

        writing = asyncio.ensure_future(_write(call, responses))
        self._node.connect(connection, call.name or call.address, deliver, call.address)
        reason = "its stream ended"
        reading = asyncio.ensure_future(self._read(call, connection))
        reading.add_done_callback(lambda _: responses.put_nowait(None))
        try:
            await asyncio.wait((writing,))
            _raise(writing, reading)
        except RpcError as error:
            reason = error.details
            raise
        finally:
            self._node.disconnect(connection, call.failure or reason)
            writing.cancel()
            reading.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _read(self, call: Call, connection: int) -> None:
        """Pass what comes to the node, as it can take it."""
        while (request := await call.receive(lambda: self._node.must_wait(connection))) is not None:
            self._node.receive(connection, request)

    async def _status(self, call: Call) -> None:
        """The blocks that the node has, as a publisher queries them before it opens a stream."""
        await call.receive()
        first, last = self._node.first, self._node.last
        answer = ServerStatusResponse(
            first_available_block=NONE if first is None or last is None else first,
            last_available_block=NONE if last is None else last,
            next_expected_block=(NONE if first is None else first) if last is None else last + 1,
        )
        await call.send(answer.SerializeToString())


def _raise(writing: asyncio.Future[None], reading: asyncio.Future[None]) -> None:
    """Raise the error with which a stream ended. RpcError: of the call."""
    if writing.cancelled():
        raise RpcError(Code.RESOURCE_EXHAUSTED, "the publisher reads no responses")
    writing.result()
    if reading.done():
        reading.result()


async def _write(call: Call, responses: asyncio.Queue[bytes | None]) -> None:
    """Send the responses, to the end of the stream."""
    call.open()
    while (response := await responses.get()) is not None:
        await call.send(response)
