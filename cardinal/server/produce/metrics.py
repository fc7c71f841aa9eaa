"""Metrics of the producing service.

Latencies are counted of blocks near the head alone: those of a backfill are years old. ``idle`` and ``stalled`` are
apart: a node without a new block is idle; the service is stalled when it publishes nothing although there is something
to publish.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal.consuming.metrics import DEPTH_BUCKETS, LATENCY_BUCKETS
from cardinal.metrics import Collector, CounterMetricFamily, GaugeMetricFamily, Histogram, Metric, new_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cardinal.apps import Application
    from cardinal.protocols.streams.payload import Payload
    from cardinal.server.produce.conditions import Conditions
    from cardinal.server.produce.progress import Progress

_NEAR_BLOCKS: Final = 10
_QUEUE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class ProduceMetrics(Collector):
    """Metrics of one service: its observer, and the collector of its progress.

    Arguments:
        app: the application, for the time of blocks; None: not known yet.
        conditions: what is waited for before there is a service.
        clock: seconds since 1970, for the age of blocks.

    Attributes:
        app: as the argument.
        progress: returns the service's progress; None before there is a service.
        registry: all metrics, and those of the process.

    """

    def __init__(
        self,
        app: Application | None = None,
        *,
        conditions: Conditions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.app = app
        self.progress: Callable[[], Progress] | None = None
        self.registry = new_registry()
        self._conditions = conditions
        self._clock = clock
        self._latency = Histogram(
            "cardinal_produce_latency_seconds",
            "Time from a block's timestamp to the acknowledgement of its Batch, near the head.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._queue = Histogram(
            "cardinal_produce_queue_seconds",
            "Time from the node's answer to the acknowledgement of the block's Batch, near the head.",
            buckets=_QUEUE_BUCKETS,
            registry=self.registry,
        )
        self._depth = Histogram(
            "cardinal_produce_reorg_depth_blocks",
            "Blocks that left the node's chain in a reorg.",
            buckets=DEPTH_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def published(self, payload: Payload, seconds: float, behind: int) -> None:
        """A block was sealed: see :class:`.settings.Observer`."""
        if behind >= _NEAR_BLOCKS:
            return
        self._queue.observe(seconds)
        if self.app is not None and (at := self.app.time_of(payload)) is not None:
            self._latency.observe(max(0.0, self._clock() - at))

    def reorged(self, depth: int) -> None:
        """The node's chain left blocks: see :class:`.settings.Observer`."""
        self._depth.observe(depth)

    def waits_for(self) -> str:
        """Reason why the service waits, in a sentence; empty while it delivers."""
        if self.progress is not None:
            return self.progress().waits_for
        return (self._conditions and self._conditions.waits_for) or "the service is connecting to the node"

    def describe(self) -> Iterable[Metric]:
        """No metric is collected when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment, for the registry."""
        now = None if self.progress is None else self.progress()
        yield _gauge("ready", "1 while the service delivers.", now is not None and not now.waits_for)
        yield _gauge("broker_connected", "1 while the broker answers.", now is not None and now.connected)
        connected = now is not None and not now.nodes.waits_for
        yield _gauge("node_connected", "1 while the followed node answers.", connected)
        if now is None:
            return
        yield _gauge("node_head", "Number of the node's head.", now.head)
        yield _gauge("published_head", "Number of the heaviest published block.", now.published)
        yield _gauge("target", "Number of the block that the feed is going to.", now.target)
        yield _gauge("lag_blocks", "Blocks between the published head and the target.", now.lag)
        yield _gauge("in_flight_blocks", "Blocks that are not acknowledged.", now.stats.in_flight)
        yield _gauge("queued_messages", "Messages of blocks that are not acknowledged.", now.stats.queued_messages)
        yield _gauge("queued_bytes", "Bytes of blocks that are not acknowledged.", now.stats.queued_bytes)
        yield _gauge("oldest_in_flight_seconds", "Age of the oldest block not acknowledged.", now.oldest_seconds)
        yield _gauge("idle_seconds", "Time since the node's head last moved.", now.idle_seconds)
        yield _gauge(
            "stalled_seconds", "Time without a published block while there was one to publish.", now.stalled_seconds
        )
        yield _gauge("backfill_eta_seconds", "Time left to the head of a backfill, at the present rate.", _eta(now))
        yield _gauge("partial_blocks", "Partially published blocks that are not completed.", len(now.partial))
        yield _counter("blocks", "Published blocks.", now.stats.blocks)
        yield _counter("messages", "Published messages.", now.stats.messages)
        yield _counter("bytes", "Published bytes.", now.stats.bytes)
        yield _counter("skipped_blocks", "Blocks that other producers published.", now.stats.skipped)
        yield _counter("retries", "Blocks that were sent again.", now.retries)
        yield _counter("producer_renewals", "Producers that failed and were replaced.", now.renewals)
        yield from _producers(now)
        yield from _nodes(now)
        marks = {} if now.finality is None else {"safe": now.finality.safe, "finalized": now.finality.finalized}
        head = now.number
        lags = {name: head - mark for name, mark in marks.items() if mark is not None and head is not None}
        yield _gauges("finality_lag_blocks", "Blocks between the newest block and a finality mark.", "mark", lags)


def _eta(now: Progress) -> float | None:
    """Time left of a backfill; 0 near the head, None while nothing is published."""
    if now.waits_for or not now.connected:
        return None
    return now.eta_seconds if now.lag >= _NEAR_BLOCKS else 0.0


def _producers(now: Progress) -> Iterable[Metric]:
    producers, arrivals = now.producers, now.arrivals
    first = {} if producers is None else producers.first
    yield _gauge("producers", "Running producers of the stream.", None if producers is None else producers.count)
    family = CounterMetricFamily(
        "cardinal_produce_first_arrivals", "Blocks of which a producer's copy came first.", labels=["producer"]
    )
    for name, count in first.items():
        family.add_metric([name], count)
    yield family
    yield _gauges(
        "producer_lag_seconds",
        "Time of a producer's newest copy behind the first copy of its block.",
        "producer",
        {} if arrivals is None else arrivals.lag,
    )
    if arrivals is not None:
        yield _counter("duplicates", "Copies of blocks beyond the first.", arrivals.duplicates)
        yield _counter("divergences", "Copies of blocks that differ from the first.", arrivals.divergences)


def _nodes(now: Progress) -> Iterable[Metric]:
    height = GaugeMetricFamily("cardinal_produce_node_height", "Number of a node's head.", labels=["node"])
    requests = CounterMetricFamily("cardinal_produce_node_requests", "Calls that were sent to a node.", labels=["node"])
    errors = CounterMetricFamily(
        "cardinal_produce_node_errors", "Failures of a node, healed ones too.", labels=["node", "kind"]
    )
    for node in now.nodes.nodes:
        if node.head is not None:
            height.add_metric([node.address], node.head)
        requests.add_metric([node.address], node.requests)
        for kind, count in node.errors.items():
            errors.add_metric([node.address, kind], count)
    yield from (height, requests, errors)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cardinal_produce_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"cardinal_produce_{name}", text, labels=[label])
    for one, value in values.items():
        family.add_metric([one], value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"cardinal_produce_{name}", text, value=value)
