"""Payloads to Kafka beside the raw client: messages a second, processor time, memory, and what transactions cost.

Part of ``tests/benchmarks/kafka.py``. Every leg begins with an open connection and ends with the last acknowledgement.

Legs:

* *raw*: ``confluent_kafka.Producer.produce`` of messages that were split before, one after the other, each with its
  delivery report; nothing else. What the goal (70 %) is counted from.
* *raw, sealing*: the least that any producer of ours has to do, by hand: our header on every record, and each block's
  Batch only when the block's other messages are acknowledged and its parent's Batch was handed over. Split before too.
* *Producer*: from payloads.
* *split*: only that, without Kafka; the *raw* legs are spared it.
"""

from __future__ import annotations

import gc
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from confluent_kafka import Producer as RawProducer
from report import resident, say

from cardinal.apps import Application
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload, Routed, split
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, BlockRef
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal_devkit.kafka import EmbeddedKafka

PARTITIONS = 8
BLOCKS_UNDER_WAY = 1024
_WHO: list[tuple[str, str | bytes | None]] = [(PRODUCER_HEADER, b"bench")]
_SEALED: list[tuple[str, str | bytes | None]] = [*_WHO, (SEALED_HEADER, b"1")]


def stream() -> Application:
    """A stream on topics of its own."""
    stem = uuid.uuid4().hex[:12]
    return Application(
        name="blocks", chain="blocks:1", default_topic=f"{stem}-block", topics={"a/": f"{stem}-a"}, prefixes=("a/",)
    )


def url_of(broker: EmbeddedKafka, options: str = "") -> str:
    return f"kafka://{broker.bootstrap}?cardinal.partitions={PARTITIONS}{options}"


def chain(messages: int, size: int) -> Iterator[Payload]:
    """Blocks of so many messages each, the Batch among them, of so many bytes; without end."""
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    updates = {f"a/{index:05x}": value for index in range(messages - 1)}
    number, parent = 1, bytes(32)
    while True:
        block_hash = number.to_bytes(32, "big")
        yield Payload(number, block_hash, parent, number, updates)
        number, parent = number + 1, block_hash


@dataclass
class Found:
    """What the runs of one leg took: messages a second by the clock, microseconds of processor time a message."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def run(self, messages: int, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.costs.append((time.process_time() - cpu) / messages * 1e6)
        self.rates.append(messages / (time.perf_counter() - wall))

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)


def throughput(broker: EmbeddedKafka, runs: int, size: int, messages: int, blocks: int) -> None:
    """Raw, raw with sealing, and ours, one after the other, so many times."""
    url, app = url_of(broker), stream()
    payloads = list(islice(chain(messages, size), blocks))
    parts = [split(payload, app.topics, app.default_topic) for payload in payloads]
    legs = {name: Found() for name in ("raw", "raw, sealing", "Producer", "split")}
    count = blocks * messages
    with Producer(url, app, producer_id="bench") as producer:
        producer.flush(60)
        gc.collect()
        gc.freeze()  # what was prepared is not to be looked through in any leg
        for turn in range(runs):
            for name, leg in (("raw", plain), ("raw, sealing", sealing)):
                client = connected(url)
                legs[name].run(count, partial(leg, client, parts))
            again = payloads if not turn else list(renamed(payloads, turn))
            legs["Producer"].run(count, partial(added, producer, again))
            legs["split"].run(count, lambda: [split(payload, app.topics, app.default_topic) for payload in payloads])
        gc.unfreeze()
    raw, floor = legs["raw"], legs["raw, sealing"]
    say(f"{count:,} messages of {size} B in blocks of {messages}, {PARTITIONS} partitions, median of {runs} runs")
    for name, leg in legs.items():
        of_raw = f"{leg.rate / raw.rate:>6.0%} of raw, {leg.rate / floor.rate:>6.0%} of raw sealing by the clock"
        by_cpu = f"{raw.cost / leg.cost:>6.0%} and {floor.cost / leg.cost:>6.0%} by processor time"
        say(f"  {name:14} {leg.rate:>9,.0f} msg/s {leg.cost:>6.2f} us/msg   {of_raw}; {by_cpu}")


def renamed(payloads: list[Payload], turn: int) -> Iterator[Payload]:
    """Other blocks of the same shape, above those of the turn before."""
    above = turn * len(payloads)
    for payload in payloads:
        number = payload.number + above
        yield Payload(number, number.to_bytes(32, "big"), (number - 1).to_bytes(32, "big"), number, payload.updates)


def connected(url: str) -> RawProducer:
    """A client with our settings that knows its broker."""
    roomy = f"{url}{'&' if '?' in url else '?'}queue.buffering.max.kbytes=1000000"
    client = RawProducer(kafka_settings(parse_url(roomy)).producer(10_000_024, "bench"))
    client.list_topics(timeout=30)
    return client


def plain(client: RawProducer, parts: list[list[Routed]]) -> None:
    """Hand over everything, wait for every report."""
    left = sum(map(len, parts))

    def delivered(error: object, message: object) -> None:
        nonlocal left
        del message
        if error is not None:
            raise RuntimeError(error)
        left -= 1

    for messages in parts:
        for topic, key, value in messages:
            while True:
                try:
                    client.produce(topic, value, key, on_delivery=delivered)
                except BufferError:
                    client.poll(0.01)
                else:
                    break
            client.poll(0)
    client.flush()
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged")


def sealing(client: RawProducer, parts: list[list[Routed]]) -> None:
    """The same with our header, each Batch when its block is acknowledged and its parent's Batch handed over."""
    line = _Line(client, parts)
    for at, messages in enumerate(parts):
        report = partial(line.content, at)
        for topic, key, value in messages[:-1]:
            client.produce(topic, value, key, on_delivery=report, headers=_WHO)
        client.poll(0)
        while at - line.sealed >= BLOCKS_UNDER_WAY:
            client.poll(0.01)
    while line.sealed < len(parts):
        client.poll(0.1)


