"""A cluster of ingest nodes beside the direct transactional producer: agreement, throughput, latency, dead members.

python tests/benchmarks/cluster.py [--quick] [agreement] [throughput] [latency] [deaths]

Without names it prints everything. Every figure of a table is from the same run on the same broker and disk; ratios
carry over to other machines, times do not. Each member is a process of its own, the publisher is this one. All members
share one machine and one disk here: what three of them write, one disk syncs three times.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from agreement import of_agreement
from report import cpu_seconds, print_rates, print_times, run_parts, say

from cardinal.apps import get
from cardinal_devkit.kafka import EmbeddedKafka, free_port
from cardinal_ingest.cluster.keys import generate_key
from cardinal_ingest.protocols.replication import ReplicationSettings
from pushing import (
    Node,
    Publisher,
    Reading,
    add_all,
    add_paced,
    block,
    connected,
    push_all,
    push_paced,
    requests,
    started,
    warm,
)

RUNS: Final = 3
ITEMS: Final = 200
ITEM_BYTES: Final = 1_500
"""Blocks of 300 kB, about those of Ethereum's mainnet."""
DEADLINE: Final = 60.0
SETTINGS: Final = ReplicationSettings()


# --- the cluster ------------------------------------------------------------------------------------------------------


class Cluster:
    """A cluster on a stream of its own.

    Attributes:
        nodes: members that run, by id.

    """

    def __init__(self, broker: EmbeddedKafka, members: str, folder: Path) -> None:
        self.nodes: dict[str, Node] = {}
        self.url, topic = f"kafka://{broker.bootstrap}", f"items-{uuid.uuid4().hex[:12]}"
        self.app = get("items", topic=topic)
        self._members, self._folder = members, folder
        self._metrics = {one: f"127.0.0.1:{free_port()}" for one in members}
        self._file = folder / "cluster.toml"
        lines = ['name = "bench"']
        for one in members:
            key = generate_key(folder / f"{one}.key").public.hex()
            address, bodies = (f"127.0.0.1:{free_port()}" for _ in range(2))
            lines += [f"[members.{one}]", f'key = "{key}"', f'address = "{address}"', f'bodies = "{bodies}"']
        self._file.write_text("\n".join(lines))
        init = [sys.executable, "-m", "cardinal", "cluster", "init", *self._arguments(members[0]), "--start", "0"]
        subprocess.run(init, check=True, capture_output=True)

    def start(self, running: ExitStack) -> None:
        """Start the members that do not run, all at once, and wait until all are connected."""
        starting = {}
        for one in sorted(set(self._members) - self.nodes.keys()):
            data, metrics = str(self._folder / one), self._metrics[one]
            arguments = [*self._arguments(one), "--data", data, "--metrics", metrics]
            starting[one] = running.enter_context(started(arguments))
        for one, process in starting.items():
            self.nodes[one] = Node(process.pid, process.port(), self.url, self.app)
        deadline = time.perf_counter() + DEADLINE
        while not all(self._accepts(one) for one in self.nodes):
            assert time.perf_counter() < deadline, "the members do not connect"
            time.sleep(0.05)

    def kill(self, member: str) -> None:
        """Kill a member."""
        os.kill(self.nodes.pop(member).pid, 9)

    def numbers(self, member: str) -> Mapping[str, str]:
        """Metrics of a member, by name and labels."""
        with urllib.request.urlopen(f"http://{self._metrics[member]}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return dict(re.findall(r"^cardinal_ingest_cluster_(.+) (\S+)$", text, re.MULTILINE))

    def promoter(self) -> str | None:
        """The member that puts blocks on the topics."""
        return next((one for one in self.nodes if float(self.numbers(one)["promoter"])), None)

    def leader(self) -> str:
        """The member that the others take for the leader."""
        leading = (re.match(r'leader{member="(.)"}', name) for name in self.numbers(next(iter(self.nodes))))
        return next(one[1] for one in leading if one)

    def _accepts(self, member: str) -> bool:
        """The member is connected to all others, and takes blocks."""
        numbers = self.numbers(member)
        connected = float(numbers["peers_connected"]) == len(self._members) - 1
        return connected and not any(name.startswith("pending{") for name in numbers)

    def _arguments(self, member: str) -> list[str]:
        stream = ["--to", self.url, "--app", "items", "--topic", self.app.default_topic, "--cluster", str(self._file)]
        return [*stream, "--node-id", member, "--key", str(self._folder / f"{member}.key")]


@contextmanager
def serving(broker: EmbeddedKafka, members: str) -> Iterator[Cluster]:
    """A cluster whose members run, and put blocks on the topics."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        cluster = Cluster(broker, members, Path(folder))
        cluster.start(running)
        warm(cluster.nodes[members[-1]])
        yield cluster


# --- throughput -------------------------------------------------------------------------------------------------------


def of_throughput(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Megabytes a second of blocks of 300 kB, from the first item to the last ChainUpdate, and to acknowledgements."""
    count, runs = (40, 1) if quick else (400, RUNS)
    parts = [block(number, ITEMS, ITEM_BYTES) for number in range(1, count + 1)]
    megabytes = sum(len(part) for one in parts for part in one) / 1e6
    direct: list[float] = []
    legs: dict[str, list[float]] = {"direct, to ChainUpdates": direct}
    cpu: dict[str, list[float]] = {}
    for _ in range(runs):
        direct.append(megabytes / add_all(broker, parts))
        for members in ("a", "abc"):
            name = f"n = {len(members)}"
            with serving(broker, members) as cluster:
                node = cluster.nodes[members[-1]]
                reading = Reading(node.url, node.app, count)
                before, began = _cpu(cluster), time.perf_counter()
                acknowledged = megabytes / asyncio.run(push_all(node.port, parts))
                reading.wait()
                seconds = time.perf_counter() - began
                cpu.setdefault(name, []).append((_cpu(cluster) - before) * 1e3 / megabytes)
            legs.setdefault(f"{name}, to ChainUpdates", []).append(megabytes / seconds)
            legs.setdefault(f"{name}, acknowledgements", []).append(acknowledged)
    say(f"{count} blocks of {ITEMS} items of {ITEM_BYTES} B, median of {runs} runs")
    print_rates(legs, "direct, to ChainUpdates", "direct")
    for name, spent in cpu.items():
        say(f"  processor time of all members, {name}: {statistics.median(spent):.1f} ms/MB")


def _cpu(cluster: Cluster) -> float:
    return sum(cpu_seconds(node.pid) for node in cluster.nodes.values())


# --- latency ----------------------------------------------------------------------------------------------------------


def of_latency(broker: EmbeddedKafka, *, quick: bool) -> None:
    """From the last item of a block to its acknowledgement and its ChainUpdate."""
    for rate, warming, count in ((1, 3, 5), (10, 10, 10)) if quick else ((1, 5, 60), (10, 30, 300)):
        last = warming + count
        parts = [block(at, ITEMS, ITEM_BYTES) for at in range(1, last + 1)]
        say(f"blocks of {ITEMS} items of {ITEM_BYTES} B, {rate} a second, {count} of them, milliseconds")
        print_times("direct, transactional: add to ChainUpdate", add_paced(broker, parts, rate)[warming:])
        for members in ("a", "abc"):
            with serving(broker, members) as cluster:
                node = cluster.nodes[members[-1]]
                reading = Reading(node.url, node.app, last)
                pushed = asyncio.run(push_paced(node.port, parts, rate))
                reading.wait()
            for name, at in (("acknowledgement", pushed.acknowledged), ("ChainUpdate", reading.delivered)):
                seconds = [at[number] - pushed.sent[number] for number in range(warming + 1, last + 1)]
                print_times(f"n = {len(members)}, last item to {name}", seconds)


# --- deaths -----------------------------------------------------------------------------------------------------------


def of_deaths(broker: EmbeddedKafka, *, quick: bool) -> None:
    """The longest wait of a block while a member is killed, 10 blocks of 3 kB a second."""
    goals = {"leader": SETTINGS.turn_timeout + 0.2, "promoter": 2 * SETTINGS.promote_wait + 1.0}
    say("a member is killed: the longest time from last item to ChainUpdate, seconds; less the usual one")
    for role, goal in goals.items():
        found = []
        for _ in range(1 if quick else RUNS):
            with serving(broker, "abc") as cluster:
                found.append(asyncio.run(_killed(cluster, role)))
        waits = [worst - idle for worst, idle in found]
        idle = statistics.median(one for _, one in found)
        shown = ", ".join(f"{one:.2f}" for one in waits)
        median = statistics.median(waits)
        say(f"  dead {role:9} {median:5.2f} ({shown})   goal {goal:.1f}: {median / goal:4.0%}   usual {idle:.3f}")


async def _killed(cluster: Cluster, role: str) -> tuple[float, float]:
    """The longest wait of a block around a kill, and the usual one before it."""
    rate, before, after = 10, 40, 80
    promoter = await asyncio.to_thread(cluster.promoter)
    assert promoter is not None, "nothing was promoted"
    through = promoter if role == "leader" else next(one for one in cluster.nodes if one != promoter)
    node = cluster.nodes[through]
    reading = Reading(node.url, node.app, before + after)
    async with connected(node.port) as channel:
        publisher = Publisher(channel)
        killing = asyncio.ensure_future(_kill(cluster, role, promoter, publisher, before))
        begin = time.perf_counter()
        for number in range(1, before + after + 1):
            await asyncio.sleep(begin + number / rate - time.perf_counter())
            await publisher.push(number, requests(number, block(number, 10, 300)))
        at = await killing
        await publisher.reached(before + after)
        await publisher.close()
    await asyncio.to_thread(reading.wait)
    waits = {number: reading.delivered[number] - sent for number, sent in publisher.sent.items()}
    usual = statistics.median(waits[number] for number in range(before // 2, before))
    return max(wait for number, wait in waits.items() if at - 0.5 < publisher.sent[number] < at + 1.0), usual


async def _kill(cluster: Cluster, role: str, promoter: str, publisher: Publisher, after: int) -> float:
    """Kill the member of a role, and of it alone, once so many blocks are acknowledged; when that was."""
    await publisher.reached(after)
    deadline = time.perf_counter() + DEADLINE
    while (leader := await asyncio.to_thread(cluster.leader)) == promoter:
        assert time.perf_counter() < deadline, "no other member leads"
        await asyncio.sleep(0.02)
    cluster.kill(leader if role == "leader" else promoter)
    return time.perf_counter()


PARTS: Final[dict[str, Callable[..., None]]] = {
    "agreement": of_agreement,
    "throughput": of_throughput,
    "latency": of_latency,
    "deaths": of_deaths,
}


if __name__ == "__main__":
    run_parts(__doc__, PARTS)
