"""Questions to a Kafka cluster, each answered within the connect timeout, or with an error that says why not.

Rules:

1. A leader that is not known yet is waited for: right after a topic's creation, after a broker's restart.
2. A topic that brokers answer without, for a second, was deleted: it is said at once, and not waited for.
3. A refusal is told at once; a broker that never answered may speak another protocol, which is looked into.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    OffsetSpec,
)

from .errors import FORBIDDEN, Reasons, bad_setting, deleted, kafka_error
from .probe import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from cardinal.protocols.streams.types import Partition

    from .settings import KafkaSettings

_Answer = TypeVar("_Answer")

_SLICE: Final = 2.0
_SETTLE_SECONDS: Final = 0.02
_GONE_SECONDS: Final = 1.0
"""So long brokers answer without a topic before it counts as deleted: one of them may learn of it a moment later."""
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


class Cluster:
    """See the module.

    Arguments:
        settings: the URL, sorted.

    Attributes:
        reasons: why the broker refuses.
        client: asks it.
        name: the cluster's own, once it has answered.

    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.reasons = Reasons(settings.address, partial(reason, settings.properties))
        self._answered = False
        self.name = ""
        # The client is kept: a temporary one would be collected in the middle of a call.
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
        """The offset after the last record of each partition: the last readable one, or the last one at all."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.latest(), isolation_level=level)  # type: ignore[no-untyped-call] # their code

    def starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The lowest retained offset of each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call] # their code

    def metadata(self, topic: str | None = None) -> Any:  # noqa: ANN401 - confluent-kafka's ClusterMetadata
        """The cluster, or one topic of it, as it is now; asked in slices, so that a refusal is told at once."""
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
                    raise self.reasons.map(inner, "while asking for its topics") from None
            else:
                self._answered = True  # from now on it can only be away
                self.name = metadata.cluster_id or ""
                self.reasons.forget()
                return metadata
        raise self.reasons.unreachable(self._settings.connect_timeout)

    def patiently(self, ask: Callable[[], _Answer], doing: str, needed: Iterable[str] = ()) -> _Answer:
        """Ask again while the broker does not know its partitions' leaders yet.

        Raises:
            TopicError: one of the topics that are ``needed`` is gone.
            UnreachableError, RefusedError, TransportError: the broker is away, says no, or failed.

        """
        deadline = time.monotonic() + self._settings.connect_timeout
        absent_since: float | None = None
        while True:
            try:
                answer = ask()
            except KafkaException as error:
                inner = kafka_error(error)
                self.client.poll(0)
                if inner.code() not in _SETTLING:
                    raise self.reasons.map(inner, doing) from None
                now = time.monotonic()
                if now > deadline:
                    raise self.reasons.unreachable(self._settings.connect_timeout) from None
                time.sleep(_SETTLE_SECONDS)
                if (there := self._refresh()) is None:
                    continue
                absent = [topic for topic in needed if topic not in there]
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
        """Of all topics Kafka lists those that we may see; asked for one by its name it says that we may not."""
        for name in absent[:1]:  # whoever waits for topics comes again, and asks for the next
            found = self.metadata(name).topics.get(name)
            if found is not None and found.error is not None and found.error.code() in FORBIDDEN:
                raise self.reasons.map(found.error, f"while looking for the topic {name}")

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
            answers = self.client.list_offsets(asked, request_timeout=self._settings.connect_timeout, **options)
            offsets = {
                (found.topic, found.partition): answer.result(self._settings.connect_timeout).offset
                for found, answer in answers.items()
            }
            if min(offsets.values()) < 0:
                # Of a broker that dies while it is asked the client gives no error, but -1001 as the offset.
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - public code with a private name
            return offsets

        return self.patiently(ask, "while asking where its partitions end", {topic for topic, _ in partitions})

    def _refresh(self) -> Collection[str] | None:
        """Learn the leaders anew: after a broker's restart the client asks with the old epoch until it is told to.

        Returns:
            The names of all topics; None where no broker says them.

        """
        try:
            return self.client.list_topics(timeout=_SLICE / 2).topics.keys()
        except KafkaException:
            return None
