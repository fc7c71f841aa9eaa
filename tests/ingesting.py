"""Ingest nodes of tests, as processes and in this one, and publishers: gRPC clients, as anybody would write them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc.aio
import pytest

from cardinal.apps import get
from cardinal_ingest.body.body_pb2 import Header, Item, Proof
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.limits import Limits
from cardinal_ingest.node.listener import Listener
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.protocols.publish import (
    METHOD,
    SERVICE,
    ArbiterSettings,
    BlockEnd,
    BlockId,
    BlockItemSet,
    Request,
    Response,
    decode_response,
    encode,
)
from waiting import until_async

DEADLINE = 60.0


@contextmanager
def node(
    url: str, topic: str, folder: Path, *options: str, app: str = "items", listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A node, and its port; it is killed where it has not ended."""
    command = ["ingest", "--node-id", "a", "--listen", listen, "--to", url, "--data", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "cardinal", *command, "--app", app, "--topic", topic, *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().split()[-1])
    finally:
        process.kill()
        process.communicate()


def workers_of(process: int) -> set[int]:
    """Processes that this one has started, by any of its threads."""
    tasks = Path(f"/proc/{process}/task")
    if not tasks.is_dir():
        pytest.skip("the children of a process are listed by Linux only")
    return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}


# --- nodes in this process ------------------------------------------------------------------------------------------


class Served:
    """A node with its promoted blocks."""

    def __init__(self, node: IngestNode, port: int, promoted: list[BlockId]) -> None:
        self.node = node
        self.port = port
        self.promoted = promoted


@asynccontextmanager
async def serving(
    folder: Path,
    app: str = "items",
    *,
    limits: Limits | None = None,
    obstacle: Callable[[], str] = str,
    keepalive: float = 20.0,
    **settings: float,
) -> AsyncIterator[Served]:
    blocks = blocks_of(get(app, chain_id=1))
    store = BodyStore(folder, f"{app}:1")
    promoted: list[BlockId] = []
    arbiting = ArbiterSettings(**settings)  # type: ignore[arg-type] # counts are whole numbers
    node = IngestNode(store, blocks, arbiting, promoted.append, limits=limits or Limits(), obstacle=obstacle)
    ticking = asyncio.ensure_future(node.run())
    try:
        async with Listener(node, "127.0.0.1:0", keepalive=keepalive) as listener:
            yield Served(node, listener.port, promoted)
            await node.close()
    finally:
        ticking.cancel()
        store.close()


async def opened(served: Served, blocks: int) -> None:
    """Wait until the node has so many open blocks."""
    await until_async(lambda: served.node.open_blocks >= blocks)


def other(size: int) -> bytes:
    return b"\x12" + bytes([size]) + bytes(size)


def ids(*numbers: int) -> list[BlockId]:
    return [BlockId(number) for number in numbers]


# --- publishers -----------------------------------------------------------------------------------------------------


class Publisher:
    """A client of the stream, as any gRPC client makes it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()

    async def send(self, *requests: Request) -> None:
        for request in requests:
            await self._call.write(encode(request))

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(data)

    async def next(self) -> Response | None:
        """The next response; None at the end."""
        data = await asyncio.wait_for(self._call.read(), DEADLINE)
        return None if data is grpc.aio.EOF else decode_response(data)

    async def block(self, number: int, *items: bytes) -> None:
        await self.send(BlockItemSet((header(number), *items, proof(number))), BlockEnd(number))


def header(number: int) -> bytes:
    item: bytes = Item(header=Header(number=number)).SerializeToString()
    return item


def proof(number: int) -> bytes:
    item: bytes = Item(proof=Proof(number=number)).SerializeToString()
    return item


@asynccontextmanager
async def publisher(port: int) -> AsyncIterator[Publisher]:
    """A publisher connected to this port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Publisher(channel)
