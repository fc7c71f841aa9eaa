"""Publisher process of tests: pushes a growing chain from a file, and prints what was acknowledged.

    python pushing.py PORT FILE blob

The application is blob, or items, which has no forks. A line of the file is a block: number, hash, parent and content,
in hex. The last line is the head; a block whose parent is not the line before begins another branch. The hash of each
block that a node acknowledged is printed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grpc.aio

from cardinal.apps import blob, items
from cardinal.apps.body import items_of
from cardinal.apps.body.body_pb2 import Header, Item, Proof
from cardinal.protocols.publish import (
    Close,
    Open,
    PublisherSession,
    Push,
    Released,
    SessionEffect,
    SessionSettings,
    decode_response,
    encode,
)
from cardinal.protocols.streams import Payload

METHOD = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"
HELD_AT_START = 100
MOST_HELD = 140
MOST_KNOWN = 1_000
TAIL_BYTES = 1 << 24
PAUSE_SECONDS = 0.01
QUICK = SessionSettings(backoff=0.05, backoff_most=0.5, cooling=0.2, storm_ends=1_000_000)


class Mined(NamedTuple):
    """A line of the file."""

    number: int
    hash: bytes
    parent: bytes
    content: bytes

    @classmethod
    def of(cls, line: str) -> Mined:
        number, *parts = line.split(",")
        return cls(int(number), *map(bytes.fromhex, parts))

    @property
    def line(self) -> str:
        return f"{self.number},{self.hash.hex()},{self.parent.hex()},{self.content.hex()}\n"

    def payload(self, app: str) -> Payload:
        """What a consumer gets."""
        if app == "items":
            return items.payload(items.Block(self.number, self.items(app)))
        half = len(self.content) // 2
        keys = {"one": self.content[:half], "two": self.content[half:]}
        return blob.payload(blob.Blob(self.number, self.hash, self.parent, keys))

    def items(self, app: str) -> tuple[bytes, ...]:
        """What is pushed."""
        if app == "blob":
            return items_of(self.payload(app), chain_id=1)
        header: bytes = Item(header=Header(number=self.number)).SerializeToString()
        proof: bytes = Item(proof=Proof(number=self.number, digest=self.hash)).SerializeToString()
        return header, b"\x25" + self.hash[:4], proof


class Source:
    """The file as a chain."""

    def __init__(self, file: Path) -> None:
        self._lines = file.open()
        self._lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
        if self._lines.tell():
            self._lines.readline()  # its beginning is missing
        self._partial = ""
        self._blocks: dict[bytes, Mined] = {}
        self._head: Mined | None = None

    def branch(self, known: dict[int, bytes], most: int) -> list[Mined]:
        """The head's newest ancestors that are not known, lowest first."""
        *complete, self._partial = (self._partial + self._lines.read()).split("\n")
        for line in complete:
            self._head = Mined.of(line)
            self._blocks[self._head.hash] = self._head
        if self._head is not None and len(self._blocks) > 2 * MOST_KNOWN:
            newest = self._head.number - MOST_KNOWN
            self._blocks = {block.hash: block for block in self._blocks.values() if block.number > newest}
        new: list[Mined] = []
        block = self._head
        while block is not None and known.get(block.number) != block.hash and len(new) < most:
            new.append(block)
            block = self._blocks.get(block.parent)
        return new[::-1]


class Pusher:
    """A session with one node, over gRPC."""

    def __init__(self, port: int, source: Source, app: str) -> None:
        self._address = f"127.0.0.1:{port}"
        self._source = source
        self._app = app
        settings = replace(QUICK, forks=app == "blob")
        self._session = PublisherSession(settings, [("node", 0)], random.random, time.monotonic())
        self._appended: dict[int, bytes] = {}
        self._unreported: dict[int, bytes] = {}
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, asyncio.Queue[bytes | None]] = {}

    async def run(self) -> None:
        while True:
            self._feed()
            self._carry_out(self._session.tick(time.monotonic()))
            await asyncio.sleep(PAUSE_SECONDS)

    def _feed(self) -> None:
        """Follow the source: leave a branch that it left, and append what is new."""
        new = self._source.branch(self._appended, 10**9 if self._appended else HELD_AT_START)
        if new and self._appended and new[0].number <= max(self._appended):
            ancestor = new[0].number - 1
            for branch in (self._appended, self._unreported):
                for number in [number for number in branch if number > ancestor]:
                    del branch[number]
            self._carry_out(self._session.reorg(ancestor, time.monotonic()))
        for block in new:
            if self._session.held >= MOST_HELD:
                break
            self._appended[block.number] = self._unreported[block.number] = block.hash
            self._carry_out(self._session.append(block.items(self._app), time.monotonic(), sealed=True))

    def _carry_out(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            match effect:
                case Open(_, stream):
                    self._requests[stream] = asyncio.Queue()
                    self._streams[stream] = asyncio.ensure_future(self._stream(stream))
                case Push(stream, request):
                    self._requests[stream].put_nowait(encode(request))
                case Close(stream):
                    self._requests[stream].put_nowait(None)
                case Released(number):
                    for acknowledged in [one for one in self._unreported if one <= number]:
                        print(self._unreported.pop(acknowledged).hex(), flush=True)  # noqa: T201 - to the test

    async def _stream(self, stream: int) -> None:
        requests = self._requests[stream]
        async with grpc.aio.insecure_channel(self._address) as channel:
            call = channel.stream_stream(METHOD)()
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.wait_for_connection()
                self._carry_out(self._session.opened(stream, time.monotonic()))
                reading = asyncio.ensure_future(self._read(stream, call))
                while not reading.done():
                    if requests.empty():
                        self._carry_out(self._session.ready(stream, time.monotonic()))
                    if requests.empty():
                        await asyncio.wait([reading], timeout=PAUSE_SECONDS)
                    elif (request := requests.get_nowait()) is None:
                        break
                    else:
                        await call.write(request)
                reading.cancel()
        self._carry_out(self._session.closed(stream, time.monotonic()))

    async def _read(self, stream: int, call: grpc.aio.StreamStreamCall) -> None:
        with suppress(grpc.aio.AioRpcError):
            while (data := await call.read()) is not grpc.aio.EOF:
                self._carry_out(self._session.receive(stream, decode_response(data), time.monotonic()))


if __name__ == "__main__":
    asyncio.run(Pusher(int(sys.argv[1]), Source(Path(sys.argv[2])), sys.argv[3]).run())
