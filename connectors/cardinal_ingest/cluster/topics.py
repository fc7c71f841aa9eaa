"""Topics of an ingest cluster: the claim log of each epoch, and the markers of promotion.

Rules (``connectors/cardinal_ingest/docs/replication.md``, sections 4, 8 and 10):

1. Claims are a compare-and-set in one order, and validity rests on every record before: one partition, never
   compacted, never expired, never led by a replica that lacks records.
2. Of the markers the last one counts: one partition, compacted and nothing else.
3. Both have three replicas, of which a majority acknowledges. With fewer brokers there are as many replicas as brokers;
   that is a warning, as a cluster of nodes then tolerates less than it seems to.
4. An existing topic is never changed. One with another setting is refused.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError, TopicError
from cardinal.server.topics import CLAIMS, PROMOTED
from cardinal.transports.kafka.admin import REPLICATION_MAX, Cluster, TopicAdmin, TopicInfo, TopicState
from cardinal.transports.kafka.settings import KafkaSettings, kafka_settings
from cardinal_ingest.errors import TopicSettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.config.url import TransportUrl

_LOG: Final = logging.getLogger("cardinal.ingest")
_CLAIMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    }
)
_PROMOTED: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
)
_PARTITIONS: Final = "partitions"
_REPLICATION: Final = "replication.factor"
_ACKNOWLEDGING: Final = "min.insync.replicas"
_AT_LEAST: Final = frozenset({_REPLICATION, _ACKNOWLEDGING})


def claims_topic(default_topic: str, epoch: int) -> str:
    """The name of an epoch's claim log."""
    return f"{default_topic}{CLAIMS}{epoch}"


def promoted_topic(default_topic: str) -> str:
    """The name of the topic of markers, which is the promoter's transactional id as well."""
    return f"{default_topic}{PROMOTED}"


def cluster_settings(url: str | TransportUrl) -> KafkaSettings:
    """The settings of a cluster's URL, with transactions.

    Raises:
        ConfigurationError: it is another transport's, or an option cannot work.

    """
    found = find_url(url)
    if found.scheme != "kafka":
        raise ConfigurationError(
            f"ingest nodes agree through Kafka, and {found.scheme}:// is another transport", setting="url"
        )
    settings = kafka_settings(found.with_options({"transactional": "update"}))
    if "transactional.id" in settings.properties:
        raise ConfigurationError(
            "the transactional id of an ingest cluster is the name of a topic of its own: leave transactional.id out",
            setting="transactional.id",
        )
    return settings


class ClusterTopics:
    """Topics of one cluster. Every method waits for the broker: it is called on a thread.

    Arguments:
        url: the stream's.
        default_topic: the stream's.

    Every method raises:
        UnreachableError, RefusedError: the broker is unreachable or says no.

    """

    def __init__(self, url: str | TransportUrl, default_topic: str) -> None:
        self._default_topic = default_topic
        self._settings = cluster_settings(url)
        self._cluster = Cluster(self._settings)
        self._admin = TopicAdmin(self._settings, self._cluster)

    def create_claims(self, epoch: int) -> str:
        """Create the claim log of a new epoch, or check the one that exists; its name.

        Raises:
            TopicSettingError: it exists with another setting.
            TopicError: it cannot be created.

        """
        name = claims_topic(self._default_topic, epoch)
        self._ensure(name, _CLAIMS)
        return name

    def check_claims(self, epoch: int) -> str:
        """The name of an epoch's claim log, which exists.

        Raises:
            TopicSettingError: it has another setting.
            TopicError: there is none. It is not created: an empty log would contradict every node.

        """
        name = claims_topic(self._default_topic, epoch)
        state = self._admin.state(name)
        if state is None:
            raise TopicError(
                f"the claim log {name} does not exist: restore it, or begin a cluster with cluster init", topic=name
            )
        self._check(name, state, self._demands(_CLAIMS))
        return name

    def ensure_promoted(self) -> TopicInfo:
        """Create the topic of markers, or check the one that exists.

        Raises:
            TopicSettingError: it exists with another setting.
            TopicError: it cannot be created.

        """
        name = promoted_topic(self._default_topic)
        config = self._ensure(name, _PROMOTED).config
        limit = int(config.get("max.message.bytes") or self._settings.max_message_bytes)
        return TopicInfo(name, 1, limit, append_time=config.get("message.timestamp.type") != "CreateTime")

    # --- inside --------------------------------------------------------------------------------------------

    def _ensure(self, name: str, settings: Mapping[str, str]) -> TopicState:
        demands = self._demands(settings)
        state = self._admin.state(name) if name in self._cluster.names() else None
        if state is None:
            replication = int(demands[_REPLICATION])
            if replication < REPLICATION_MAX:
                _LOG.warning(
                    "the topic %(topic)s is created with %(replicas)d of %(wanted)d replicas, as there are no more "
                    "brokers: records that a broker's disk loses are lost",
                    {"kind": "replicas", "topic": name, "replicas": replication, "wanted": REPLICATION_MAX},
                )
            config = {**settings, _ACKNOWLEDGING: demands[_ACKNOWLEDGING]}
            state = self._admin.create(name, config, replication=replication)
        self._check(name, state, demands)
        return state

    def _demands(self, settings: Mapping[str, str]) -> dict[str, str]:
        """All that a topic must have, with the brokers that there are."""
        brokers = len(self._cluster.metadata().brokers)
        replication = self._settings.replication or min(brokers, REPLICATION_MAX)
        majority = replication // 2 + 1
        return {_PARTITIONS: "1", _REPLICATION: str(replication), _ACKNOWLEDGING: str(majority), **settings}

    @staticmethod
    def _check(name: str, state: TopicState, demands: Mapping[str, str]) -> None:
        found = {**state.config, _PARTITIONS: str(state.partitions), _REPLICATION: str(state.replicas)}
        for setting, needed in demands.items():
            value = found.get(setting) or "unknown"
            enough = setting in _AT_LEAST and value.isdecimal() and int(value) >= int(needed)
            if value != needed and not enough:
                least = " at least" if setting in _AT_LEAST else ""
                raise TopicSettingError(
                    f"the topic {name} has {setting}={value}, and an ingest cluster needs {needed}{least}: change it, "
                    "or, while nothing is in it, delete the topic",
                    topic=name,
                    setting=setting,
                    found=value,
                    needed=needed,
                )
