"""Queries to a Kafka cluster, and the topics of a stream on it: created, checked.

Rules:

1. Every query is answered within the connect timeout, or fails with its reason; on any thread.
2. A query waits for leaders that are not known yet: after a topic's creation or a broker's restart. A topic that
   brokers do not list for a second was deleted: that fails immediately.
3. A refusal fails immediately; a broker that never answered is probed, as it may speak another protocol.
4. A missing topic is created with append time, deletion (never compaction), and explicit retention, replication and
   message size, independent of the broker's defaults. An existing topic is never changed; settings that cannot carry
   the stream are a TopicError.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from cardinal.errors import RefusedError, TopicError

from .errors import FORBIDDEN, Reasons, bad_setting, deleted, kafka_error
from .probe import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition

    from .settings import KafkaSettings

_Answer = TypeVar("_Answer")

_SLICE: Final = 2.0
_SETTLE_SECONDS: Final = 0.02
REPLICATION_MAX: Final = 3
"""Replicas of a new topic where there are as many brokers."""

_MIN_MESSAGE_BYTES: Final = 1_000
_GONE_SECONDS: Final = 1.0
"""Time that brokers do not list a topic until it counts as deleted: one may lag behind the others."""
_SETTLING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._TRANSPORT,  # noqa: SLF001 - public code with a private name
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - public code with a private name
        KafkaError._NOENT,  # noqa: SLF001 - "no leaders found"
        KafkaError._TIMED_OUT,  # noqa: SLF001 - public code with a private name
        KafkaError._IN_PROGRESS,  # noqa: SLF001 - the client still looks for leaders, as where a topic is deleted
    }
)
_NO_RECORD: Final = -1
"""The answer for a partition without a record that is new enough."""
_SILENT: Final = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT})  # noqa: SLF001 - public codes with private names


class Cluster:
    """Queries to a cluster.

    Arguments:
        settings: options of the URL.

    Attributes:
        reasons: the brokers' refusals.
        client: sends the queries.
        name: the cluster's own id, once it has answered.

    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.reasons = Reasons(settings.address, partial(reason, settings.properties))
        self._answered = False
        self.name = ""
        # A reference to the client: a temporary one would be collected in the middle of a call.
        try:
            config: dict[str, Any] = {**settings.client(), "error_cb": self.reasons}
            self.client = AdminClient(config)
        except KafkaException as error:
            raise bad_setting(error) from None

    def names(self) -> frozenset[str]:
        """The names of all topics, Kafka's own left out."""
        return frozenset(name for name in self.metadata().topics if not name.startswith("__"))

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """The number of partitions of every one of these topics that exists and has leaders."""
        names = tuple(names)
        topics = self.metadata().topics
        self._refuse_hidden([name for name in names if name not in topics])
        return {
            name: len(topics[name].partitions)
            for name in names
            if name in topics and topics[name].error is None and topics[name].partitions
        }

    def ends(self, partitions: Sequence[Partition], *, committed: bool = True) -> dict[Partition, int]:
        """The offset after the last record of each partition; ``committed``: the last readable one."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), isolation_level=level)  # type: ignore[no-untyped-call] # their code

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The lowest retained offset of each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call] # their code

    def offsets_for_time(self, partitions: Sequence[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of each partition whose record is not older; the end where there is none."""
        ends = self.ends(partitions)  # first: a record written between the two queries may match
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        level = IsolationLevel.READ_COMMITTED
        offsets = self._offsets(partitions, spec, lowest=_NO_RECORD, isolation_level=level)
        return {tp: offset if offset > _NO_RECORD else ends[tp] for tp, offset in offsets.items()}

    def metadata(self, topic: str | None = None) -> Any:  # noqa: ANN401 - confluent-kafka's ClusterMetadata
        """Current metadata of the cluster, or of one topic; queried in slices, so that a refusal fails immediately."""
        deadline = time.monotonic() + self._settings.connect_timeout
        for patience in itertools.chain((_SLICE / 4, _SLICE / 2), itertools.repeat(_SLICE)):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                metadata = self.client.list_topics(topic, timeout=min(patience, left))
            except KafkaException as error:
                inner = kafka_error(error)
                self.client.poll(0)
                if refusal := self.reasons.refusal():
                    raise refusal from None
                if not self._answered and inner.code() in _SILENT and (suspicion := self.reasons.suspicion()):
                    raise suspicion from None
                if not inner.retriable() and inner.code() not in _SILENT:
                    raise self.reasons.map(inner, "while listing its topics") from None
            else:
                self._answered = True  # a failure from now on is an outage
                self.name = metadata.cluster_id or ""
                self.reasons.forget()
                return metadata
        raise self.reasons.unreachable(self._settings.connect_timeout)

    def answer(self, future: Future[_Answer]) -> _Answer:
        """The broker's response to a request. UnreachableError: none."""
        try:
            return future.result(self._settings.connect_timeout)
        except TimeoutError:
            raise self.reasons.unreachable(self._settings.connect_timeout) from None

    def patiently(self, query: Callable[[], _Answer], doing: str, needed: Iterable[str] = ()) -> _Answer:
        """Retry a query until the broker knows its partitions' leaders.

        Raises:
            TopicError: one of the topics that are ``needed`` was deleted.
            UnreachableError, RefusedError, TransportError: the broker is unreachable, refuses, or failed.

        """
        deadline = time.monotonic() + self._settings.connect_timeout
        absent_since: float | None = None
        while True:
            try:
                answer = query()
            except KafkaException as error:
                inner = kafka_error(error)
                self.client.poll(0)
                if inner.code() not in _SETTLING:
                    raise self.reasons.map(inner, doing) from None
                now = time.monotonic()
                if now > deadline:
                    raise self.reasons.unreachable(self._settings.connect_timeout) from None
                time.sleep(_SETTLE_SECONDS)
                if (topics := self._refresh()) is None:
                    continue
                absent = [topic for topic in needed if topic not in topics]
                absent_since = (now if absent_since is None else absent_since) if absent else None
                if absent_since is not None and now - absent_since >= _GONE_SECONDS:
                    raise deleted(min(absent), self._settings.address) from None
            except TimeoutError:
                raise self.reasons.unreachable(self._settings.connect_timeout) from None
            else:
                self.reasons.forget()
                return answer

    # --- inside --------------------------------------------------------------------------------------------

    def _refuse_hidden(self, absent: Sequence[str]) -> None:
        """RefusedError for a topic that we are not permitted to describe: Kafka reports that only by name."""
        for name in absent[:1]:  # a reader that waits for topics repeats the query, for the next one
            topic = self.metadata(name).topics.get(name)
            if topic is not None and topic.error is not None and topic.error.code() in FORBIDDEN:
                raise self.reasons.map(topic.error, f"while looking for the topic {name}")

    def _offsets(
        self,
        partitions: Sequence[Partition],
        spec: Any,  # noqa: ANN401 - an OffsetSpec
        *,
        lowest: int = 0,
        **options: Any,  # noqa: ANN401 - passed through
    ) -> dict[Partition, int]:
        if not partitions:
            return {}
        wanted = {TopicPartition(topic, number): spec for topic, number in partitions}
        timeout = self._settings.connect_timeout

        def query() -> dict[Partition, int]:
            answers = self.client.list_offsets(wanted, request_timeout=timeout, **options)
            offsets = {(tp.topic, tp.partition): self.answer(answer).offset for tp, answer in answers.items()}
            if min(offsets.values()) < lowest:
                # For a broker that dies during the query the client returns no error, but -1001 as the offset.
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - public code with a private name
            return offsets

        return self.patiently(query, "while querying offsets", {topic for topic, _ in partitions})

    def _refresh(self) -> Collection[str] | None:
        """Refresh the leaders: after a broker's restart the client queries with the old epoch until then.

        Returns:
            The names of all topics; None where no broker answers.

        """
        try:
            return self.client.list_topics(timeout=_SLICE / 2).topics.keys()
        except KafkaException:
            return None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: partitions, the largest message that it allows, and whether its broker stamps the records."""

    name: str
    partitions: int
    max_message_bytes: int
    append_time: bool = True


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is: partitions, replicas that each of them has at least, and all settings."""

    partitions: int
    replicas: int
    config: Mapping[str, str | None]


