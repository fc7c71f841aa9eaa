"""The server of byte streams: nothing is open after its close, wherever a connection was just then."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from cardinal._stream_server import StreamServer
from cardinal.config.listening import refusal
from certificates import Authority
from looping import on_loop
from waiting import until_async

HOST = "127.0.0.1"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.write(bytes(64 << 20))  # more than the system buffers, for a peer that does not read


def connected(port: int) -> socket.socket:
    peer = socket.create_connection((HOST, port), 60)
    peer.setblocking(False)  # noqa: FBT003 - its only argument
    return peer


async def ended(peer: socket.socket) -> bool:
    """Whether the other side closes or resets the connection; what it sent before is read."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        try:
            while await loop.sock_recv(peer, 1 << 20):
                pass
        except ConnectionError:
            pass
    return True


@on_loop
async def test_a_connection_is_served_until_either_side_closes_it() -> None:
    server = StreamServer(echo)
    await server.start(HOST, 0)
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(b"3a")
    assert await reader.readexactly(2) == b"3a"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await server.close()
    await server.close()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("serve", [echo, flood])
def test_connections_end_with_the_server_wherever_they_are(serve: object, steps: int) -> None:
    async def run() -> None:
        server = StreamServer(serve)  # type: ignore[arg-type]
        await server.start(HOST, 0)
        with closing(connected(server.port)) as first, closing(connected(server.port)) as second:
            for _ in range(steps):  # accepted, its task begun or not
                await asyncio.sleep(0)
            await server.close()
            assert await ended(first)
            assert await ended(second)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(run())
        gc.collect()  # a transport that is left warns


@on_loop
async def test_a_failed_task_is_reported_and_its_connection_closed() -> None:
    async def fail(*_: object) -> None:
        raise ValueError

    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    server = StreamServer(fail)
    await server.start(HOST, 0)
    with closing(connected(server.port)) as peer:
        assert await ended(peer)
    await until_async(lambda: reported)
    assert isinstance(reported[0]["exception"], ValueError)
    await server.close()


@on_loop
async def test_connections_beyond_the_limit_are_refused_and_named(caplog: pytest.LogCaptureFixture) -> None:
    server = StreamServer(echo, most=3, most_of_address=2)
    await server.start(HOST, 0)
    with closing(connected(server.port)) as one, closing(connected(server.port)):
        await until_async(lambda: [peer.is_new for peer in server._connections.values()] == [False, False])
        for _ in range(2):
            with closing(connected(server.port)) as far:
                assert await ended(far)
        text = "a connection of 127.0.0.1 is refused: 2 are open, 2 of them its own"
        assert caplog.text.count(text) == 1, "one line in ten seconds"
        one.close()
        await until_async(lambda: len(server._connections) == 1)
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"3a")
        assert await reader.readexactly(2) == b"3a"
        writer.close()
        await writer.wait_closed()
    await server.close()


@on_loop
async def test_a_handshake_that_does_not_end_makes_room_for_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    leaf = authority.sign("node", hosts=[HOST])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(leaf.certificate, leaf.key)
    server = StreamServer(echo, tls=tls, handshake_seconds=60, most=2)
    server._reports = lambda: True  # type: ignore[method-assign]
    await server.start(HOST, 0)
    with closing(connected(server.port)) as idle, closing(connected(server.port)) as later:
        await until_async(lambda: len(server._connections) == 2)
        trusted = ssl.create_default_context(cafile=str(authority.certificate))
        reader, writer = await asyncio.open_connection(HOST, server.port, ssl=trusted)
        writer.write(b"3a")
        assert await reader.readexactly(2) == b"3a"
        assert await ended(idle), "the oldest"
        assert later.fileno() >= 0
        plain = await asyncio.open_connection(HOST, server.port)
        plain[1].write(b"GET / HTTP/1.1\r\n\r\n")
        await until_async(lambda: "the TLS handshake of 127.0.0.1 failed: http request" in caplog.text)
        plain[1].close()
        writer.close()
        await writer.wait_closed()
    await server.close()


@on_loop
async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    server = StreamServer(echo)
    await server.start_unix(tmp_path / "socket")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    writer.write(b"3a")
    assert await reader.readexactly(2) == b"3a"
    await server.close()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


@on_loop
async def test_the_reason_of_an_address_that_cannot_be_had_is_the_systems() -> None:
    with closing(socket.create_server((HOST, 0))) as taken, pytest.raises(OSError) as caught:  # noqa: PT011 - any
        await StreamServer(echo).start(HOST, taken.getsockname()[1])
    assert refusal(caught.value) == os.strerror(errno.EADDRINUSE)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - any
        await StreamServer(echo).start("203.0.113.9", 9999)
    assert refusal(caught.value) == os.strerror(errno.EADDRNOTAVAIL)
