"""Claim log and markers of a cluster as they are now, read once: for its administration.

The retained log may be long. It is read from the first state in its tail: the Epoch record, or a checkpoint.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal.transports.kafka import KafkaSource
from cardinal.transports.read_range import read_range
from cardinal_ingest.cluster.first_state import MAX_BLOCKS
from cardinal_ingest.cluster.keys import verify
from cardinal_ingest.cluster.reading import newest
from cardinal_ingest.cluster.topics import ClusterTopics, claims_topic, cluster_settings, promoted_topic
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Applied,
    Claim,
    ClaimLog,
    Epoch,
    Noted,
    Opened,
    Position,
    Refusal,
    Rules,
    State,
    decode_marker,
    decode_record,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Record
    from cardinal_ingest.cluster.config import ClusterFile
    from cardinal_ingest.protocols.mesh import Cluster
    from cardinal_ingest.protocols.replication import Header, Marker, Membership

_TAIL: Final = 2_200
"""Two intervals of checkpoints, and what was refused between them."""
_MORE: Final = 8


@dataclass(frozen=True, slots=True)
class LogState:
    """Claim log of an epoch, and the last marker.

    Attributes:
        topic: of the log.
        begin: lowest retained offset.
        position: after the last record.
        state: of the agreement.
        opened: batch number of the state from which the log was read.
        from_epoch: that state is the Epoch record's.
        batches: those read since, by number.
        claimers: of the claims that won their number, in their order.
        refused: records that counted for nothing, by reason.
        marker: the last one of this cluster; None where there is none yet.

    """

    topic: str
    begin: int
    position: Position
    state: State
    opened: int
    from_epoch: bool
    batches: Mapping[int, Header]
    claimers: tuple[str, ...]
    refused: Mapping[Refusal, int]
    marker: Marker | None

    @property
    def closed(self) -> bool:
        """The epoch has ended."""
        return self.position.closed

    @property
    def promoted(self) -> int | None:
        """Number of the last batch all blocks of which are on the topics; None where no marker says so."""
        if self.marker is None:
            return self.opened if self.from_epoch else None
        batch = self.batches.get(self.marker.num)
        is_complete = batch is None or self.marker.index >= len(batch.items)
        return self.marker.num if is_complete else self.marker.num - 1

    @property
    def unpromoted(self) -> int | None:
        """Agreed batches that are not on the topics; None where that is unknown."""
        return None if self.promoted is None else self.state.num - self.promoted


def read_log(url: TransportUrl, app: Application, file: ClusterFile) -> LogState:
    """Read the claim log of a cluster to its end, and its last marker.

    Raises:
        ConfigurationError: the log is another cluster's, or holds no state.
        TopicError: there is none.
        UnreachableError, RefusedError: the broker is unreachable or says no.
        StateDivergedError: a checkpoint in the log is false.

    """
    membership = file.membership(app)
    topic = ClusterTopics(url, app.default_topic).check_claims(file.epoch)
    with closing(KafkaSource(cluster_settings(url), [topic])) as source:
        low, high = source.watermarks()[topic, 0]
        first = _records(source, topic, low, min(low + 1, high))
        epoch = _epoch(first[0].value) if first else None
        rules = Rules(0, app.reorg_threshold, MAX_BLOCKS)
        if epoch is not None:
            if found := difference(epoch, file.cluster(app)):
                raise ConfigurationError(f"the claim log {topic} is of another cluster: {found}", setting="cluster")
            rules = Rules(epoch.start, epoch.window, epoch.max_blocks)
        width = _TAIL
        reading = _Reading(membership, max(low, high - width), rules)
        while not reading.read(_records(source, topic, reading.begin, high)) and reading.begin > low:
            width *= _MORE
            reading = _Reading(membership, max(low, high - width), rules)
    if reading.log.state is None:
        raise ConfigurationError(
            f"the claim log {topic} holds no record of this cluster: run `cardinal cluster init`", setting="cluster"
        )
    return reading.result(topic, low, _last_marker(url, app, membership))


def difference(epoch: Epoch, cluster: Cluster) -> str:
    """Difference between the cluster of an Epoch record and this one; empty where there is none."""
    theirs, ours = dict(epoch.members), cluster.keys
    if epoch.name != cluster.name:
        return f"its name is {epoch.name}, not {cluster.name}"
    if epoch.epoch != cluster.epoch:
        return f"its epoch is {epoch.epoch}, not {cluster.epoch}"
    if epoch.app != cluster.app:
        return "its application, chain or topics are others"
    if theirs.keys() != ours.keys():
        return f"its members are {', '.join(sorted(theirs))}, not {', '.join(sorted(ours))}"
    changed = [name for name, key in sorted(ours.items()) if theirs[name] != key]
    return f"the key of {', '.join(changed)} is another one" if changed else ""


class _Reading:
    """The log from an offset on."""

    def __init__(self, membership: Membership, begin: int, rules: Rules) -> None:
        self.begin = begin
        self.log = ClaimLog(membership, verify, Position(offset=begin, rules=rules))
        self._opened: Opened | None = None
        self._from_epoch = False
        self._batches: dict[int, Header] = {}
        self._claimers: list[str] = []
        self._refused: dict[Refusal, int] = {}

    def read(self, records: list[Record]) -> bool:
        """Read on; False where there is no state."""
        for record in records:
            if self._opened is None and _is_claim(record.value):
                continue  # nothing can be said about it
            match self.log.read(record.offset, record.value):
                case Opened() as opened:
                    self._opened, self._from_epoch = opened, _epoch(record.value) is not None
                case Applied(claim, _):
                    self._batches[claim.header.num] = claim.header
                    self._claimers.append(claim.claimer)
                case Noted():
                    pass
                case refused:
                    self._refused[refused.reason] = self._refused.get(refused.reason, 0) + 1
        return self._opened is not None

    def result(self, topic: str, begin: int, marker: Marker | None) -> LogState:
        """State of the log as read."""
        state = self.log.state
        assert state is not None  # noqa: S101 - the caller has looked
        assert self._opened is not None  # noqa: S101 - the same
        return LogState(
            topic, begin, self.log.position, state, self._opened.state.num, self._from_epoch,
            self._batches, tuple(self._claimers), self._refused, marker,
        )  # fmt: skip


def read_first(url: TransportUrl, topic: str) -> bytes | None:
    """The first record of a claim log that exists; None where it is empty."""
    with closing(KafkaSource(cluster_settings(url), [topic])) as source:
        low, high = source.watermarks()[topic, 0]
        records = _records(source, topic, low, min(low + 1, high))
        return records[0].value if records else None


def cluster_before(url: TransportUrl, app: Application, file: ClusterFile) -> bytes:
    """Identity of the cluster of the epoch before, 32 bytes: its markers are on the topics until the first new one.

    Zeros in the first epoch, and where the log was trimmed: by then the markers are of this epoch.

    Raises:
        TopicError: there is no claim log.
        UnreachableError, RefusedError: the broker is unreachable or says no.

    """
    topic = claims_topic(app.default_topic, file.epoch)
    first = read_first(url, topic)
    epoch = None if first is None else _epoch(first)
    return NO_HASH if epoch is None or difference(epoch, file.cluster(app)) else epoch.previous


def newest_marker(url: TransportUrl, app: Application) -> Marker | None:
    """The last marker on the topic of markers, of whatever cluster; None where there is none."""
    topic = promoted_topic(app.default_topic)
    with closing(KafkaSource(cluster_settings(url), [topic])) as source:
        found = newest(source, lambda record: bool(record.key)).get((topic, 0))
    try:
        return None if found is None else decode_marker(found.value)
    except ViolationError as error:
        raise ConfigurationError(
            f"the last record of {topic} is no marker ({error.reason}): something else writes to it", setting="topic"
        ) from None


def _last_marker(url: TransportUrl, app: Application, membership: Membership) -> Marker | None:
    marker = newest_marker(url, app)
    return marker if marker is not None and marker.cluster == membership.cluster else None


def _records(source: KafkaSource, topic: str, begin: int, end: int) -> list[Record]:
    records: list[Record] = []
    read_range(source, {(topic, 0): begin}, {(topic, 0): end}, records.append)
    return records


def _epoch(value: bytes) -> Epoch | None:
    try:
        found = decode_record(value)
    except ViolationError:
        return None
    return found if isinstance(found, Epoch) else None


def _is_claim(value: bytes) -> bool:
    try:
        return isinstance(decode_record(value), Claim)
    except ViolationError:
        return False
