"""What the way over Kafka costs, beside raw confluent-kafka with the same settings, in one run on the embedded broker.

python tests/benchmarks/kafka.py            # everything
python tests/benchmarks/kafka.py producer   # only the producer's part
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Producer as RawProducer

from cardinal.apps import Application
from cardinal.embedded import EmbeddedKafka
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload, split
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings

PARTITIONS: Final = 8
ROUNDS: Final = 3


def main(parts: list[str]) -> None:
    """Start a broker and print the tables that were asked for."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder)) as broker:
        for name, part in PARTS.items():
            if not parts or name in parts:
                part(broker.bootstrap)


def line(*cells: object) -> None:
    """One line of a table: a name, then numbers."""
    first, *others = cells
    shown = "".join(f"{cell:>14,.0f}" if isinstance(cell, float) else f"{cell:>14}" for cell in others)
    sys.stdout.write(f"{first:<44}{shown}\n")
    sys.stdout.flush()


def stream() -> Application:
    """A stream on topics of its own."""
    stem = uuid.uuid4().hex[:12]
    return Application(
        name="blocks", chain="blocks:1", default_topic=f"{stem}-block", topics={"a/": f"{stem}-a"}, prefixes=("a/",)
    )


def blocks(count: int, messages: int, size: int) -> list[Payload]:
    """A chain of blocks with so many messages each, the Batch among them, of so many bytes."""
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    hashes = [number.to_bytes(32, "big") for number in range(count + 1)]
    updates = {f"a/{index:05x}": value for index in range(messages - 1)}
    return [Payload(at, hashes[at], hashes[at - 1], at, updates) for at in range(1, count + 1)]


# --- the producer ----------------------------------------------------------------------------------------------------


def of_producer(bootstrap: str) -> None:
    """Messages a second from payload to acknowledged seal; what transactions cost; beside it the raw client."""
    url = f"kafka://{bootstrap}?cardinal.partitions={PARTITIONS}"
    line("producer, messages/s", "raw", "raw+headers", "Producer", "of raw", "MB/s")
    for size, count in ((300, 200_000), (3_000, 40_000)):
        for messages in (200, 10):
            payloads = blocks(count // messages, messages, size)
            app = stream()
            Producer(url, app, producer_id="warm").close()
            routed = [message for payload in payloads for message in split(payload, app.topics, app.default_topic)]
            rates: dict[str, list[float]] = {"raw": [], "headers": [], "ours": []}
            for _ in range(ROUNDS):
                rates["raw"].append(timed(len(routed), lambda: raw(url, routed, headers=False)))  # noqa: B023 - called at once
                rates["headers"].append(timed(len(routed), lambda: raw(url, routed, headers=True)))  # noqa: B023 - the same
                rates["ours"].append(timed(len(routed), lambda: ours(url, app, payloads)))  # noqa: B023 - the same
            plain, headers, own = (statistics.median(rates[name]) for name in ("raw", "headers", "ours"))
            name = f"{size} B, blocks of {messages}"
            line(name, plain, headers, own, f"{own / plain:.0%}", own * size / 1e6)
    sys.stdout.write("\n")
    of_transactions(url)


def of_transactions(url: str) -> None:
    """The same with a transaction a block."""
    line("transactions, one a block", "without", "with", "blocks/s with", "of without")
    for messages, count in ((200, 300), (10, 600), (2_000, 40)):
        payloads = blocks(count, messages, 300)
        rates: dict[str, list[float]] = {"": [], "&transactional=update": []}
        for _ in range(ROUNDS):
            for option, found in rates.items():
                app = stream()
                with Producer(url + option, app, producer_id=app.default_topic) as producer:
                    found.append(timed(count * messages, lambda: added(producer, payloads)))  # noqa: B023 - called at once
        without, together = (statistics.median(found) for found in rates.values())
        line(f"300 B, blocks of {messages}", without, together, together / messages, f"{together / without:.0%}")
    sys.stdout.write("\n")


def timed(messages: int, work: Callable[[], object]) -> float:
    """Messages a second."""
    began = time.perf_counter()
    work()
    return messages / (time.perf_counter() - began)


def ours(url: str, app: Application, payloads: list[Payload]) -> None:
    """Publish them; the connection is part of it, as it is of the raw client."""
    with Producer(url, app, producer_id="bench") as producer:
        added(producer, payloads)


def added(producer: Producer, payloads: list[Payload]) -> None:
    """Add all, wait for all."""
    for payload in payloads:
        producer.add(payload)
    producer.flush(600)


def raw(url: str, routed: list[tuple[str, bytes, bytes]], *, headers: bool) -> None:
    """The same messages, settings and acknowledgements by hand; with our header, or without any."""
    client = RawProducer(kafka_settings(parse_url(url)).producer(10_000_024, "bench"))
    left = len(routed)
    who: list[tuple[str, str | bytes | None]] = [("cardinal-producer", b"bench")]

    def delivered(error: object, message: object) -> None:
        nonlocal left
        del message
        if error is not None:
            raise RuntimeError(error)
        left -= 1

    for topic, key, value in routed:
        while True:
            try:
                if headers:
                    client.produce(topic, value, key, on_delivery=delivered, headers=who)
                else:
                    client.produce(topic, value, key, on_delivery=delivered)
            except BufferError:
                client.poll(0.01)
            else:
                break
        client.poll(0)
    client.flush()


# --- the consumer ----------------------------------------------------------------------------------------------------


PARTS: Final[dict[str, Callable[[str], None]]] = {"producer": of_producer}

if __name__ == "__main__":
    main(sys.argv[1:])
