"""What the benchmarks of ingest nodes share: blocks, a publisher, a reader, and the direct producer beside them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import grpc.aio

from cardinal.apps import Application, get
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal_devkit.kafka import EmbeddedKafka
from cardinal_ingest import items
from cardinal_ingest.body.body_pb2 import Header, Item, Proof
from cardinal_ingest.protocols.publish import (
    METHOD,
    SERVICE,
    Acknowledgement,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    decode_response,
    encode,
)

SET_BYTES: Final = 1 << 20
OPEN: Final = 32
"""Blocks that a publisher has in flight: half of what a node takes."""
POOL: Final = random.Random(1).randbytes(1 << 18)
"""Items are cut from here: like transactions they cannot be compressed."""


# --- blocks -----------------------------------------------------------------------------------------------------------


def block(number: int, count: int, size: int) -> tuple[bytes, ...]:
    """A header, so many items of about so many bytes, and a proof."""
    begin: bytes = Item(header=Header(number=number)).SerializeToString()
    end: bytes = Item(proof=Proof(number=number)).SerializeToString()
    starts = ((number + 31 * index) % (len(POOL) - size) for index in range(count))
    return (begin, *(_tagged(POOL[at : at + size]) for at in starts), end)


def _tagged(content: bytes) -> bytes:
    """An item of tag 4."""
    length, size = b"", len(content)
    while size > 0x7F:
        length, size = length + bytes((size & 0x7F | 0x80,)), size >> 7
    return b"\x22" + length + bytes((size,)) + content


def requests(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """The messages of a block: sets of at most a megabyte, and its end."""
    found: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        if waiting and size + len(part) > SET_BYTES:
            found.append(encode(BlockItemSet(tuple(waiting))))
            waiting, size = [], 0
        waiting.append(part)
        size += len(part)
    return [*found, encode(BlockItemSet(tuple(waiting))), encode(BlockEnd(number))]


# --- publishing and reading -------------------------------------------------------------------------------------------


class Publisher:
    """Pushes blocks one after the other, and notes when each was sent and acknowledged."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.sent: dict[int, float] = {}
        self.acknowledged: dict[int, float] = {}
        self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self._changed = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self._reported = -1

    async def push(self, number: int, messages: Sequence[bytes]) -> None:
        """Send a block as soon as few enough are in flight. The last item leaves before the end of the block."""
        await self.reached(number - OPEN)
        for message in messages[:-1]:
            await self._call.write(message)
        self.sent[number] = time.perf_counter()
        await self._call.write(messages[-1])

    async def close(self) -> None:
        """End the stream, and wait until the node has ended it."""
        await self._call.done_writing()
        await self._reading

    async def reached(self, number: int) -> None:
        """Wait until a block is acknowledged."""
        while self._reported < number:
            assert not self._reading.done(), "the node ended the stream"
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            response = decode_response(data)
            now = time.perf_counter()
            if isinstance(response, EndOfStream):
                break
            if isinstance(response, Acknowledgement):
                for number in range(self._reported + 1, response.block_number + 1):
                    self.acknowledged[number] = now
                self._reported = response.block_number
                self._changed.set()
        self._changed.set()


def connected(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}")


class Reading:
    """A consumer on a thread of its own: when each block was delivered."""

    def __init__(self, url: str, app: Application, last: int) -> None:
        self.delivered: dict[int, float] = {}
        self._url, self._app, self._last = url, app, last
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Consumer(self._url, self._app, topics_timeout=60) as consumer:
            for update in consumer:
                now = time.perf_counter()
                self.delivered |= dict.fromkeys((added.number for added in update.added), now)
                if update.added[-1].number >= self._last:
                    return

    def wait(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive(), "the last block did not arrive"


async def push_paced(port: int, parts: Sequence[tuple[bytes, ...]], rate: float) -> Publisher:
    messages = [requests(number, one) for number, one in enumerate(parts, 1)]
    async with connected(port) as channel:
        publisher = Publisher(channel)
        begin = time.perf_counter()
        for number, one in enumerate(messages, 1):
            await asyncio.sleep(begin + number / rate - time.perf_counter())
            await publisher.push(number, one)
        await publisher.reached(len(parts))
        await publisher.close()
    return publisher


async def push_all(port: int, parts: Sequence[tuple[bytes, ...]], first: int = 1) -> float:
    messages = [requests(number, one) for number, one in enumerate(parts, first)]
    async with connected(port) as channel:
        publisher = Publisher(channel)
        began = time.perf_counter()
        for number, one in enumerate(messages, first):
            await publisher.push(number, one)
        await publisher.reached(first + len(parts) - 1)
        seconds = time.perf_counter() - began
        await publisher.close()
    return seconds


# --- nodes ------------------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """A node: its process and port, and its stream."""

    pid: int
    port: int
    url: str
    app: Application


class Process:
    """A node as a process.

    Arguments:
        arguments: of the command.

    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cardinal", "ingest", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid

    def port(self) -> int:
        """The port for publishers, once they may come."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline().split()[-1])

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self._process.terminate()
        self._process.communicate()


@contextmanager
def started(arguments: Sequence[str]) -> Iterator[Process]:
    """A node that runs meanwhile."""
    process = Process(arguments)
    try:
        yield process
    finally:
        process.stop()


def warm(node: Node) -> None:
    """Wait until the node puts blocks on the topics: publish block 0."""
    reading = Reading(node.url, node.app, 0)
    asyncio.run(push_all(node.port, [block(0, 10, 300)], first=0))
    reading.wait()


# --- the direct producer ----------------------------------------------------------------------------------------------


def add_all(broker: EmbeddedKafka, parts: Sequence[tuple[bytes, ...]]) -> float:
    app = get("items", topic=f"items-{uuid.uuid4().hex[:12]}")
    url = f"kafka://{broker.bootstrap}?transactional=update"
    with Producer(url, app, producer_id=f"{app.default_topic}-direct") as producer:
        producer.flush(60)
        reading = Reading(url, app, len(parts))
        payloads = [items.payload(items.Block(number, one)) for number, one in enumerate(parts, 1)]
        began = time.perf_counter()
        for payload in payloads:
            producer.add(payload)
        reading.wait()
        return time.perf_counter() - began


def add_paced(broker: EmbeddedKafka, parts: Sequence[tuple[bytes, ...]], rate: float) -> list[float]:
    app = get("items", topic=f"items-{uuid.uuid4().hex[:12]}")
    url = f"kafka://{broker.bootstrap}?transactional=update"
    added: list[float] = []
    with Producer(url, app, producer_id=f"{app.default_topic}-direct") as producer:
        reading = Reading(url, app, len(parts))
        begin = time.perf_counter()
        for number, one in enumerate(parts, 1):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            added.append(time.perf_counter())
            producer.add(items.payload(items.Block(number, one)))
        reading.wait()
    return [reading.delivered[number] - at for number, at in enumerate(added, 1)]
