"""Kafka to ChainUpdate beside raw consumption, and how long a block takes from ``add`` to its update.

python tests/benchmarks/consuming.py [--quick]

Every figure of a table is from the same run on the same broker; ratios carry over to other machines, rates do not.
Reading is by processor time as well as by the clock, because another core fetches while this one assembles.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal.transports import open_source

PARTITIONS = 8
FULL = 800


def application(name: str) -> Application:
    """A stream with one counted prefix on a topic of its own."""
    return Application(name=name, chain=f"{name}:1", default_topic=f"{name}-block", topics={"v/": f"{name}-values"})


def block_hash(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def block(number: int, messages: int, value: bytes) -> Payload:
    updates = {f"v/{index:06}": value for index in range(messages)}
    return Payload(number, block_hash(number), block_hash(number - 1), number, updates)


def publish(url: str, app: Application, blocks: int, messages: int, size: int) -> int:
    """Write a chain; the number of its messages."""
    value = b"\0" * size
    with Producer(url, app, producer_id="bench") as producer:
        for number in range(1, blocks + 1):
            producer.add(block(number, messages, value))
        producer.flush(300)
    return blocks * (messages + 1)


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and of this process's processor time."""

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def raw(bootstrap: str, app: Application, messages: int) -> None:
    """Take every message and look at none."""
    client = Client({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
    partitions = [(topic, number) for topic in app.all_topics for number in range(PARTITIONS)]
    client.assign([TopicPartition(topic, number, 0) for topic, number in partitions])
    left = messages
    while left > 0:
        left -= sum(1 for message in client.consume(10_000, 0.2) if message.error() is None)
    client.close()


def records(url: str, app: Application, messages: int) -> None:
    """Take every message as a Record."""
    source = open_source(url, app)
    source.assign(dict.fromkeys(source.partitions(), 0))
    left = messages
    while left > 0:
        left -= len(source.poll(10_000, 0.2))
    source.close()


def updates(url: str, app: Application, last: int) -> None:
    """Take the chain to this block."""
    with Consumer(url, app) as consumer:
        for update in consumer:
            if update.added[-1].number >= last:
                return


def throughput(broker: EmbeddedKafka, runs: int, blocks: int, size: int) -> None:
    url = f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}"
    app = application(f"bench{size}")
    messages = publish(url, app, blocks, FULL, size)
    legs: dict[str, Callable[[], object]] = {
        "raw confluent-kafka": lambda: raw(broker.bootstrap, app, messages),
        "Source.poll to Records": lambda: records(url, app, messages),
        "Consumer to ChainUpdates": lambda: updates(url, app, blocks),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in legs}
    for _ in range(runs):
        for name, work in legs.items():
            costs[name].append(timed(work))
    base = statistics.median(messages / cost.wall for cost in costs["raw confluent-kafka"])
    say(f"{messages:,} messages of {size} B in blocks of {FULL}, {PARTITIONS} partitions, median of {runs} runs")
    for name, found in costs.items():
        rate = statistics.median(messages / cost.wall for cost in found)
        cpu = statistics.median(messages / cost.cpu for cost in found)
        say(f"  {name:28} {rate:>12,.0f} msg/s {cpu:>12,.0f} msg/cpu-s {rate / base:>7.0%} of raw")


def latency(broker: EmbeddedKafka, rate: int, seconds: float) -> None:
    url = f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}&linger.ms=1"
    app = application(f"latency{rate}")
    value = b"\0" * 300
    added: dict[int, float] = {}
    count = int(rate * seconds)
    with Producer(url, app, producer_id="bench") as producer:
        producer.add(block(0, 10, value)).result(30)

        def feed() -> None:
            begin = time.perf_counter()
            for number in range(1, count + 1):
                wait = begin + number / rate - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                payload = block(number, 10, value)
                added[number] = time.perf_counter()
                producer.add(payload)

        delays: list[float] = []
        with Consumer(url, app) as consumer:
            feeding = threading.Thread(target=feed)
            for update in consumer:
                now = time.perf_counter()
                delays += [now - added[one.number] for one in update.added if one.number]
                if update.added[-1].number == 0:
                    feeding.start()
                if update.added[-1].number >= count:
                    break
            feeding.join()
    delays.sort()
    at = [delays[int(len(delays) * part)] * 1000 for part in (0.5, 0.9, 0.99)]
    say(f"  {rate:>6} blocks/s of 10 messages: p50 {at[0]:7.2f} ms   p90 {at[1]:7.2f} ms   p99 {at[2]:7.2f} ms")


def memory(broker: EmbeddedKafka, messages: int) -> None:
    """How much this process grows while it catches up."""
    url = f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}"
    app = application("memory")
    blocks = messages // 100
    publish(url, app, blocks, 100, 300)
    before = resident()
    most = [before]
    with Consumer(url, app) as consumer:
        for update in consumer:
            if update.seq % 512 < len(update.added):
                most.append(resident())
            if update.added[-1].number >= blocks:
                break
    half = max(most[: len(most) // 2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    say(f"resident memory while {messages:,} messages are caught up with (peak of the process {peak} MB)")
    say(f"  before {before} MB   first half at most {half} MB   second half at most {max(most[len(most) // 2 :])} MB")


def resident() -> int:
    """MB that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one run")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "data") as broker:
        for size, blocks in ((300, 500), (3_000, 100)):
            throughput(broker, 1 if quick else 5, blocks // (10 if quick else 1), size)
        say("head latency, Producer.add to ChainUpdate, one process, 300 B values")
        for rate in (10, 1_000):
            latency(broker, rate, 3 if quick else 20)
        memory(broker, 100_000 if quick else 1_000_000)


if __name__ == "__main__":
    main()