class TopicAdmin:
    """Topics of a stream.

    Arguments:
        settings: settings for created topics.
        cluster: the cluster.

    """

    def __init__(self, settings: KafkaSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster

    def ensure(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Create missing topics and check existing ones.

        Raises:
            TopicError: a topic cannot be created, or cannot carry the stream.
            UnreachableError, RefusedError: the broker is unreachable or says no.

        """
        metadata = self._cluster.metadata()
        missing = [name for name in names if name not in metadata.topics]
        if missing:
            self._create(missing, brokers=len(metadata.brokers))
        counts = self._wait_for(names)
        return {name: self._usable(name, counts[name]) for name in names}

    def ensure_channel(self, name: str) -> TopicInfo:
        """A topic with one partition for a reorg channel: created, or checked where it exists.

        Raises:
            TopicError: it cannot be created, has several partitions, or cannot carry the stream.
            UnreachableError, RefusedError: the broker is unreachable or says no.

        """
        metadata = self._cluster.metadata()
        if name not in metadata.topics:
            self._create([name], brokers=len(metadata.brokers), partitions=1)
        count = self._wait_for([name])[name]
        if count != 1:
            raise TopicError(
                f"the reorg channel {name} has {count} partitions, and its order needs exactly one: delete the topic",
                topic=name,
            )
        return self._usable(name, 1)

    def create(self, name: str, config: Mapping[str, str], *, replication: int) -> TopicState:
        """Create a topic with one partition and these settings besides our own, unless it exists; as it is then.

        Raises:
            TopicError: it cannot be created.
            UnreachableError, RefusedError: the broker is unreachable or says no.

        """
        self._submit([NewTopic(name, 1, replication, config={**self._settings_of_new(), **config})])
        return self._state(name)

    def state(self, name: str) -> TopicState | None:
        """A topic as it is; None where there is none, which takes a moment: one broker may not know of it yet.

        Raises:
            UnreachableError, RefusedError: the broker is unreachable, or does not permit to read the topic's settings.

        """
        deadline = time.monotonic() + _GONE_SECONDS
        while name not in self._cluster.metadata().topics:
            if time.monotonic() > deadline:
                return None
            time.sleep(_SETTLE_SECONDS)
        return self._state(name)

    def retention_ms(self, names: Sequence[str]) -> dict[str, int]:
        """Retention of these topics, -1 for ever, without those whose settings may not be read."""
        found: dict[str, int] = {}
        for name, config in ((name, self._config(name)) for name in names):
            if value := config.get("retention.ms"):
                # What is compacted alone does not expire: retention.ms counts for cleanup.policy=delete.
                found[name] = int(value) if "delete" in (config.get("cleanup.policy") or "delete") else -1
        return found

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics, and wait until no broker lists them.

        Raises:
            TopicError: a topic cannot be deleted.
            UnreachableError, RefusedError: the broker is unreachable or says no.

        """
        if not names:
            return
        answers = self._cluster.client.delete_topics(list(names), request_timeout=self._settings.connect_timeout)
        self._wait_for_answers(answers, "deleting", "deleted", KafkaError.UNKNOWN_TOPIC_OR_PART)
        deadline = time.monotonic() + self._settings.connect_timeout
        while not self._cluster.names().isdisjoint(names) and time.monotonic() < deadline:
            time.sleep(_SETTLE_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------

    def _create(self, names: Sequence[str], *, brokers: int, partitions: int | None = None) -> None:
        partitions = partitions or self._settings.partitions or 2 * brokers
        replication = self._settings.replication or min(brokers, REPLICATION_MAX)
        config = self._settings_of_new()
        self._submit([NewTopic(name, partitions, replication, config=config) for name in names])

    def _settings_of_new(self) -> dict[str, str]:
        return {
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": "delete",
            "retention.ms": str(self._settings.retention_ms),
            "retention.bytes": "-1",
            "max.message.bytes": str(self._settings.max_message_bytes),
        }

    def _submit(self, new: list[NewTopic]) -> None:
        answers = self._cluster.client.create_topics(new, request_timeout=self._settings.connect_timeout)
        self._wait_for_answers(answers, "creating", "created", KafkaError.TOPIC_ALREADY_EXISTS)

    def _wait_for_answers(self, answers: Mapping[str, Future[None]], doing: str, done: str, code: int) -> None:
        """Wait for every topic's answer; ``code``: of a topic where another client was quicker."""
        for name, answer in answers.items():
            try:
                self._cluster.answer(answer)
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.code() == code:
                    continue
                if inner.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):  # noqa: SLF001 - public code
                    raise self._cluster.reasons.map(inner, f"while {doing} the topic {name}") from None
                raise TopicError(f"the topic {name} cannot be {done}: {inner.str()}", topic=name) from None

    def _wait_for(self, names: Sequence[str]) -> dict[str, int]:
        """Wait for the partitions of topics: right after its creation a topic may have none."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while True:
            counts = self._cluster.partition_counts(names)
            absent = [name for name in names if name not in counts]
            if not absent:
                return counts
            if time.monotonic() > deadline:
                raise TopicError(
                    f"the topic {absent[0]} has no partition with a leader; check the brokers", topic=absent[0]
                )
            time.sleep(_SETTLE_SECONDS)

    def _usable(self, name: str, partitions: int) -> TopicInfo:
        """The topic, if it can carry the stream."""
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
                f"the topic {name} allows messages of {limit} bytes only: raise its max.message.bytes", topic=name
            )
        append_time = config.get("message.timestamp.type") != "CreateTime"
        return TopicInfo(name, partitions, limit, append_time)

    def _state(self, name: str) -> TopicState:
        return TopicState(self._wait_for([name])[name], self._replicas(name), self._described(name))

    def _replicas(self, name: str) -> int:
        """The lowest number of replicas of a partition; one of several brokers may not know the topic yet."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while (found := self._cluster.metadata().topics.get(name)) is None or not found.partitions:
            if time.monotonic() > deadline:
                raise deleted(name, self._settings.address)
            time.sleep(_SETTLE_SECONDS)
        return min(len(one.replicas) for one in found.partitions.values())

    def _config(self, name: str) -> dict[str, str | None]:
        try:
            return self._described(name)
        except RefusedError:
            return {}  # the permission to write to a topic does not include the one to read its settings

    def _described(self, name: str) -> dict[str, str | None]:
        def query() -> dict[str, str | None]:
            resource = ConfigResource(ResourceType.TOPIC, name)
            answers = self._cluster.client.describe_configs([resource], request_timeout=self._settings.connect_timeout)
            entries = self._cluster.answer(answers[resource])
            return {entry.name: entry.value for entry in entries.values()}

        return self._cluster.patiently(query, f"while reading the settings of {name}")
