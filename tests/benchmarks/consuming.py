"""Kafka to ChainUpdate beside raw consumption, and how long a block takes from ``add`` to its update.

Part of ``tests/benchmarks/kafka.py``.

Every figure of a table is from the same run on the same broker; ratios carry over to other machines, rates do not.
Reading is by processor time as well as by the clock, because another core fetches while this one assembles.
"""

from __future__ import annotations

import random
import resource
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

from confluent_kafka import Consumer as Client
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition
from report import resident, say

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal.transports import open_sink, open_source, parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal_devkit.kafka import EmbeddedKafka

PARTITIONS = 8
FULL = 800
HEAD = 10
TURNS = 5
WARM_SECONDS = 2
POOL = random.Random(1).randbytes(1 << 16)
"""Values are cut from here: like hashes and signatures they cannot be compressed."""


def application(name: str) -> Application:
    """A stream with one counted prefix on a topic of its own."""
    return Application(name=name, chain=f"{name}:1", default_topic=f"{name}-block", topics={"v/": f"{name}-values"})


def block_hash(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def block(number: int, messages: int, size: int) -> Payload:
    starts = range(number % 1000, number % 1000 + 31 * messages, 31)
    updates = {f"v/{index:06}": POOL[at : at + size] for index, at in enumerate(starts)}
    return Payload(number, block_hash(number), block_hash(number - 1), number, updates)


def publish(url: str, app: Application, blocks: int, messages: int, size: int) -> int:
    """Write a chain; the number of its messages."""
    with Producer(url, app, producer_id="bench") as producer:
        for number in range(1, blocks + 1):
            producer.add(block(number, messages, size))
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
    """Take every message and look at none; with the settings that the source has."""
    client = Client(kafka_settings(parse_url(f"kafka://{bootstrap}")).consumer())
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


# --- head latency ----------------------------------------------------------------------------------------------------


def latency(broker: EmbeddedKafka, rate: int, seconds: float) -> None:
    """From ``add`` to the update, and the same by hand: ten messages, all acknowledged, then one more, which is read.

    Both in turns of equal length, so that what else the machine does meets both. Each turn begins on new topics; its
    first seconds do not count, in which the broker makes the files of every partition and the clients get to know it.
    """
    turns = max(1, min(TURNS, int(seconds / 2)))
    early = int(rate * WARM_SECONDS)
    count = early + max(5, int(rate * seconds / turns))
    ours: list[float] = []
    hand: list[float] = []
    for _ in range(turns):
        hand += by_hand(broker, rate, count)[early:]
        ours += added_to_update(broker, rate, count)[early:]
    for name, delays in (("raw confluent-kafka", hand), ("add to ChainUpdate", ours)):
        delays.sort()
        at = [delays[int(len(delays) * part)] * 1000 for part in (0.5, 0.9, 0.99)]
        say(f"  {rate:>6} blocks/s, {name:20} p50 {at[0]:7.2f} ms   p90 {at[1]:7.2f} ms   p99 {at[2]:7.2f} ms")


def at_rate(rate: int, count: int, send: Callable[[int], object]) -> dict[int, float]:
    """Send so many blocks at this rate; when each was."""
    sent: dict[int, float] = {}
    begin = time.perf_counter()
    for number in range(1, count + 1):
        wait = begin + number / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        sent[number] = time.perf_counter()
        send(number)
    return sent


def added_to_update(broker: EmbeddedKafka, rate: int, count: int) -> list[float]:
    url = f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}"
    app = application(f"latency{uuid.uuid4().hex[:8]}")
    payloads = [block(number, HEAD, 300) for number in range(count + 1)]
    seen: dict[int, float] = {}
    with ThreadPoolExecutor(1) as pool, Producer(url, app, producer_id="bench") as producer:
        producer.add(payloads[0]).result(60)
        with Consumer(url, app) as consumer:
            for update in consumer:
                seen.update(dict.fromkeys((one.number for one in update.added), time.perf_counter()))
                if 0 in seen and len(seen) == 1:
                    feeding = pool.submit(at_rate, rate, count, lambda number: producer.add(payloads[number]))
                if len(seen) > count:
                    break
    return [seen[number] - at for number, at in feeding.result().items()]


def by_hand(broker: EmbeddedKafka, rate: int, count: int) -> list[float]:
    hand = ByHand(f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}")
    with ThreadPoolExecutor(2) as pool:
        pool.submit(hand.serve)
        hand.send(0)
        while 0 not in hand.seen:
            hand.read()
        feeding = pool.submit(at_rate, rate, count, hand.send)
        while len(hand.seen) <= count:
            hand.read()
        hand.ended.set()
    hand.reader.close()
    return [hand.seen[number] - at for number, at in feeding.result().items()]


class ByHand:
    """A block's messages through the raw client, with our settings on both sides."""

    def __init__(self, url: str) -> None:
        settings = kafka_settings(parse_url(url))
        self.app = application(f"hand{uuid.uuid4().hex[:8]}")
        open_sink(url, self.app, producer_id="bench").close()
        self.client = RawProducer(settings.producer(10_000_024, "bench"))
        self.reader = Client(settings.consumer())
        topics = self.app.all_topics
        self.reader.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(PARTITIONS)])
        self.seen: dict[int, float] = {}
        self.ended = threading.Event()

    def send(self, number: int) -> None:
        left = iter(range(HEAD - 1, -1, -1))

        def acknowledged(error: object, message: object) -> None:
            del message
            if error is None and next(left) == 0:
                self.client.produce(self.app.default_topic, b"", b"%d" % number)

        for index in range(HEAD):
            key, value = b"%d/%d" % (number, index), POOL[index : index + 300]
            self.client.produce(self.app.topics["v/"], value, key, on_delivery=acknowledged)

    def serve(self) -> None:
        while not self.ended.is_set():
            self.client.poll(0.1)

    def read(self) -> None:
        for message in self.reader.consume(1, 0.2) + self.reader.consume(10_000, 0):
            if message.error() is None and message.topic() == self.app.default_topic and (key := message.key()):
                self.seen[int(key)] = time.perf_counter()


# --- memory ----------------------------------------------------------------------------------------------------------


def memory(broker: EmbeddedKafka, messages: int) -> None:
    """How much this process grows while it catches up, from when what is kept of a stream has filled."""
    url = f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}"
    app = application(f"memory{messages}")
    blocks = messages // 100
    publish(url, app, blocks, 100, 300)
    found = [(0, resident())]
    with Consumer(url, app) as consumer:
        for update in consumer:
            done = update.added[-1].number
            if done >= len(found) * blocks / 10:
                found.append((done * 100, resident()))
            if done >= blocks:
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    say(f"resident memory while {messages:,} messages are caught up with (peak of the process {peak} MB)")
    say("  " + "   ".join(f"{done / 1000:,.0f}k: {size} MB" for done, size in found))
