"""Listener of an ingest node: one gRPC stream for each publisher.

Rules:

1. Messages pass as bytes, both ways: gRPC decodes nothing.
2. Not to read is the only back-pressure: a stream is read when the node has taken what came before, and has memory.
   What gRPC holds of a stream that is not read is bounded: a window, and one message.
3. A publisher that reads no responses loses its stream.
4. A stream ends after its EndOfStream was sent, or when the publisher leaves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import grpc.aio

from cardinal.errors import ConfigurationError
from cardinal.protocols.publish import METHOD, NONE, SERVICE, STATUS_METHOD, STATUS_SERVICE
from cardinal.protocols.publish.node_status_pb2 import ServerStatusResponse
from cardinal.server.ingest.node import TICK_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cardinal.server.ingest.node import IngestNode

MESSAGE_BYTES: Final = 8 << 20
"""Publishers send sets of up to 2 MiB, or one item of up to 6,292,480 bytes. It bounds what a stream holds in memory:
``max_block_bytes`` in one message from each of 200 publishers would be 26 GB.
"""
RESPONSES_MOST: Final = 1_000
"""Responses that wait for a publisher that does not read; one that reads leaves a few."""
_WINDOW_BYTES: Final = 256 << 10
"""Flow-control window of a stream that is not read: 200 that push cost 340 MiB, and 940 MiB by gRPC's default."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.http2.bdp_probe", 0),  # otherwise windows grow to several MiB
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.so_reuseport", 0),  # otherwise a second node at the address takes half of the streams
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class Listener:
    """Serves publishers at an address.

    Arguments:
        node: decides.
        address: ``HOST:PORT``; port 0 takes a free one.
        credentials: for TLS; None: not encrypted.
        keepalive: seconds after which a silent publisher is pinged; it has half of them to answer.

    Attributes:
        port: at which it listens.

    Raises:
        ConfigurationError: the address cannot be had.

    """

    def __init__(
        self,
        node: IngestNode,
        address: str,
        credentials: grpc.ServerCredentials | None = None,
        *,
        keepalive: float = 20.0,
    ) -> None:
        self._node = node
        self._streams = 0
        milliseconds = int(keepalive * 1000)
        pings = (("grpc.keepalive_time_ms", milliseconds), ("grpc.keepalive_timeout_ms", milliseconds // 2))
        self._server = grpc.aio.server(options=(*_OPTIONS, *pings))
        publish = {METHOD: grpc.stream_stream_rpc_method_handler(self._stream)}
        status = {STATUS_METHOD: grpc.unary_unary_rpc_method_handler(self._status)}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, publish),
                grpc.method_handlers_generic_handler(STATUS_SERVICE, status),
            )
        )
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigurationError(
                f"publishers cannot be served at {address}: choose an address of this machine, and a port that is free",
                setting="listen",
            ) from None

    async def __aenter__(self) -> Self:
        """Serve."""
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse new streams, and end those that the node has not ended."""
        await self._server.stop(grace=1)

    async def _stream(
        self,
        requests: AsyncIterator[bytes],
        context: Any,  # noqa: ANN401 - grpc's, which has no types
    ) -> AsyncIterator[bytes]:
        """One publisher's stream."""
        responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams += 1
        connection = self._streams
        reads = True

        def deliver(response: bytes | None) -> None:
            nonlocal reads
            if reads and responses.qsize() >= RESPONSES_MOST:
                reads = False
                reading.cancel()
                asyncio.get_running_loop().call_soon(self._node.unread, connection)
            if reads:
                responses.put_nowait(response)

        async def read() -> None:
            try:
                async for request in requests:
                    self._node.receive(connection, request)
                    while self._node.must_wait(connection):  # noqa: ASYNC110 - it depends on every stream
                        await asyncio.sleep(TICK_SECONDS)
            finally:
                responses.put_nowait(None)

        reading = asyncio.ensure_future(read())
        self._node.connect(connection, identity_of(context), deliver)
        try:
            while reads and (response := await responses.get()) is not None:
                yield response
            if not reads:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the publisher reads no responses")
        finally:
            reading.cancel()
            self._node.disconnect(connection)

    async def _status(self, request: bytes, context: object) -> bytes:
        """The blocks that the node has, as a publisher queries them before it opens a stream."""
        del request, context
        first, last = self._node.first, self._node.last
        answer = ServerStatusResponse(
            first_available_block=NONE if first is None or last is None else first,
            last_available_block=NONE if last is None else last,
            next_expected_block=(NONE if first is None else first) if last is None else last + 1,
        )
        message: bytes = answer.SerializeToString()
        return message


def identity_of(context: Any) -> str:  # noqa: ANN401 - grpc's, which has no types
    """The name of a publisher's certificate, else its address without the port."""
    names = (context.auth_context() or {}).get("x509_common_name")
    if names:
        name: str = names[0].decode(errors="backslashreplace")
        return name
    peer: str = context.peer()  # ipv4:127.0.0.1:5000
    return peer.rpartition(":")[0]
