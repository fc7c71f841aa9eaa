"""An ingest node beside the direct transactional producer: how long a block takes, how many, what of it is read.

python tests/benchmarks/ingest.py [--quick] [latency] [throughput] [profile] [memory] [diffusion]

Without names it prints everything. Every figure of a table is from the same run on the same broker and disk; ratios
carry over to other machines, times do not. The node is a process of its own, the publisher is this one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import itertools
import os
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import grpc.aio
from consuming import say
from diffusion import of_diffusion

from cardinal.apps import Application, get, items
from cardinal.apps.body.body_pb2 import Header, Item, Proof
from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka
from cardinal.producer import Producer
from cardinal.protocols.publish import (
    METHOD,
    SERVICE,
    Acknowledgement,
    ArbiterSettings,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    decode_response,
    encode,
)
from cardinal.server.ingest.blocks import blocks_of
from cardinal.server.ingest.node import IngestNode
from cardinal.server.ingest.store import BodyStore

SET_BYTES: Final = 1 << 20
OPEN: Final = 32
"""Blocks that a publisher has in flight: half of what a node takes."""
RUNS: Final = 3
POOL: Final = random.Random(1).randbytes(1 << 18)
"""Items are cut from here: like transactions they cannot be compressed."""


# --- blocks and the node ----------------------------------------------------------------------------------------------


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


class Node(NamedTuple):
    """A node: its process and port, and its stream."""

    pid: int
    port: int
    url: str
    app: Application


@contextmanager
def serving(broker: EmbeddedKafka) -> Iterator[Node]:
    """A node on data and topics of its own."""
    url, topic = f"kafka://{broker.bootstrap}", f"items-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["ingest", "--node-id", topic, "--listen", "127.0.0.1:0", "--to", url, "--data", folder]
        process = subprocess.Popen(
            [sys.executable, "-m", "cardinal", *command, "--app", "items", "--topic", topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split()[-1])
            yield Node(process.pid, port, url, get("items", topic=topic))
        finally:
            process.terminate()
            process.communicate()


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


# --- latency ----------------------------------------------------------------------------------------------------------


def of_latency(broker: EmbeddedKafka, *, quick: bool) -> None:
    """From the last item of a block to its acknowledgement and its ChainUpdate, beside what cannot be less."""
    rate, warm, count = 10, 30, 10 if quick else 200
    for number, size in ((10, 300), (200, 1_500)):
        last = warm + count
        parts = [block(at, number, size) for at in range(1, last + 1)]
        with serving(broker) as node:
            _warm(node)
            reading = Reading(node.url, node.app, last)
            pushed = asyncio.run(_paced(node.port, parts, rate))
            reading.wait()
        direct = _direct_paced(broker, parts, rate)
        synced = _synced(sum(map(len, parts[0])), count)
        say(f"blocks of {number} items of {size} B, {rate} a second, {count} of them, milliseconds")
        _line("write and fsync of a file", synced)
        _line(
            "last item to acknowledgement",
            [pushed.acknowledged[at] - pushed.sent[at] for at in range(warm + 1, last + 1)],
        )
        _line("last item to ChainUpdate", [reading.delivered[at] - pushed.sent[at] for at in range(warm + 1, last + 1)])
        _line("direct, transactional: add to ChainUpdate", direct[warm:])


async def _paced(port: int, parts: Sequence[tuple[bytes, ...]], rate: float) -> Publisher:
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


def _direct_paced(broker: EmbeddedKafka, parts: Sequence[tuple[bytes, ...]], rate: float) -> list[float]:
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


def _synced(size: int, count: int) -> list[float]:
    """The least that durability takes here: appending so many bytes to a file, and syncing it."""
    seconds = []
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(POOL[:size].ljust(size))
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return seconds


def _line(name: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    say(f"  {name:44} p50 {p50 * 1e3:7.1f}   p99 {p99 * 1e3:7.1f}")


# --- throughput -------------------------------------------------------------------------------------------------------


def of_throughput(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Megabytes a second of blocks of 300 kB, from the first item to the last ChainUpdate, and to acknowledgements."""
    count, runs = (40, 1) if quick else (400, RUNS)
    parts = [block(number, 200, 1_500) for number in range(1, count + 1)]
    megabytes = sum(len(part) for one in parts for part in one) / 1e6
    direct, pushed, acknowledged, cpu = (list[float]() for _ in range(4))
    for _ in range(runs):
        direct.append(megabytes / _direct(broker, parts))
        with serving(broker) as node:
            _warm(node)
            reading = Reading(node.url, node.app, count)
            before, began = _cpu(node.pid), time.perf_counter()
            acknowledged.append(megabytes / asyncio.run(_pushed(node.port, parts)))
            reading.wait()
            pushed.append(megabytes / (time.perf_counter() - began))
            cpu.append((_cpu(node.pid) - before) * 1e3 / megabytes)
    say(f"{count} blocks of 200 items of 1500 B, one transaction a block, median of {runs} runs")
    legs = {"direct, to ChainUpdates": direct, "ingest, to ChainUpdates": pushed, "acknowledgements": acknowledged}
    for name, found in legs.items():
        rate = statistics.median(found)
        ratio = rate / statistics.median(direct)
        say(f"  {name:28} {rate:7.1f} MB/s {ratio:>7.0%} of direct   ({min(found):.1f} to {max(found):.1f})")
    say(f"  processor time of the node: {statistics.median(cpu):.1f} ms/MB")


