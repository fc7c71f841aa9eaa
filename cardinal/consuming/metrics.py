"""Metrics of a consumer, for programs that follow a stream.

Example::

consumer = cardinal.Consumer("kafka://localhost:9092")
metrics = ConsumerMetrics(consumer)
with Endpoint("127.0.0.1:9091", metrics.registry, metrics.waits_for):
    for update in consumer:
        apply(update)
        metrics.delivered(update)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from cardinal.apps import Application
from cardinal.metrics import Collector, Counter, GaugeMetricFamily, Histogram, new_registry
from cardinal.protocols.streams.payload import MissingPayload, Payload
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cardinal.metrics import CollectorRegistry
    from cardinal.protocols.streams.events import ChainUpdate, Explanation
    from cardinal.protocols.streams.types import FinalityViolated
    from cardinal.transports.base import OpenTransaction

__all__ = ["ConsumerMetrics"]

LATENCY_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 900, 3600)
"""Seconds; a block of Ethereum is 2 to 5 seconds old when a node has it."""

DEPTH_BUCKETS: Final = (1, 2, 3, 5, 10, 20, 50, 128, 500)


class _Consumer(Protocol):
    """The part of :class:`cardinal.Consumer` that is read."""

    app: Application

    @property
    def ready(self) -> bool: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def connected(self) -> bool: ...
    @property
    def lag(self) -> int: ...
    @property
    def lag_seconds(self) -> float: ...
    def refresh_lag(self) -> None: ...
    @property
    def withheld(self) -> FinalityViolated | None: ...
    @property
    def without_quorum(self) -> int: ...
    @property
    def open_blocks(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    def open_transactions(self) -> Sequence[OpenTransaction]: ...
    @property
    def awaited(self) -> list[Explanation]: ...


class ConsumerMetrics(Collector):
    """Metrics of one consumer. Call :meth:`delivered` with every update that was handled.

    Arguments:
        consumer: the consumer.
        registry: registers the metrics; default: a new one with the metrics of the process.
        clock: seconds since 1970, for the age of blocks.

    """

    def __init__(
        self,
        consumer: _Consumer,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = new_registry() if registry is None else registry
        self._consumer = consumer
        self._clock = clock
        self._head: int | None = None
        self._seq = 0
        self._blocks = Counter(
            "cardinal_consumer_blocks", "Delivered blocks, by change.", ["change"], registry=self.registry
        )
        self._missing = Counter(
            "cardinal_consumer_missing_payloads", "Blocks that were delivered without content.", registry=self.registry
        )
        self._depth = Histogram(
            "cardinal_consumer_reorg_depth_blocks",
            "Blocks that left the chain in a reorg.",
            buckets=DEPTH_BUCKETS,
            registry=self.registry,
        )
        self._latency = Histogram(
            "cardinal_consumer_delivery_latency_seconds",
            "Time from a block's timestamp to its delivery, once the backlog is read.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def delivered(self, update: ChainUpdate) -> None:
        """Count an update."""
        self._seq = update.seq
        self._blocks.labels("added").inc(len(update.added))
        self._blocks.labels("removed").inc(len(update.removed))
        if update.removed:
            self._depth.observe(len(update.removed))
        if update.added:
            self._head = update.added[-1].number
        elif update.removed:
            self._head = update.removed[-1].number - 1
        follows, now = self._consumer.caught_up, self._clock()
        for block in update.added:
            if isinstance(block, MissingPayload):
                self._missing.inc()
            elif follows and isinstance(block, Payload) and (at := self._consumer.app.time_of(block)) is not None:
                self._latency.observe(max(0.0, now - at))

    def waits_for(self) -> str:
        """Reason why the consumer waits, in a sentence; empty while it delivers."""
        consumer = self._consumer
        if not consumer.connected:
            return "the stream's server does not answer"
        if consumer.ready:
            return ""
        if (reorg := consumer.withheld) is not None:
            return f"withheld: {reorg}"
        if (blocks := consumer.without_quorum) > (0 if self._head is None else consumer.app.reorg_threshold):
            lacking = Count(blocks, "block of one producer has", "blocks of one producer have")
            return f"{lacking} no quorum: start the others that `producers` names"
        if waits := (*consumer.open_transactions(), *consumer.awaited[:3]):
            return "; ".join(map(str, waits))
        consumer.refresh_lag()
        lag = Count(consumer.lag, "record is", "records are")
        return f"{lag} not delivered yet" if lag else "the last update is not handled yet"

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The metrics of this moment, for the registry."""
        consumer = self._consumer
        consumer.refresh_lag()
        yield _gauge("head", "Number of the newest delivered block.", self._head)
        yield _gauge("seq", "Sequence number of the last delivered change.", self._seq)
        yield _gauge(
            "lag_records",
            "Records that are not read, or are of updates that are not handled.",
            consumer.lag,
        )
        yield _gauge("lag_seconds", "Age of the oldest of these records, to some seconds.", consumer.lag_seconds)
        yield _gauge("open_blocks", "Blocks whose messages have not all been read.", consumer.open_blocks)
        yield _gauge("held_bytes", "Bytes of messages that are held back.", consumer.held_bytes)
        yield _gauge("connected", "1 while the stream's server answers.", consumer.connected)
        yield _gauge("ready", "1 while the consumer follows the stream.", consumer.ready)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """No metric is collected when this is registered."""
        return ()


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cardinal_consumer_{name}", text, value=value)
