"""A URL with TLS for a server without it, and the reverse, is refused: no wait heals it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cardinal._stream_server import StreamServer
from cardinal._tls_probe import GRPC, HTTP, speaks_other
from cardinal.config.url import Endpoint
from cardinal.errors import RefusedError
from cardinal.transports import parse_url
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.faults import NoNodeError
from cardinal_ethereum.feed.settings import RpcSettings
from cardinal_ingest.publisher.nodes import IngestNodes
from certificates import Authority

HOST = "127.0.0.1"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a greeting, and close the connection on anything else, as a node's server does."""
    line = await reader.readline()
    if line in (HTTP[: HTTP.index(b"\n") + 1], GRPC[: GRPC.index(b"\n") + 1]):
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\n\r\n")


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection, as a proxy does whose node is away."""
    del writer
    await reader.read(1)


@asynccontextmanager
async def serving(folder: Path, *, tls: bool, answers: bool = True) -> AsyncIterator[int]:
    context = None
    if tls:
        leaf = Authority(folder, "authority").sign("node", hosts=[HOST])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf.certificate, leaf.key)
    server = StreamServer(_answer if answers else _close, tls=context)
    await server.start(HOST, 0)
    try:
        yield server.port
    finally:
        await server.close()


@pytest.mark.parametrize("served", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("tls", [False, True], ids=["as plain", "as tls"])
@pytest.mark.parametrize("greeting", [HTTP, GRPC], ids=["http", "grpc"])
def test_a_server_that_speaks_the_other_is_found(tmp_path: Path, greeting: bytes, *, served: bool, tls: bool) -> None:
    async def probe() -> bool:
        async with serving(tmp_path, tls=served) as port:
            return await speaks_other(HOST, port, tls=tls, greeting=greeting)

    assert asyncio.run(probe()) is (served is not tls)


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_closes_its_connections_or_does_not_listen_may_heal(tmp_path: Path, *, tls: bool) -> None:
    async def probe() -> list[bool]:
        async with serving(tmp_path, tls=False, answers=False) as port:
            closing = await speaks_other(HOST, port, tls=tls)
        return [closing, await speaks_other(HOST, port, tls=tls)]

    assert asyncio.run(probe()) == [False, False]


@pytest.mark.parametrize(
    ("scheme", "served", "remedy"),
    [
        ("wss", False, "does not speak TLS: write ws://"),
        ("https", False, "does not speak TLS: write http://"),
        ("ws", True, "speaks TLS only: write wss://"),
        ("http", True, "speaks TLS only: write https://"),
    ],
)
def test_a_node_of_the_other_scheme_is_refused(tmp_path: Path, scheme: str, remedy: str, *, served: bool) -> None:
    async def query() -> None:
        async with serving(tmp_path, tls=served) as port:
            client = RpcClient(Endpoint.parse(f"{scheme}://{HOST}:{port}"), RpcSettings(attempts=1))
            try:
                await client.call("eth_chainId")
            finally:
                await client.close()

    with pytest.raises(NoNodeError, match=remedy):
        asyncio.run(query())


@pytest.mark.parametrize(("options", "served", "remedy"), [("", True, "add .tls=1"), ("?tls=1", False, "leave tls=1")])
def test_an_ingest_node_of_the_other_kind_is_refused(
    tmp_path: Path, options: str, remedy: str, *, served: bool
) -> None:
    async def query() -> None:
        async with serving(tmp_path, tls=served) as port:
            await IngestNodes(parse_url(f"ingest://{HOST}:{port}{options}"), "one").status()

    with pytest.raises(RefusedError, match=remedy):
        asyncio.run(query())
