"""State of a cluster: who leads, what is agreed, promoted, pending and why, and who is behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal_ingest.cluster.log_state import read_log
from cardinal_ingest.cluster.node_reports import node_reports
from cardinal_ingest.protocols.replication import ReplicationSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal_ingest.cluster.config import ClusterFile
    from cardinal_ingest.cluster.node_reports import NodeReport
    from cardinal_ingest.protocols.replication import Head, Marker

_NEWEST: Final = 100


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of a cluster.

    Attributes:
        name, epoch, members: of the cluster's file.
        chain: ``evm:1``.
        claim_log: its topic.
        begin, end: lowest retained offset of it, and the one after its last record.
        closed: the epoch has ended.
        leader: as most members see it; without their reports, by the log.
        agreed: number of the last batch.
        head: of a consumer that has read all agreed blocks; None while there is none.
        highest: highest agreed block number.
        claims: of the newest 100 batches, those that each member claimed.
        refused: records of the log's tail that counted for nothing, by reason.
        promoted: the last batch that is on the topics; None where it is unknown.
        unpromoted: batches that are not; None likewise.
        marker: the last one of this epoch; None while there is none.
        nodes: reports of the members whose metrics address is known.
        warnings: sentences.

    """

    name: str
    epoch: int
    members: tuple[str, ...]
    chain: str
    claim_log: str
    begin: int
    end: int
    closed: bool
    leader: str
    agreed: int
    head: Head | None
    highest: int
    claims: Mapping[str, int]
    refused: Mapping[str, int]
    promoted: int | None
    unpromoted: int | None
    marker: Marker | None
    nodes: tuple[NodeReport, ...]
    warnings: tuple[str, ...]

    def behind(self, node: NodeReport) -> int | None:
        """Batches that a member has not read; None where it does not say."""
        return None if node.agreed_batch is None else max(self.agreed - node.agreed_batch, 0)

    @property
    def promoter(self) -> str | None:
        """The member that promotes, by its own report; else the writer of the last marker."""
        own = next((node.member for node in self.nodes if node.promotes), None)
        return own or (None if self.marker is None else self.marker.writer)


def cluster_status(url: TransportUrl, app: Application, file: ClusterFile) -> ClusterStatus:
    """The state of a cluster, from its log, its markers, and the metrics of its members.

    Raises:
        CardinalError: as :func:`.log_state.read_log` and :func:`.node_reports.node_reports`.

    """
    log = read_log(url, app, file)
    nodes = node_reports(file)  # afterwards: a member is not behind what was agreed meanwhile
    state = log.state
    newest = Counter(log.claimers[-_NEWEST:])
    leaders = Counter(node.leader for node in nodes if node.leader is not None)
    turn = state.highest // ReplicationSettings().leader_interval + log.position.skips
    return ClusterStatus(
        file.name,
        file.epoch,
        tuple(sorted(file.members)),
        app.chain,
        log.topic,
        log.begin,
        log.position.offset,
        log.closed,
        leaders.most_common(1)[0][0] if leaders else file.membership(app).leader(turn),
        state.num,
        state.head if state.ring else None,
        state.highest,
        {name: newest[name] for name in sorted(file.members)},
        {reason.value: count for reason, count in log.refused.items()},
        log.promoted,
        log.unpromoted,
        log.marker,
        nodes,
        file.warnings,
    )
