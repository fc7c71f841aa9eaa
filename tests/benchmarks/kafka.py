"""Cost of the Kafka transport, compared with raw confluent-kafka in one run on the embedded broker.

python tests/benchmarks/kafka.py [--quick] [producer] [transactions] [consumer] [latency] [memory]

Without names it prints everything. Ratios of one run carry over to other machines, rates do not; by processor time
ratios mean something also while others work on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import consuming
import producing
from report import run_parts, say

from cardinal_devkit.kafka import EmbeddedKafka

RUNS: Final = 5


def of_producer(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Payload to acknowledged seal."""
    for size, count in ((300, 100_000), (3_000, 40_000)):
        for messages in (200, 10):
            blocks = count // messages // (20 if quick else 1)
            producing.throughput(broker, 1 if quick else RUNS, size, messages, blocks)


def of_transactions(broker: EmbeddedKafka, *, quick: bool) -> None:
    """What ``transactional=update`` costs."""
    for messages, blocks in ((10, 30),) if quick else ((10, 600), (200, 300)):
        producing.transactions(broker, 1 if quick else RUNS, messages, blocks)


def of_consumer(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Poll to chain update."""
    for size, blocks in ((300, 25),) if quick else ((300, 500), (3_000, 100)):
        consuming.throughput(broker, 1 if quick else RUNS, size=size, blocks=blocks)


def of_latency(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Both of them: ``add`` to chain update at the head."""
    say(f"head latency, one process, blocks of {consuming.HEAD} messages of 300 B")
    for rate in (1_000, 10):  # the faster one first: a broker that was just started is slow
        consuming.latency(broker, rate, 1 if quick else 20)


def of_memory(broker: EmbeddedKafka, *, quick: bool) -> None:
    """Whether either grows."""
    messages = 20_000 if quick else 1_000_000
    producing.memory(broker, messages)
    consuming.memory(broker, messages)


PARTS: Final[dict[str, Callable[..., None]]] = {
    "producer": of_producer,
    "transactions": of_transactions,
    "consumer": of_consumer,
    "latency": of_latency,
    "memory": of_memory,
}


if __name__ == "__main__":
    run_parts(__doc__, PARTS)
