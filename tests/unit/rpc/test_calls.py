"""Client and server of gRPC streams on the loopback, and peers on the wire that are neither."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, PingAckReceived, ResponseReceived, StreamReset, TrailersReceived
from hyperframe.frame import ContinuationFrame, HeadersFrame

from cardinal_ingest.rpc.capacity import LEAST_BYTES, Capacity
from cardinal_ingest.rpc.client import connected
from cardinal_ingest.rpc.messages import PREFIX
from cardinal_ingest.rpc.server import Call, Server
from cardinal_ingest.rpc.status import Code, RpcError
from cardinal_ingest.rpc.stream import Stream
from looping import on_loop
from waiting import until_async

LIMIT = 1 << 20
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
]


async def echo(call: Call) -> None:
    while (message := await call.receive()) is not None:
        await call.send(message)


async def refuse(call: Call) -> None:
    await call.receive()
    raise RpcError(Code.ABORTED, "not today")


async def idle(call: Call) -> None:
    """Read nothing, until the peer leaves."""
    call.open()
    await asyncio.Event().wait()


@asynccontextmanager
async def served(capacity: Capacity | None = None) -> AsyncIterator[int]:
    handlers = {"/echo": echo, "/refuse": refuse, "/idle": idle}
    server = Server(handlers, limit=LIMIT, capacity=capacity or Capacity(64 << 20), keepalive=5)
    await server.start("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.close()


@asynccontextmanager
async def calling(port: int, path: str) -> AsyncIterator[Stream]:
    """A call, on a connection of its own."""
    async with connected(f"127.0.0.1:{port}", limit=LIMIT) as one, one.call(path) as stream:
        yield stream


class Wire:
    """A peer that speaks HTTP/2 frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self._events: deque[Event] = deque()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def until(self, kind: type[Event]) -> Event:
        """The next event of a kind."""
        async with asyncio.timeout(60):
            while True:
                while self._events:
                    if isinstance(event := self._events.popleft(), kind):
                        return event
                await self.flush()
                data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection"
                self._events.extend(self.h2.receive_data(data))

    async def closed(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                while await self.reader.read(1 << 16):
                    pass


@asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def echoes(port: int) -> None:
    """An honest client is served."""
    async with connected(f"127.0.0.1:{port}", limit=LIMIT) as one:
        assert await one.query("/echo", b"hello") == b"hello"


@on_loop
async def test_messages_come_back_whole_and_in_order() -> None:
    messages = [bytes([i]) * size for i, size in enumerate((0, 1, 5, 70_000, LIMIT, 300_000, LIMIT, 0))]
    capacity = Capacity(64 << 20)
    async with served(capacity) as port, calling(port, "/echo") as stream:
        for message in messages:
            await stream.send(message)
            assert await stream.receive() == message
        await stream.end()
        assert await stream.receive() is None
    await until_async(lambda: capacity.taken == 0)


@pytest.mark.parametrize(
    ("path", "size", "code"),
    [("/refuse", 1, Code.ABORTED), ("/absent", 1, Code.UNIMPLEMENTED), ("/echo", LIMIT + 1, Code.RESOURCE_EXHAUSTED)],
)
@on_loop
async def test_a_refusal_has_its_code(path: str, size: int, code: Code) -> None:
    async with served() as port, connected(f"127.0.0.1:{port}", limit=LIMIT) as one, one.call(path) as stream:
        with suppress(RpcError):
            await stream.send(bytes(size))
        with pytest.raises(RpcError) as refused:
            await stream.receive()
        assert refused.value.code is code


@on_loop
async def test_a_message_may_come_byte_by_byte_with_empty_frames_between() -> None:
    async with served() as port, wire(port) as peer:
        peer.h2.send_headers(1, HEADERS)  # without "te", as Helidon's client sends them
        for byte in PREFIX.pack(0, 2) + b"ok":
            peer.h2.send_data(1, b"")
            peer.h2.send_data(1, bytes([byte]))
            await peer.flush()
        peer.h2.end_stream(1)
        await peer.until(ResponseReceived)
        trailers = await peer.until(TrailersReceived)
        assert ("grpc-status", "0") in trailers.headers  # type: ignore[attr-defined]


@on_loop
async def test_a_compressed_message_is_unimplemented() -> None:
    async with served() as port, wire(port) as peer:
        peer.h2.send_headers(1, HEADERS)
        peer.h2.send_data(1, PREFIX.pack(1, 0))
        answer = await peer.until(ResponseReceived)
        assert ("grpc-status", str(int(Code.UNIMPLEMENTED))) in answer.headers  # type: ignore[attr-defined]
        await echoes(port)


@pytest.mark.parametrize("flood", ["pings", "settings", "resets", "empty frames", "windows"])
@on_loop
async def test_a_flood_of_frames_that_carry_nothing_ends_its_connection_only(flood: str) -> None:
    async with served() as port, wire(port) as peer:
        if flood == "empty frames":
            peer.h2.send_headers(1, HEADERS)
        for i in range(5_000 if flood != "resets" else 500):
            match flood:
                case "pings":
                    peer.h2.ping(bytes(8))
                case "settings":
                    peer.h2.update_settings({3: i + 1})
                case "resets":
                    peer.h2.send_headers(2 * i + 1, HEADERS)
                    peer.h2.reset_stream(2 * i + 1)
                case "windows":
                    peer.h2.increment_flow_control_window(1)
                case _:
                    peer.h2.send_data(1, b"")
        with suppress(ConnectionError):
            await peer.flush()
        await peer.closed()
        await echoes(port)


@on_loop
async def test_a_window_may_be_overrun_by_a_mebibyte() -> None:
    async with served() as port, wire(port) as peer:
        headers = [(name, "/idle" if name == ":path" else value) for name, value in HEADERS]
        peer.h2.send_headers(1, headers)
        await peer.until(ResponseReceived)
        over = peer.h2.local_flow_control_window(1) + (1 << 20) - (64 << 10)
        peer.h2.outbound_flow_control_window += 2 << 20
        peer.h2.streams[1].outbound_flow_control_window += 2 << 20
        while over > 0:
            peer.h2.send_data(1, bytes(min(over, 16_384)))
            over -= 16_384
        await peer.flush()
        peer.h2.ping(b"12345678")
        await peer.until(PingAckReceived)
        await echoes(port)


@on_loop
async def test_bytes_that_are_no_http_2_end_their_connection() -> None:
    async with served() as port, wire(port) as peer:
        peer.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await peer.closed()
        await echoes(port)


@on_loop
async def test_unread_bytes_are_bounded_across_connections() -> None:
    capacity = Capacity(4 << 20)
    headers = [(name, "/idle" if name == ":path" else value) for name, value in HEADERS]
    async with served(capacity) as port, wire(port) as one, wire(port) as two, wire(port) as three:
        for peer in (one, two, three):
            peer.h2.send_headers(1, headers)
            await peer.until(ResponseReceived)
            while (size := min(peer.h2.local_flow_control_window(1), 16_384)) > 0:
                peer.h2.send_data(1, bytes(size))
            await peer.flush()
        assert capacity.taken <= 4 << 20
        await echoes(port)


@on_loop
async def test_half_messages_that_hold_all_capacity_do_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal_ingest.rpc.capacity._STALL_SECONDS", 0.5)
    capacity = Capacity(1 << 20)
    async with served(capacity) as port, AsyncExitStack() as stack:
        for _ in range(40):
            peer = await stack.enter_async_context(wire(port))
            peer.h2.send_headers(1, HEADERS)
            peer.h2.send_data(1, PREFIX.pack(0, LIMIT))
            await peer.flush()
            for _ in range(3):
                peer.h2.send_data(1, bytes(16_000))
            await peer.flush()
        await until_async(lambda: capacity.taken >= 1 << 20)
        async with connected(f"127.0.0.1:{port}", limit=LIMIT) as one:
            message = bytes(LIMIT)
            assert await one.query("/echo", message) == message
        assert capacity.taken <= (1 << 20) + 42 * LEAST_BYTES + LIMIT


@pytest.mark.parametrize("size", [0, 16_384])
@on_loop
async def test_headers_that_do_not_end_end_their_connection(size: int) -> None:
    async with served() as port, wire(port) as peer:
        await peer.flush()
        frames = [HeadersFrame(1, b""), *(ContinuationFrame(1, bytes(size)) for _ in range(64))]
        peer.writer.write(b"".join(frame.serialize() for frame in frames))
        await peer.closed()
        await echoes(port)


@on_loop
async def test_frames_may_be_split_anywhere() -> None:
    async with served() as port, wire(port) as peer:
        peer.h2.send_headers(1, [*HEADERS, ("x-long", "x" * 12_000)])
        peer.h2.send_data(1, PREFIX.pack(0, 2) + b"ok", end_stream=True)
        for byte in peer.h2.data_to_send():
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
        await peer.until(TrailersReceived)


@on_loop
async def test_a_peer_that_continues_after_the_trailers_is_reset() -> None:
    async with served() as port, wire(port) as peer:
        headers = [(name, "/refuse" if name == ":path" else value) for name, value in HEADERS]
        peer.h2.send_headers(1, headers)
        peer.h2.send_data(1, PREFIX.pack(0, 0))
        await peer.until(ResponseReceived)
        for _ in range(10):
            peer.h2.send_data(1, bytes(16_000))
        reset = await peer.until(StreamReset)
        assert (reset.stream_id, reset.error_code) == (1, 0)  # type: ignore[attr-defined]
        await echoes(port)


@on_loop
async def test_a_client_on_one_connection_may_call_without_end() -> None:
    async with served() as port, connected(f"127.0.0.1:{port}", limit=LIMIT) as one:
        for number in range(300):
            message = str(number).encode()
            assert await one.query("/echo", message) == message
            if number % 50 == 49:
                await asyncio.sleep(0)
