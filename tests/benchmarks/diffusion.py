"""Diffusion of bodies between two processes beside a raw copy: the same bytes over the same kind of connection.

The serving process is ``python tests/benchmarks/diffusion.py raw|memory|node FOLDER COUNT``; it prints its port. This
process fetches.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from report import print_rates, say

from cardinal.apps import get
from cardinal_ingest.body import frame
from cardinal_ingest.body.body_pb2 import Header, Item, Proof
from cardinal_ingest.body_exchange.counts import PeerCounts
from cardinal_ingest.body_exchange.fetching import PeerFetcher
from cardinal_ingest.body_exchange.objects import Objects, object_of
from cardinal_ingest.body_exchange.served_bodies import Shelf
from cardinal_ingest.body_exchange.serving import PeerServer
from cardinal_ingest.body_exchange.settings import READ_BYTES, PeerSettings
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.protocols.diffusion import ObjectId
from cardinal_ingest.protocols.publish import ArbiterSettings, BlockId

BODY_BYTES: Final = 300_000
ITEMS: Final = 200
RUNS: Final = 5
DEADLINE: Final = 300.0
TOGETHER: Final = 16
"""Bodies that wait for the disk at once: as many as a peer may have in flight."""
OBJECTS: Final = Objects(forks=False)
LISTEN: Final = PeerSettings(listen=("127.0.0.1", 0))


def body(number: int) -> bytes:
    """A body of 300 kB: a header, 200 items, a proof."""
    size = BODY_BYTES // ITEMS - 6
    item = b"\x22" + bytes((size & 0x7F | 0x80, size >> 7)) + number.to_bytes(4, "big") * (size // 4) + bytes(size % 4)
    begin, end = Item(header=Header(number=number)), Item(proof=Proof(number=number))
    return frame((begin.SerializeToString(), *(item,) * ITEMS, end.SerializeToString()))


# --- the process that serves ------------------------------------------------------------------------------------------


class MemoryShelf:
    """Bodies in memory, as the links read them."""

    def __init__(self, count: int) -> None:
        self.watchers: set[Callable[[], object]] = set()
        self._bodies = {number: body(number) for number in range(count)}

    def after(self, ticket: int, limit: int) -> Iterator[tuple[int, ObjectId, int]]:
        for number in range(ticket, min(ticket + limit, len(self._bodies))):
            yield number + 1, object_of(BlockId(number)), len(self._bodies[number])

    def body(self, one: ObjectId) -> bytes:
        return self._bodies[one.number]

    def pin(self, one: ObjectId) -> None:
        """Nothing: all of them stay."""

    release = pin


async def serve_raw(count: int) -> None:
    """Write all bodies to whoever connects."""
    bodies = [body(number) for number in range(count)]

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for one in bodies:
            writer.write(one)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(write, "127.0.0.1", 0, limit=READ_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - to the process that fetches
    await asyncio.Event().wait()


async def serve_diffusion(shelf: Shelf) -> None:
    async with PeerServer(shelf, LISTEN, PeerCounts()) as server:
        print(server.port, flush=True)  # noqa: T201 - to the process that fetches
        await asyncio.Event().wait()


def serve(kind: str, folder: Path, count: int) -> None:
    if kind == "raw":
        asyncio.run(serve_raw(count))
    elif kind == "memory":
        asyncio.run(serve_diffusion(MemoryShelf(count)))  # type: ignore[arg-type] # what the links read of it
    else:
        store = BodyStore(folder, "items:1", retain=count)
        for number in range(count):
            store.add(number, b"", b"", body(number), 0).result()
            store.promoted(number, b"").result()
        asyncio.run(serve_diffusion(Shelf(store, OBJECTS)))


@contextmanager
def serving(kind: str, folder: Path, count: int) -> Iterator[int]:
    """A process that serves, and its port."""
    command = [sys.executable, __file__, kind, str(folder), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


# --- the process that fetches -----------------------------------------------------------------------------------------


async def copy_raw(port: int, _folder: Path, count: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
    began, size = time.perf_counter(), 0
    writer.write(b"x")
    while data := await reader.read(READ_BYTES):
        size += len(data)
    seconds = time.perf_counter() - began
    writer.close()
    assert size == sum(len(body(number)) for number in range(count))
    return seconds


class MemoryNode:
    """A node that takes every body at once."""

    waits_for = ""
    first = 0
    floor = -1

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen: set[BlockId] = set()
        self.complete = asyncio.Event()

    def lacks(self, block: BlockId) -> bool:
        return block not in self._seen

    def joins(self, *_: object) -> bool:
        return True

    def unlinked(self, _block: BlockId) -> bool:
        return False

    async def keep(self, block: BlockId, _parent: BlockId, content: bytes) -> None:
        assert len(content) > BODY_BYTES * 0.95
        self._seen.add(block)
        if len(self._seen) == self._count:
            self.complete.set()


async def fetch_to_memory(port: int, _folder: Path, count: int) -> float:
    node = MemoryNode(count)
    settings = PeerSettings(peers=(("127.0.0.1", port),))
    fetcher = PeerFetcher(node, OBJECTS, settings, PeerCounts())  # type: ignore[arg-type] # what the links use of it
    return await _until(fetcher, node.complete.wait())


async def fetch_to_node(port: int, folder: Path, count: int) -> float:
    """Verified, stored with a sync, and acknowledged."""
    app, done = get("items"), asyncio.Event()

    def acknowledged(block: BlockId) -> None:
        if block.number == count - 1:
            done.set()

    store = BodyStore(folder, app.chain)
    node = IngestNode(store, blocks_of(app), ArbiterSettings(first=0), acknowledged)
    settings = PeerSettings(peers=(("127.0.0.1", port),))
    try:
        return await _until(PeerFetcher(node, OBJECTS, settings, PeerCounts()), done.wait())
    finally:
        await node.close()
        store.close()


async def store_alone(_port: int, folder: Path, count: int) -> float:
    """The same bodies to the same store, without a link: the most that the disk allows."""
    store = BodyStore(folder / "alone", "items:1")
    bodies = [body(number) for number in range(count)]
    began = time.perf_counter()
    waiting: deque[Future[None]] = deque()
    for number, one in enumerate(bodies):
        waiting.append(store.add(number, b"", b"", one, 0))
        if len(waiting) == TOGETHER:
            waiting.popleft().result()
    while waiting:
        waiting.popleft().result()
    seconds = time.perf_counter() - began
    store.close()
    return seconds


async def _until(fetcher: PeerFetcher, done: asyncio.Future[bool] | object) -> float:
    began = time.perf_counter()
    running = asyncio.ensure_future(fetcher.run())
    await asyncio.wait_for(done, DEADLINE)  # type: ignore[arg-type] # an awaitable
    seconds = time.perf_counter() - began
    running.cancel()
    await asyncio.wait((running,))
    return seconds


LEGS: Final[dict[str, tuple[str, Callable[..., object]]]] = {
    "raw asyncio copy": ("raw", copy_raw),
    "diffusion, memory to memory": ("memory", fetch_to_memory),
    "diffusion, disk to disk": ("node", fetch_to_node),
    "store alone": ("raw", store_alone),
}


def of_diffusion(_broker: object, *, quick: bool) -> None:
    """Megabytes a second of bodies of 300 kB: copied, fetched, and fetched, verified and made durable."""
    count, runs = (100, 1) if quick else (1_000, RUNS)
    megabytes = sum(len(body(number)) for number in range(count)) / 1e6
    found: dict[str, list[float]] = {name: [] for name in LEGS}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            for name, (kind, fetch) in LEGS.items():
                with serving(kind, Path(folder) / f"{run}-served", count) as port:
                    seconds = asyncio.run(fetch(port, Path(folder) / f"{run}-fetched", count))  # type: ignore[arg-type]
                found[name].append(megabytes / seconds)
    say(f"{count:,} bodies of 300 kB between two processes, median of {runs} runs")
    print_rates(found, "raw asyncio copy", "raw")


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
