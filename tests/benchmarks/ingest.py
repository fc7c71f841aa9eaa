"""An ingest node beside the direct transactional producer: how long a block takes, and how many.

python tests/benchmarks/ingest.py [--quick] [latency] [throughput] [diffusion]

Without names it prints everything. Every figure of a table is from the same run on the same broker and disk; ratios
carry over to other machines, times do not. The node is a process of its own, the publisher is this one.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from diffusion import of_diffusion
from report import cpu_seconds, print_rates, print_times, run_parts, say

from cardinal.apps import get
from cardinal_devkit.kafka import EmbeddedKafka
from pushing import (
    POOL,
    Node,
    Reading,
    add_all,
    add_paced,
    block,
    push_all,
    push_paced,
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
        print_times("write and fsync of a file", synced)
        print_times(
            "last item to acknowledgement",
            [pushed.acknowledged[at] - pushed.sent[at] for at in range(warming + 1, last + 1)],
        )
        print_times(
            "last item to ChainUpdate", [reading.delivered[at] - pushed.sent[at] for at in range(warming + 1, last + 1)]
        )
        print_times("direct, transactional: add to ChainUpdate", direct[warming:])


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
    print_rates(legs, "direct, to ChainUpdates", "direct")
    say(f"  processor time of the node: {statistics.median(cpu):.1f} ms/MB")


PARTS: Final[dict[str, Callable[..., None]]] = {
    "latency": of_latency,
    "throughput": of_throughput,
    "diffusion": of_diffusion,
}


if __name__ == "__main__":
    run_parts(__doc__, PARTS)
