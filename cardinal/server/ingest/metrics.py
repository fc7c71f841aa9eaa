"""Metrics of an ingest node: its numbers at one moment, and the time that acknowledgements take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, get_type_hints

from cardinal.metrics import Collector, CounterMetricFamily, GaugeMetricFamily, Histogram, Metric, new_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX: Final = "cardinal_ingest_"
_LATENCY_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """Numbers of a node at one moment. Names and descriptions are those of the metrics; a third word is a label."""

    ready: Annotated[int, "1 while blocks are accepted and put on the topics."]
    publishers: Annotated[int, "Connected publishers."]
    open_blocks: Annotated[int, "Blocks that are not acknowledged."]
    memory_bytes: Annotated[int, "Bytes of blocks that are received, verified or stored."]
    pool_bytes: Annotated[int, "Bytes of stored blocks that are not on the topics."]
    waiting_blocks: Annotated[int, "Acknowledged blocks that are not on the topics."]
    promotion_lag_seconds: Annotated[float, "Time for which the oldest of them has waited."]
    last_acknowledged: Annotated[int | None, "Highest acknowledged block; absent while there is none."]
    last_promoted: Annotated[
        int | None, "Newest block that this process put on the topics; absent while there is none."
    ]
    acknowledged_blocks_total: Annotated[int, "Acknowledged blocks."]
    promoted_blocks_total: Annotated[int, "Blocks put on the topics."]
    ignored_sets_total: Annotated[int, "Sets and block ends that belong to no block in progress."]
    responses_total: Annotated[Mapping[str, int], "Responses to publishers: refusals by their status.", "kind"]
    first_copies_total: Annotated[Mapping[str, int], "Blocks of which a publisher's copy was stored.", "publisher"]
    peers: Annotated[int, "Peers from which bodies are fetched now."]
    peers_absent: Annotated[int, "Configured peers to which there is no link."]
    peer_clients: Annotated[int, "Peers that fetch bodies from this node now."]
    peer_bytes: Annotated[int, "Bytes of bodies that are requested of peers, arriving, verified or stored."]
    fetched_blocks_total: Annotated[int, "Blocks of which a peer's copy was stored."]
    served_blocks_total: Annotated[int, "Bodies sent to peers."]
    peer_refusals_total: Annotated[Mapping[str, int], "Links to peers ended by this node, by the reason.", "reason"]
    events_total: Annotated[Mapping[str, int], "Events that concern an operator.", "event"]


class IngestMetrics(Collector):
    """Metrics of one node.

    Arguments:
        status: takes the numbers; called on the thread of the scrape.

    Attributes:
        registry: all metrics, and those of the process.

    """

    def __init__(self, status: Callable[[], IngestStatus]) -> None:
        self._status = status
        self.registry = new_registry()
        self._latency = Histogram(
            f"{_PREFIX}acknowledgement_seconds",
            "Time from the last item of a block to its acknowledgement.",
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def acknowledged(self, seconds: float) -> None:
        """A block was acknowledged so long after its last item came."""
        self._latency.observe(seconds)

    def describe(self) -> list[Metric]:
        """Nothing: to register it must not take a status."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All numbers."""
        status = self._status()
        for name, hint in get_type_hints(IngestStatus, include_extras=True).items():
            value = getattr(status, name)
            text, *labels = hint.__metadata__
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if labels:
                counts = family(_PREFIX + name, text, labels=labels)
                for label, number in value.items():
                    counts.add_metric([label], number)
                yield counts
            elif value is not None:
                yield family(_PREFIX + name, text, value=value)
