"""Cost of Spark: rows of `payload` compared with raw confluent-kafka, and blocks into the lake.

python tests/benchmarks/spark.py [--quick] [throughput] [latency]

Processor time is that of this process and all that it started, Java and Python workers included. Ratios of one run
carry over to other machines, rates do not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal_devkit.devchain import DevChain, DevSettings
from cardinal_devkit.kafka import EmbeddedKafka
from cardinal_ethereum import payload_from_rpc
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.state import find_state
from cardinal_spark.session import local_session
from cardinal_spark.source.reader import CardinalReader, read_partition, source_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POOL: Final = random.Random(1).randbytes(1 << 16)
MESSAGES: Final = 200
_TICK: Final = os.sysconf("SC_CLK_TCK")
CHAIN_IDS: Final = itertools.count(9_100_001)
_STARTING: Final = 15
"""Blocks, a second each, within which Spark has started the query and its Python workers."""


@dataclass
class Cost:
    """Seconds by the clock, and of processors."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    cost = Cost()
    wall, cpu = time.perf_counter(), _cpu()
    yield cost
    cost.wall, cost.cpu = time.perf_counter() - wall, _cpu() - cpu


@contextmanager
def in_process() -> Iterator[Cost]:
    """The cost to this process alone."""
    cost = Cost()
    wall, cpu = time.perf_counter(), time.process_time()
    yield cost
    cost.wall, cost.cpu = time.perf_counter() - wall, time.process_time() - cpu


def _cpu() -> float:
    """Processor seconds of this process and its descendants, ended ones included where they were waited for."""
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = sum(map(int, fields[11:15])) / _TICK
    total, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        total += used.get(pid, 0.0)
        left += parents.get(pid, [])
    return total


def say(*cells: object) -> None:
    sys.stdout.write("  ".join(f"{cell!s:>14}" if at else f"{cell!s:<34}" for at, cell in enumerate(cells)) + "\n")
    sys.stdout.flush()


# --- throughput ------------------------------------------------------------------------------------------------


def publish(url: str, chain_id: int, blocks: int, size: int) -> None:
    app = apps.get("evm", chain_id=chain_id)
    producer = Producer(url, app, producer_id="one")
    parent = bytes(32)
    for number in range(blocks):
        block_hash = sha256(b"%d" % number).digest()
        root = f"c/{chain_id:x}/b/{block_hash.hex()}"
        starts = range(number % 1000, number % 1000 + 31 * MESSAGES, 31)
        updates = {f"{root}/l/{index:x}": POOL[at : at + size] for index, at in enumerate(starts)}
        producer.add(Payload(number, block_hash, parent, number, updates))
        parent = block_hash
    producer.flush(300)
    producer.close()


def raw(url: str, topic: str, messages: int) -> Cost:
    """Consume so many messages of one topic, as the fastest client does."""
    client = Client({"bootstrap.servers": url.removeprefix("kafka://"), "group.id": "raw", "enable.auto.commit": False})
    partitions = client.list_topics(topic, timeout=10).topics[topic].partitions
    client.assign([TopicPartition(topic, number, 0) for number in partitions])
    found = 0
    with measured() as cost:
        while found < messages:
            for message in client.consume(10_000, 1.0):
                message.value()
                found += 1
    client.close()
    return cost


def sdk(url: str, chain_id: int, blocks: int) -> Cost:
    found = 0
    with Consumer(url, apps.get("evm", chain_id=chain_id)) as consumer, measured() as cost:
        for update in consumer:
            found += len(update.added)
            if found >= blocks:
                break
    return cost


def stream(spark: SparkSession, url: str, chain_id: int, table: str, **more: str) -> tuple[Cost, int]:
    return drained(
        spark.readStream.format("cardinal").options(url=url, chainId=str(chain_id), table=table, **more).load()
    )


def drained(rows: DataFrame) -> tuple[Cost, int]:
    """Everything that is there, to a sink that does nothing; and in how many batches."""
    with tempfile.TemporaryDirectory() as folder, measured() as cost:
        writer = rows.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        batches = len(query.recentProgress)
    return cost, batches


def alone(url: str, chain_id: int, table: str) -> tuple[Cost, Cost]:
    """Planning and tasks without Spark, in this process."""
    options = {"url": url, "chainId": str(chain_id), "table": table}
    schema = source_schema(options)
    with in_process() as planning:
        partitions = CardinalReader(options, schema).partitions()
    with in_process() as reading:
        for partition in partitions:
            for _ in read_partition(partition, schema):
                pass
    return planning, reading


