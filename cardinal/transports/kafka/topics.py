"""The topics of a stream on a Kafka cluster: seen, created, checked.

Rules:

1. A missing topic is created with the time of appending as timestamps, deletion (never compaction), and explicit
   retention, replication and message size, whatever the broker's defaults are.
2. A topic that exists is never changed. Settings that cannot carry the stream are a TopicError.
3. Whoever asks gets an answer within the connect timeout: the topics, or an error that says why not.
"""

from __future__ import annotations

import contextlib
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

from .errors import FORBIDDEN, Reasons, bad_setting, kafka_error
from .login import Login
from .probe import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cardinal.protocols.streams.types import Partition

    from .settings import KafkaSettings

_Answer = TypeVar("_Answer")

_SLICE: Final = 2.0
_REPLICATION_MAX: Final = 3
_MIN_MESSAGE_BYTES: Final = 1_000
_SETTLE_SECONDS: Final = 0.02
# What a broker says of a partition whose leader it does not know yet: right after a topic's creation, after a restart
_SETTLING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._TRANSPORT,  # noqa: SLF001 - public code with a private name
        KafkaError._NOENT,  # noqa: SLF001 - "no leaders found"
        KafkaError._TIMED_OUT,  # noqa: SLF001 - public code with a private name
        KafkaError._IN_PROGRESS,  # noqa: SLF001 - the client still looks for leaders, as where a topic is deleted
    }
)
_SILENT: Final = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT})  # noqa: SLF001 - public codes with private names


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is: partitions, the largest message that it takes, and whether its broker stamps the records."""

    name: str
    partitions: int
    max_message_bytes: int
    append_time: bool = True


class TopicAdmin:
    """Questions and orders about topics, each answered within ``settings.connect_timeout`` seconds."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        login = Login(settings, lambda now: TopicAdmin(now).names()) if settings.login_may_change else None
        self.reasons = Reasons(settings.address, partial(reason, settings.properties), login)
        self._answered = False
        # The client is kept: a temporary one would be collected in the middle of a call.
        try:
            config: dict[str, Any] = {**settings.client(), "error_cb": self.reasons}
            self._client = AdminClient(config)
        except KafkaException as error:
            raise bad_setting(error) from None
        if login is not None:
            login.serves(self, "_client")

    def names(self) -> frozenset[str]:
        """The names of all topics, Kafka's own left out."""
        return frozenset(name for name in self._metadata().topics if not name.startswith("__"))

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """The number of partitions of every one of these topics that exists and has leaders."""
        names = tuple(names)
        topics = self._metadata().topics
        self._refuse_hidden([name for name in names if name not in topics])
        return {
            name: len(topics[name].partitions)
            for name in names
            if name in topics and topics[name].error is None and topics[name].partitions
        }

    def ensure(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Create what is missing, check what is there.

        Raises:
            TopicError: a topic cannot be created, or cannot carry the stream.
            UnreachableError, RefusedError: the broker is away or says no.

        """
        metadata = self._metadata()
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
        metadata = self._metadata()
        if name not in metadata.topics:
            self._create([name], brokers=len(metadata.brokers), partitions=1)
        count = self._wait_until_there([name])[name]
        if count != 1:
            raise TopicError(
                f"the reorg channel {name} has {count} partitions, and its order needs exactly one: delete the topic",
                topic=name,
            )
        return self._usable(name, 1)

    def ends(self, partitions: Sequence[Partition], *, committed: bool = True) -> dict[Partition, int]:
        """The offset after the last record of each partition: the last readable one, or the last one at all."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), isolation_level=level)  # type: ignore[no-untyped-call] # their code

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The lowest retained offset of each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call] # their code

    # --- inside --------------------------------------------------------------------------------------------

    def _metadata(self, topic: str | None = None) -> Any:  # noqa: ANN401 - confluent-kafka's ClusterMetadata
        """The cluster, or one topic of it, as it is now; asked in slices, so that a refusal is told at once."""
        deadline = time.monotonic() + self._settings.connect_timeout
        for patience in itertools.chain((_SLICE / 4, _SLICE / 2), itertools.repeat(_SLICE)):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                metadata = self._client.list_topics(topic, timeout=min(patience, left))
            except KafkaException as error:
                inner = kafka_error(error)
                self._client.poll(0)
                if refusal := self.reasons.refusal():
                    raise refusal from None
                if not self._answered and inner.code() in _SILENT and (suspicion := self.reasons.suspicion()):
                    raise suspicion from None
                if not inner.retriable() and inner.code() not in _SILENT:
                    raise self.reasons.map(inner, "while asking for its topics") from None
            else:
                self._answered = True  # from now on it can only be away
                return metadata
        raise self.reasons.unreachable(self._settings.connect_timeout)

    def _refuse_hidden(self, absent: Sequence[str]) -> None:
        """Of all topics Kafka lists those that we may see; asked for one by its name it says that we may not."""
        for name in absent[:1]:  # whoever waits for topics comes again, and asks for the next
            found = self._metadata(name).topics.get(name)
            if found is not None and found.error is not None and found.error.code() in FORBIDDEN:
                raise self.reasons.map(found.error, f"while looking for the topic {name}")

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
        answers = self._client.create_topics(new, request_timeout=settings.connect_timeout)
        for name, answer in answers.items():
            try:
                answer.result(settings.connect_timeout)
            except KafkaException as error:
                inner = kafka_error(error)
                if inner.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue  # another producer of the stream started at the same moment
                if inner.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):  # noqa: SLF001 - public code
                    raise self.reasons.map(inner, f"while creating the topic {name}") from None
                raise TopicError(f"the topic {name} cannot be created: {inner.str()}", topic=name) from None

    def _wait_until_there(self, names: Sequence[str]) -> dict[str, int]:
        """Right after its creation a topic may show no partitions: ask until it does."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while True:
            counts = self.partition_counts(names)
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
        replicas = min(len(one.replicas) for one in self._metadata().topics[name].partitions.values())
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

    def _config(self, name: str) -> dict[str, str | None]:
        def ask() -> dict[str, str | None]:
            resource = ConfigResource(ResourceType.TOPIC, name)
            answers = self._client.describe_configs([resource], request_timeout=self._settings.connect_timeout)
            entries = answers[resource].result(self._settings.connect_timeout)
            return {entry.name: entry.value for entry in entries.values()}

        try:
            return self._patiently(ask, f"while reading the settings of {name}")
        except RefusedError:
            return {}  # the permission to write to a topic does not include the one to read its settings

    def _offsets(
        self,
        partitions: Sequence[Partition],
        spec: Any,  # noqa: ANN401 - an OffsetSpec
        **options: Any,  # noqa: ANN401 - passed through
    ) -> dict[Partition, int]:
        if not partitions:
            return {}
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}

        def ask() -> dict[Partition, int]:
            answers = self._client.list_offsets(asked, request_timeout=self._settings.connect_timeout, **options)
            offsets = {
                (found.topic, found.partition): answer.result(self._settings.connect_timeout).offset
                for found, answer in answers.items()
            }
            if min(offsets.values()) < 0:
                # Of a broker that dies while it is asked the client gives no error, but -1001 as the offset.
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - public code with a private name
            return offsets

        return self._patiently(ask, "while asking where its partitions end")

    def _patiently(self, ask: Callable[[], _Answer], doing: str) -> _Answer:
        """Ask again while the broker does not know its partitions' leaders yet."""
        deadline = time.monotonic() + self._settings.connect_timeout
        while True:
            try:
                return ask()
            except KafkaException as error:
                inner = kafka_error(error)
                self._client.poll(0)
                if inner.code() not in _SETTLING:
                    raise self.reasons.map(inner, doing) from None
                if time.monotonic() > deadline:
                    raise self.reasons.unreachable(self._settings.connect_timeout) from None
                time.sleep(_SETTLE_SECONDS)
                self._refresh()
            except TimeoutError:
                raise self.reasons.unreachable(self._settings.connect_timeout) from None

    def _refresh(self) -> None:
        """Learn the leaders anew: after a broker's restart the client asks with the old epoch until it is told to."""
        with contextlib.suppress(KafkaException):
            self._client.list_topics(timeout=_SLICE / 2)
