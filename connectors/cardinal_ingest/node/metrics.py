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


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Numbers of a cluster's member at one moment, as :class:`IngestStatus`."""

    leader: Annotated[Mapping[str, int], "1 for the member that leads, as this one sees it.", "member"]
    agreed_batch: Annotated[int, "Last agreed batch that this member has read."]
    agreed_block: Annotated[int, "Highest agreed block."]
    promoted_batch: Annotated[int, "Batch of the last marker that this member has read."]
    acknowledged_block: Annotated[int | None, "Highest block that a majority has stored; absent while there is none."]
    unagreed_blocks: Annotated[int, "Acknowledged blocks that no batch has."]
    missing_bodies: Annotated[int, "Agreed blocks whose bodies this member lacks."]
    peers_connected: Annotated[int, "Members with which messages pass both ways."]
    peers_suspected: Annotated[int, "Members of which a link makes no progress."]
    promoter: Annotated[int, "1 while this member puts blocks on the topics."]
    claim_offset: Annotated[int, "Records of the claim log that this member has read."]
    claims_total: Annotated[int, "Records that this member appended to the claim log."]
    pending: Annotated[Mapping[str, int], "1 for each reason why blocks wait.", "reason"]
    links_ended_total: Annotated[Mapping[str, int], "Ends of links, by their reason.", "reason"]
    agreement_events_total: Annotated[Mapping[str, int], "Divergences, refused claims and the like.", "event"]


class IngestMetrics(Collector):
    """Metrics of one node.

    Arguments:
        status: takes the numbers, and those of a cluster's member, if it is one; called on the thread of the scrape.

    Attributes:
        registry: all metrics, and those of the process.

    """

    def __init__(self, status: Callable[[], tuple[IngestStatus, MemberStatus | None]]) -> None:
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
        status, member = self._status()
        yield from _families(_PREFIX, status)
        if member is not None:
            yield from _families(f"{_PREFIX}cluster_", member)


def _families(prefix: str, status: IngestStatus | MemberStatus) -> Iterator[Metric]:
    """A metric for each number; one with a label for each that has names."""
    for name, hint in get_type_hints(type(status), include_extras=True).items():
        value = getattr(status, name)
        text, *labels = hint.__metadata__
        family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        if labels:
            counts = family(prefix + name, text, labels=labels)
            for label, number in value.items():
                counts.add_metric([label], number)
            yield counts
        elif value is not None:
            yield family(prefix + name, text, value=value)
