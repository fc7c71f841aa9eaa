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
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from consuming import say
from diffusion import of_diffusion

from cardinal.apps import get
from cardinal.embedded import EmbeddedKafka
from cardinal.protocols.publish import Acknowledgement, ArbiterSettings, encode
from cardinal.server.ingest.blocks import blocks_of
from cardinal.server.ingest.node import IngestNode
from cardinal.server.ingest.store import BodyStore
from pushing import (
    POOL,
    Node,
    Publisher,
    Reading,
    add_all,
    add_paced,
    block,
    connected,
    cpu_seconds,
    print_line,
    push_all,
    push_paced,
    requests,
    started,
    warm,
)

RUNS: Final = 3


@contextmanager
def serving(broker: EmbeddedKafka) -> Iterator[Node]:
    """A node on data and topics of its own."""
    url, topic = f"kafka://{broker.bootstrap}", f"items-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        command = ["--node-id", topic, "--to", url, "--data", folder, "--app", "items", "--topic", topic]
        with started(command) as process:
            yield Node(process.pid, process.port(), url, get("items", topic=topic))


# --- latency ----------------------------------------------------------------------------------------------------------


def of_latency(broker: EmbeddedKafka, *, quick: bool) -> None:
    """From the last item of a block to its acknowledgement and its ChainUpdate, beside what cannot be less."""
    rate, warming, count = 10, 30, 10 if quick else 200
    for number, size in ((10, 300), (200, 1_500)):
        last = warming + count
        parts = [block(at, number, size) for at in range(1, last + 1)]
        with serving(broker) as node:
            warm(node)
            reading = Reading(node.url, node.app, last)
            pushed = asyncio.run(push_paced(node.port, parts, rate))
            reading.wait()
        direct = add_paced(broker, parts, rate)
        synced = _synced(sum(map(len, parts[0])), count)
        say(f"blocks of {number} items of {size} B, {rate} a second, {count} of them, milliseconds")
        print_line("write and fsync of a file", synced)
        print_line(
            "last item to acknowledgement",
            [pushed.acknowledged[at] - pushed.sent[at] for at in range(warming + 1, last + 1)],
        )
        print_line(
            "last item to ChainUpdate", [reading.delivered[at] - pushed.sent[at] for at in range(warming + 1, last + 1)]
        )
        print_line("direct, transactional: add to ChainUpdate", direct[warming:])


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


# --- throughput -------------------------------------------------------------------------------------------------------


def of_throughput(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Megabytes a second of blocks of 300 kB, from the first item to the last ChainUpdate, and to acknowledgements."""
    count, runs = (40, 1) if quick else (400, RUNS)
    parts = [block(number, 200, 1_500) for number in range(1, count + 1)]
    megabytes = sum(len(part) for one in parts for part in one) / 1e6
    direct, pushed, acknowledged, cpu = (list[float]() for _ in range(4))
    for _ in range(runs):
        direct.append(megabytes / add_all(broker, parts))
        with serving(broker) as node:
            warm(node)
            reading = Reading(node.url, node.app, count)
            before, began = cpu_seconds(node.pid), time.perf_counter()
            acknowledged.append(megabytes / asyncio.run(push_all(node.port, parts)))
            reading.wait()
            pushed.append(megabytes / (time.perf_counter() - began))
            cpu.append((cpu_seconds(node.pid) - before) * 1e3 / megabytes)
    say(f"{count} blocks of 200 items of 1500 B, one transaction a block, median of {runs} runs")
    legs = {"direct, to ChainUpdates": direct, "ingest, to ChainUpdates": pushed, "acknowledgements": acknowledged}
    for name, found in legs.items():
        rate = statistics.median(found)
        ratio = rate / statistics.median(direct)
        say(f"  {name:28} {rate:7.1f} MB/s {ratio:>7.0%} of direct   ({min(found):.1f} to {max(found):.1f})")
    say(f"  processor time of the node: {statistics.median(cpu):.1f} ms/MB")


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
        warm(node)
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