def throughput(spark: SparkSession, broker: EmbeddedKafka, *, quick: bool) -> None:
    url = f"kafka://{broker.bootstrap}"
    say("payload to noop", "messages", "msg/s", "msg/cpu s", "of raw, cpu", "batches")
    warm = next(CHAIN_IDS)
    publish(url, warm, 20, 300)
    stream(spark, url, warm, "payload")
    for size, blocks in ((300, 100),) if quick else ((300, 4_000), (3_000, 700)):
        chain_id, messages = next(CHAIN_IDS), blocks * MESSAGES
        publish(url, chain_id, blocks, size)
        planning, reading = alone(url, chain_id, "payload")
        costs = {
            f"raw confluent-kafka, {size} B": (raw(url, f"cardinal-{chain_id}-logs", messages), 0),
            "Consumer": (sdk(url, chain_id, blocks), 0),
            "planning alone, no Spark": (planning, 0),
            "tasks alone, payload, no Spark": (reading, 0),
            "stream, payload": stream(spark, url, chain_id, "payload"),
            "stream, two columns of it": stream(spark, url, chain_id, "payload", columns="_seq,value"),
            "stream, events": stream(spark, url, chain_id, "events"),
            "stream, raw": stream(spark, url, chain_id, "raw"),
        }
        floor = next(iter(costs.values()))[0].cpu
        for name, (cost, batches) in costs.items():
            rates = f"{messages / cost.wall:,.0f}", f"{messages / cost.cpu:,.0f}"
            say(name, f"{messages:,}", *rates, f"{100 * floor / cost.cpu:.0f} %", batches or "")


# --- latency ---------------------------------------------------------------------------------------------------


def latency(spark: SparkSession, broker: EmbeddedKafka, *, quick: bool) -> None:
    """A block a second, until it can be read in the lake."""
    url, chain_id, count = f"kafka://{broker.bootstrap}", next(CHAIN_IDS), 25 if quick else 200
    steps = DevChain(DevSettings(seed=1, blocks=count, reorg_rate=0, transactions=5, chain_id=chain_id))
    producer = Producer(url, apps.get("evm", chain_id=chain_id), producer_id="one")
    with tempfile.TemporaryDirectory() as folder:
        lake = LakeLocation.of(f"{folder}/lake")
        rows = spark.readStream.format("cardinal").options(url=url, chainId=str(chain_id), table="raw").load()
        writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(processingTime="0 seconds").start(lake.root)
        sent: dict[int, float] = {}
        taken: list[float] = []
        ended = threading.Event()

        def watch() -> None:
            seen = -1
            while seen < count - 1 and not ended.is_set():
                state = find_state(lake)
                now = time.perf_counter()
                if state is not None and state.number > seen:
                    taken.extend(now - sent[number] for number in range(seen + 1, state.number + 1))
                    seen = state.number
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with measured() as cost:
            for step in itertools.islice(steps, count):
                payload = payload_from_rpc(step.head.block, step.head.receipts, chain_id=chain_id)
                sent[payload.number] = time.perf_counter()
                producer.add(payload)
                time.sleep(1)
            watcher.join(60)
        ended.set()
        progress = query.recentProgress[-20:]
        query.stop()
    producer.close()
    say("the first block, while the query starts, s", f"{taken[0]:.1f}")
    warm = sorted(taken[_STARTING:])
    say("produced to committed, 1 block/s", "p50 s", "p90 s", "p99 s", "cpu s/block")
    cells = (statistics.median(warm), warm[int(len(warm) * 0.9)], warm[int(len(warm) * 0.99)], cost.cpu / count)
    say("EVM lake, no trigger", *(f"{cell:.2f}" for cell in cells))
    for name in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution"):
        found = [each["durationMs"].get(name, 0) for each in progress if each["numInputRows"]]
        say(f"  {name}, ms", f"{statistics.median(found):.0f}" if found else "")


PARTS: Final[dict[str, Callable[..., None]]] = {"throughput": throughput, "latency": latency}


def main() -> None:
    """Start a broker and a session, and print the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: whether it works")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which tables; default: all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "data") as broker:
        spark = local_session("benchmark")
        for name, part in PARTS.items():
            if not given.parts or name in given.parts:
                part(spark, broker, quick=given.quick)
        spark.stop()


if __name__ == "__main__":
    main()
