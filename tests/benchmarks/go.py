"""Kafka to chain updates and payloads to Kafka beside the Go implementation and beside raw confluent-kafka.

python tests/benchmarks/go.py [--quick]

One run on one broker of the release that the Go client can talk to; medians, and ratios of medians. Rates do not carry
over to other machines, ratios do. *consume* counts from before a client is made to the last block of our topics,
*produce* from an open connection to the last message on the broker, for Go by the partitions' watermarks. Where Go or
its modules cannot be had it prints the reason and ends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import consuming
import producing
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition
from report import say

from cardinal.apps import Application
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload, split

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
from go_program import Go, GoUnavailableError, kafka, program

RUNS = 5
CONSUMED = ((300, 500), (3_000, 100))
"""Bytes of a value and blocks of ``consuming.FULL`` values."""
PRODUCED = ((300, 500),)
ROOT = Payload(0, consuming.block_hash(0), bytes(32), 0)


def consume(bootstrap: str, go: Go, size: int, blocks: int, runs: int) -> None:
    """Our topics, read whole by each."""
    app = consuming.application(f"go{size}")
    url = f"{go.url}?cardinal.partitions={consuming.PARTITIONS}"
    messages = consuming.publish(url, app, blocks, consuming.FULL, size)
    legs: dict[str, Callable[[], float]] = {
        "raw": partial(timed, lambda: consuming.raw(bootstrap, app, messages)),
        "Go": partial(timed, lambda: updates_of_go(go, app, blocks)),
        "Python": partial(timed, lambda: consuming.updates(url, app, blocks)),
    }
    table(f"consume {messages:,} × {size} B", messages, legs, runs)


def updates_of_go(go: Go, app: Application, last: int) -> None:
    """Take the chain to this block; the Go program prints numbers and hashes only."""
    with go.consumer(app, ROOT, "-brief") as consumer:
        while (line := consumer.next()) == "ready" or line["added"][-1]["number"] < last:
            pass


def produce(bootstrap: str, go: Go, size: int, blocks: int, runs: int) -> None:
    """The same blocks by each, every time to topics of their own."""
    payloads = list(islice(producing.chain(consuming.FULL, size), blocks))
    messages = blocks * consuming.FULL
    legs: dict[str, Callable[[], float]] = {
        "raw": partial(raw_produced, go, payloads),
        "Go": partial(produced_by_go, go, bootstrap, payloads),
        "Python": partial(produced, go, payloads),
    }
    table(f"produce {messages:,} × {size} B", messages, legs, runs)


def raw_produced(go: Go, payloads: list[Payload]) -> float:
    """Seconds that the raw client takes for messages that were split before."""
    app = topics_of(go)
    parts = [split(payload, app.topics, app.default_topic) for payload in payloads]
    client = producing.connected(go.url)
    return timed(lambda: producing.plain(client, parts))


def produced(go: Go, payloads: list[Payload]) -> float:
    """Seconds that our producer takes to the last acknowledged seal."""
    app = topics_of(go)
    with Producer(go.url, app, producer_id="bench") as producer:
        return timed(lambda: producing.added(producer, payloads))


def produced_by_go(go: Go, bootstrap: str, payloads: list[Payload]) -> float:
    """Seconds that the Go producer takes until everything lies on the topics: it reports no acknowledgements."""
    app = topics_of(go)
    client = Client({"bootstrap.servers": bootstrap, "group.id": "ends"})
    partitions = [(topic, number) for topic in app.all_topics for number in range(producing.PARTITIONS)]

    def ends() -> int:
        return sum(client.get_watermark_offsets(TopicPartition(*at), timeout=30)[1] for at in partitions)

    with go.producer(app, payloads) as producer:
        producer.next()
        before = ends()
        wanted = before + sum(len(payload.updates) + 1 for payload in payloads)

        def run() -> None:
            producer.send(len(payloads))
            producer.next()
            while ends() < wanted:
                time.sleep(0.005)

        seconds = timed(run)
    client.close()
    return seconds


def topics_of(go: Go) -> Application:
    """A stream on new topics, made by our producer for all alike."""
    app = producing.stream()
    Producer(f"{go.url}?cardinal.partitions={producing.PARTITIONS}", app, producer_id="bench").close()
    return app


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def table(title: str, messages: int, legs: dict[str, Callable[[], float]], runs: int) -> None:
    """Every leg in turn, so many times; a line of medians and ratios."""
    found: dict[str, list[float]] = {name: [] for name in legs}
    for _ in range(runs):
        for name, work in legs.items():
            found[name].append(messages / work())
    raw, go, ours = (statistics.median(found[name]) for name in ("raw", "Go", "Python"))
    rates = f"raw {raw:>9,.0f}   Go {go:>9,.0f}   Python {ours:>9,.0f} msg/s"
    say(f"{title:26} {rates}   Python/Go {ours / go:5.2f}   Python/raw {ours / raw:5.2f}")


def main() -> None:
    """Build the program, start a broker, print one line a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one run: whether it works")
    quick = parser.parse_args().quick
    runs, part = (1, 20) if quick else (RUNS, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            executable = program()
        except GoUnavailableError as error:
            say(f"skipped: {error}")
            return
        with kafka(folder / "data") as broker:
            go = Go(executable, broker.bootstrap, folder)
            say(f"median of {runs}, load average before {os.getloadavg()[0]:.1f}")
            for size, blocks in CONSUMED:
                consume(broker.bootstrap, go, size, blocks // part, runs)
            for size, blocks in PRODUCED:
                produce(broker.bootstrap, go, size, blocks // part, runs)


if __name__ == "__main__":
    main()