class _Line:
    """The Batches that have not gone yet."""

    def __init__(self, client: RawProducer, parts: list[list[Routed]]) -> None:
        self.sealed = 0
        self._client = client
        self._left = [len(messages) - 1 for messages in parts]
        self._batches = deque((at, messages[-1]) for at, messages in enumerate(parts))

    def content(self, at: int, error: object, message: object) -> None:
        """One message of this block was acknowledged."""
        del message
        if error is not None:
            raise RuntimeError(error)
        self._left[at] -= 1
        if not self._left[at]:
            self._free()

    def _seal(self, error: object, message: object) -> None:
        del message
        if error is not None:
            raise RuntimeError(error)
        self.sealed += 1
        if self.sealed == 1:
            self._free()

    def _free(self) -> None:
        batches = self._batches
        # The first one is acknowledged before any other goes.
        while batches and not self._left[batches[0][0]] and (self.sealed or not batches[0][0]):
            topic, key, value = batches.popleft()[1]
            self._client.produce(topic, value, key, on_delivery=self._seal, headers=_SEALED)


def added(producer: Producer, payloads: list[Payload]) -> None:
    """Add all, wait for all."""
    for payload in payloads:
        producer.add(payload)
    producer.flush(600)


def memory(broker: EmbeddedKafka, messages: int) -> None:
    """How much this process grows while a producer works."""
    each = 100
    blocks = messages // each
    with Producer(url_of(broker), stream(), producer_id="bench") as producer:
        most: list[int] = []
        warm = max(1, blocks // 20)  # the client's buffers have grown to what is under way by then
        for at, payload in enumerate(islice(chain(each, 300), blocks)):
            producer.add(payload)
            if at >= warm and at % 16 == 0:
                most.append(resident())
        producer.flush(600)
    half = len(most) // 2
    say(f"resident memory while {messages:,} messages of 300 B are produced, in blocks of {each}")
    say(
        f"  after the first {warm * each:,} {most[0]} MB   first half at most {max(most[:half])} MB   "
        f"second half at most {max(most[half:])} MB"
    )


def transactions(broker: EmbeddedKafka, runs: int, messages: int, blocks: int) -> None:
    """Without, with one block an update, and with ten blocks an update."""
    ways: dict[str, tuple[str, int]] = {
        "without": ("", 1),
        "1 block an update": ("&transactional=update", 1),
        "10 blocks an update": ("&transactional=update", 10),
    }
    found = {name: Found() for name in ways}
    for _ in range(runs):
        for name, (options, together) in ways.items():
            app = stream()
            with Producer(url_of(broker, options), app, producer_id=app.default_topic) as producer:
                payloads = list(islice(chain(messages, 300), blocks))
                producer.flush(60)
                found[name].run(blocks * messages, partial(updated, producer, payloads, together))
    base = found["without"].rate
    say(f"transactions: {blocks} blocks of {messages} messages of 300 B, median of {runs} runs")
    for name, leg in found.items():
        share = f"{leg.rate / base:>6.0%} of without" if name != "without" else ""
        blocks_s = leg.rate / messages
        say(f"  {name:20} {leg.rate:>9,.0f} msg/s {blocks_s:>8,.0f} blocks/s {leg.cost:>6.2f} us/msg   {share}")


def updated(producer: Producer, payloads: list[Payload], together: int) -> None:
    """Publish so many blocks an update."""
    if together == 1:
        added(producer, payloads)
        return
    for at in range(0, len(payloads), together):
        branch = payloads[at : at + together]
        producer.reorg(BlockRef(branch[0].number - 1, branch[0].parent), branch)
    producer.flush(600)
