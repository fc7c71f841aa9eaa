"""The topics of a stream on a Kafka cluster: created, checked.

Rules:

1. A missing topic is created with the time of appending as timestamps, deletion (never compaction), and explicit
   retention, replication and message size, whatever the broker's defaults are.
2. A topic that exists is never changed. Settings that cannot carry the stream are a TopicError.
3. Whoever asks gets an answer within the connect timeout: the topics, or an error that says why not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    ConfigResource,
    NewTopic,
    ResourceType,
)

from cardinal.errors import RefusedError, TopicError

from .cluster import Cluster
from .errors import deleted, kafka_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import KafkaSettings

_REPLICATION_MAX: Final = 3
_MIN_MESSAGE_BYTES: Final = 1_000
_SETTLE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is: partitions, the largest message that it takes, and whether its broker stamps the records."""

    name: str
    partitions: int
    max_message_bytes: int
    append_time: bool = True


class TopicAdmin:
    """See the module.

    Arguments:
        settings: what topics are created with.
        cluster: where they are.

    """

    def __init__(self, settings: KafkaSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster

    def ensure(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Create what is missing, check what is there.

        Raises:
            TopicError: a topic cannot be created, or cannot carry the stream.
            UnreachableError, RefusedError: the broker is away or says no.

        """
        metadata = self._cluster.metadata()
        missing = [name for name in names if name not in metadata.topics]
        if missing:
            self._create(missing, brokers=len(metadata.brokers))
        counts = self._wait_until_there(names)
        return {name: self._usable(name, counts[name]) for name in names}

    def ensure_channel(self, name: str) -> TopicInfo:
        """A topic with one partition for a reorg channel: created, or checked where it is there.

        Raises:
            TopicError: it cannot be created, has several partitions, or cannot carry the stream.
            UnreachableError, RefusedError: the broker is away or says no.

        """
        metadata = self._cluster.metadata()
        if name not in metadata.topics:
            self._create([name], brokers=len(metadata.brokers), partitions=1)
        count = self._wait_until_there([name])[name]
        if count != 1:
            raise TopicError(
                f"the reorg channel {name} has {count} partitions, and its order needs exactly one: delete the topic",
                topic=name,
            )
        return self._usable(name, 1)

    def retention_ms(self, names: Sequence[str]) -> dict[str, int]:
        """How long these topics retain records, -1 for ever; those whose settings may not be read are left out."""
        found = {name: self._config(name).get("retention.ms") for name in names}
        return {name: int(value) for name, value in found.items() if value}

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics, and wait until no broker lists them.

        Raises:
            TopicError: a topic cannot be deleted.
            UnreachableError, RefusedError: the broker is away or says no.

        """
        if not names:
            return
        answers = self._cluster.client.delete_topics(list(names), request_timeout=self._settings.connect_timeout)
        for name, answer in answers.items():
            try:
                answer.result(self._settings.connect_timeout)
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                if inner.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):  # noqa: SLF001 - public code
                    raise self._cluster.reasons.map(inner, f"while deleting the topic {name}") from None
                raise TopicError(f"the topic {name} cannot be deleted: {inner.str()}", topic=name) from None
        deadline = time.monotonic() + self._settings.connect_timeout
        while not self._cluster.names().isdisjoint(names) and time.monotonic() < deadline:
            time.sleep(_SETTLE_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------

    def _create(self, names: Sequence[str], *, brokers: int, partitions: int | None = None) -> None:
        settings = self._settings
        config = {
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": "delete",
            "retention.ms": str(settings.retention_ms),
            "retention.bytes": "-1",
            "max.message.bytes": str(settings.max_message_bytes),
        }
        new = [
            NewTopic(
                name,
                partitions or settings.partitions or 2 * brokers,
                settings.replication or min(brokers, _REPLICATION_MAX),
                config=config,
            )
            for name in names
        ]
        answers = self._cluster.client.create_topics(new, request_timeout=settings.connect_timeout)
        for name, answer in answers.items():
            try:
                answer.result(settings.connect_timeout)
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue  # another producer of the stream started at the same moment
                if inner.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):  # noqa: SLF001 - public code
                    raise self._cluster.reasons.map(inner, f"while creating the topic {name}") from None
                raise TopicError(f"the topic {name} cannot be created: {inner.str()}", topic=name) from None

    def _wait_until_there(self, names: Sequence[str]) -> dict[str, int]:
        """Right after its creation a topic may show no partitions: ask until it does."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while True:
            counts = self._cluster.partition_counts(names)
            absent = [name for name in names if name not in counts]
            if not absent:
                return counts
            if time.monotonic() > deadline:
                raise TopicError(
                    f"the topic {absent[0]} has no partitions that can be used; look at the brokers", topic=absent[0]
                )
            time.sleep(_SETTLE_SECONDS)

    def _usable(self, name: str, partitions: int) -> TopicInfo:
        """The topic as it is, if it can carry the stream."""
        config = self._config(name)
        if "compact" in (config.get("cleanup.policy") or ""):
            raise TopicError(
                f"the topic {name} is compacted, which would remove messages of a block: set cleanup.policy=delete",
                topic=name,
            )
        replicas = self._replicas(name)
        needed = int(config.get("min.insync.replicas") or 1)
        if needed > replicas:
            raise TopicError(
                f"the topic {name} acknowledges nothing: min.insync.replicas is {needed} and it has {replicas} "
                "replicas; lower the one or add the other",
                topic=name,
            )
        limit = int(config.get("max.message.bytes") or self._settings.max_message_bytes)
        if limit < _MIN_MESSAGE_BYTES:
            raise TopicError(
                f"the topic {name} takes messages of {limit} bytes only: raise its max.message.bytes", topic=name
            )
        append_time = config.get("message.timestamp.type") != "CreateTime"
        return TopicInfo(name, partitions, limit, append_time)

    def _replicas(self, name: str) -> int:
        """How many each partition has at least. Of several brokers one may not know yet what another has told."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while (found := self._cluster.metadata().topics.get(name)) is None or not found.partitions:
            if time.monotonic() > deadline:
                raise deleted(name, self._settings.address)
            time.sleep(_SETTLE_SECONDS)
        return min(len(one.replicas) for one in found.partitions.values())

    def _config(self, name: str) -> dict[str, str | None]:
        def ask() -> dict[str, str | None]:
            resource = ConfigResource(ResourceType.TOPIC, name)
            answers = self._cluster.client.describe_configs([resource], request_timeout=self._settings.connect_timeout)
            entries = answers[resource].result(self._settings.connect_timeout)
            return {entry.name: entry.value for entry in entries.values()}

        try:
            return self._cluster.patiently(ask, f"while reading the settings of {name}")
        except RefusedError:
            return {}  # the permission to write to a topic does not include the one to read its settings