def _direct(broker: EmbeddedKafka, parts: Sequence[tuple[bytes, ...]]) -> float:
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


def _warm(node: Node) -> None:
    """Wait until the node puts blocks on the topics: publish block 0."""
    reading = Reading(node.url, node.app, 0)
    asyncio.run(_pushed(node.port, [block(0, 10, 300)], first=0))
    reading.wait()


async def _pushed(port: int, parts: Sequence[tuple[bytes, ...]], first: int = 1) -> float:
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


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


# --- profile ----------------------------------------------------------------------------------------------------------


def of_profile(broker: EmbeddedKafka, *, quick: bool) -> None:
    """What a node does with items: as much for long ones as for short ones."""
    del broker
    count = 20 if quick else 200
    say("processor time of a node without gRPC and Kafka, by the size of its items (100 of them a block)")
    for size in (100, 1_000, 10_000):
        parts = [block(number, 100, size) for number in range(count)]
        messages = [requests(number, one) for number, one in enumerate(parts)]
        profile = cProfile.Profile()
        asyncio.run(_received(messages, profile))
        stats = pstats.Stats(profile).get_stats_profile().func_profiles
        reading, whole = stats["read_set"].cumtime, sum(one.tottime for one in stats.values())
        each = reading / (count * 102) * 1e6
        say(f"  {size:>6} B: {each:5.2f} us an item in read_set, {whole / count * 1e3:5.2f} ms a block in all")
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(8)
    rows = itertools.dropwhile(lambda line: "ncalls" not in line, text.getvalue().splitlines())
    say("\n".join(f"  {row.replace(str(Path.cwd()) + '/', '')}" for row in rows if row))


async def _received(messages: Sequence[Sequence[bytes]], profile: cProfile.Profile) -> None:
    """A node in this process takes blocks; the profile is of its event loop."""
    with tempfile.TemporaryDirectory() as folder:
        app = get("items")
        store = BodyStore(Path(folder), app.chain)
        node = IngestNode(store, blocks_of(app), ArbiterSettings(), lambda _: None)
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        node.connect(1, "publisher", answers.put_nowait)
        for number, one in enumerate(messages):
            profile.enable()
            for message in one:
                node.receive(1, message)
            profile.disable()
            while await answers.get() != encode(Acknowledgement(number)):
                pass
        await node.close()
        store.close()


# --- memory -----------------------------------------------------------------------------------------------------------


def of_memory(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Whether a node grows, by blocks that are on the topics."""
    count, each = (400, 100) if quick else (10_000, 1_000)
    say(f"resident memory of the node over {count:,} blocks of 10 items of 3000 B, megabytes")
    with serving(broker) as node:
        _warm(node)
        asyncio.run(_measured(node, Reading(node.url, node.app, count), count, each))


async def _measured(node: Node, reading: Reading, count: int, each: int) -> None:
    async with connected(node.port) as channel:
        publisher = Publisher(channel)
        sizes = []
        for number in range(1, count + 1):
            await publisher.push(number, requests(number, block(number, 10, 3_000)))
            if number % each == 0:
                while number not in reading.delivered:  # noqa: ASYNC110 - a thread reads; what waits is no growth
                    await asyncio.sleep(0.01)
                sizes.append(f"{_resident(node.pid):.0f}")
        await publisher.close()
    say("  " + " ".join(sizes))


def _resident(pid: int) -> float:
    """Megabytes that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1e3


PARTS: Final[dict[str, Callable[..., None]]] = {
    "latency": of_latency,
    "throughput": of_throughput,
    "profile": of_profile,
    "memory": of_memory,
    "diffusion": of_diffusion,
}


def main() -> None:
    """Start a broker and print the parts that were requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work or less: whether it works")
    parser.add_argument("parts", nargs="*", help="which tables; default: all")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {unknown.pop()}, only {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "data") as broker:
        for name, part in PARTS.items():
            if not given.parts or name in given.parts:
                part(broker, quick=given.quick)


if __name__ == "__main__":
    main()
