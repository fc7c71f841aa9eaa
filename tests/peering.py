"""Ingest nodes of tests that are linked, in one process, and peers that misbehave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cardinal.apps import get
from cardinal.apps.body import frame
from cardinal.protocols.diffusion import (
    Announcement,
    Decoder,
    Message,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    encode,
)
from cardinal.protocols.publish import ArbiterSettings, BlockId
from cardinal.server.ingest.blocks import blocks_of
from cardinal.server.ingest.listener import Listener
from cardinal.server.ingest.node import IngestNode
from cardinal.server.ingest.peers.objects import Objects, object_of
from cardinal.server.ingest.peers.service import Peers
from cardinal.server.ingest.peers.settings import PeerSettings
from cardinal.server.ingest.peers.shelf import Shelf
from cardinal.server.ingest.store import BodyStore
from publishers import header, proof

DEADLINE = 60.0
LOCAL = ("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Linked:
    """A node and its links; ``promoted`` are the blocks that it put on its topics."""

    node: IngestNode
    port: int
    peers: Peers
    peer_port: int
    store: BodyStore
    promoted: list[BlockId]

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.peers.counts.refusals)


@asynccontextmanager
async def linked(
    folder: Path,
    *ports: int,
    app: str = "items",
    links: PeerSettings = PeerSettings(),  # noqa: B008 - a value
    obstacle: Callable[[], str] = str,
    speed: int = 1,
    **arbiting: int,
) -> AsyncIterator[Linked]:
    """A node whose peers are at these ports of this machine. What it acknowledges is on the topics at once.

    ``speed``: of the clock of its links.
    """
    blocks = blocks_of(get(app, chain_id=1))
    settings = replace(links, peers=tuple(("127.0.0.1", port) for port in ports), listen=links.listen or LOCAL)
    store = BodyStore(folder, f"{app}:1", retain=settings.retain)
    shelf = Shelf(store, Objects(forks=blocks.forks))
    promoted: list[BlockId] = []

    def acknowledged(block: BlockId) -> None:
        promoted.append(block)
        shelf.add(block)
        store.promoted(block.number, block.hash)

    node = IngestNode(store, blocks, ArbiterSettings(**arbiting), acknowledged, obstacle=obstacle)
    peers = Peers(node, shelf, settings, lambda: speed * time.monotonic())
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = [asyncio.ensure_future(peers.run(listening.set_result)), asyncio.ensure_future(node.run())]
    try:
        async with Listener(node, "127.0.0.1:0") as listener:
            await asyncio.wait((listening, running[0]), return_when=asyncio.FIRST_COMPLETED)
            if running[0].done():
                running[0].result()
            yield Linked(node, listener.port, peers, listening.result(), store, promoted)
            running[0].cancel()
            await asyncio.wait(running[:1])
            await node.close()
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        store.close()


async def until(holds: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for notifies nobody
            await asyncio.sleep(0.01)


# --- peers that misbehave ---------------------------------------------------------------------------------------------


def body(number: int, content: int = 10) -> bytes:
    """The body of a block of numbers."""
    item = b"\x12" + _varint(content) + bytes(content)
    return frame((header(number), item, proof(number)))


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def named(number: int) -> ObjectId:
    return object_of(BlockId(number))


Pieces = bytes | Iterable[bytes] | None
"""A reply: at once, in pieces with time between, or never."""
Answer = Callable[[Message], Pieces]


class Liar:
    """A server of diffusion, written by somebody else: what it answers is up to a test."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.links = 0
        self.port = 0
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        decoder = Decoder(State.INIT)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                while data := await reader.read(1 << 16):
                    message = decoder.feed(data)
                    while message is not None:
                        decoder.expect(State.IDLE)
                        pieces = self._answer(message)
                        if pieces is None:
                            await self._wait_for_end(reader)
                        elif isinstance(pieces, bytes):
                            writer.write(pieces)
                            await writer.drain()
                        else:
                            await self._drip(pieces, writer)
                        message = decoder.feed()
        finally:
            self.ended += 1
            writer.close()

    async def _wait_for_end(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass

    async def _drip(self, pieces: Iterable[bytes], writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def lying(answer: Answer) -> AsyncIterator[Liar]:
    liar = Liar(answer)
    server = await asyncio.start_server(liar.serve, "127.0.0.1", 0)
    liar.port = server.sockets[0].getsockname()[1]
    try:
        yield liar
    finally:
        server.close()


def announcing(blocks: Iterable[tuple[ObjectId, int]], objects: Callable[[tuple[ObjectId, ...]], Pieces]) -> Answer:
    """A server that announces these ids, in pieces as requested, and answers requests for objects so."""
    waiting = iter(blocks)

    def answer(message: Message) -> Pieces:
        match message:
            case MsgRequestObjectIds(blocking, _, req):
                found = [Announcement(*one) for one, _ in zip(waiting, range(req), strict=False)]
                return encode(MsgReplyObjectIds(tuple(found))) if found or not blocking else None
            case MsgRequestObjects(ids):
                return objects(ids)
            case _:
                return b""

    return answer


def reply(*bodies: bytes) -> bytes:
    return encode(MsgReplyObjects(bodies))
