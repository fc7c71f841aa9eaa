"""The partitions of a source's topics, as they are on the cluster: found at opening, looked for again while it reads.

Partitions are only ever added. A topic that was not there at two looks in a row was deleted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined] # their stub re-exports without __all__

from cardinal.errors import TopicError, UnreachableError
from cardinal.transports.later import later

from .errors import deleted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition

    from .cluster import Cluster

_TOPICS_SECONDS: Final = 0.1
_NO_RECORD: Final = -1
"""What a broker says where no record is so new."""
_THREAD: Final = "cardinal-kafka-partitions"


class Partitions:
    """See the module. May be asked from several threads.

    Arguments:
        cluster: is asked.
        topics: the topics that are read.
        address: of the cluster, for errors.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        TopicError: a topic does not exist.
        UnreachableError, RefusedError: the broker is away or says no.

    """

    def __init__(self, cluster: Cluster, topics: Sequence[str], address: str, wait: float) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._address = address
        self._absent: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self.known = self._find(wait)
        """Every partition that was ever seen, sorted."""

    def look(self) -> tuple[Partition, ...]:
        """Every partition as they are now; those known before where no broker answers.

        Raises:
            TopicError: a topic was not there at this look and at the one before: it was deleted. Fetching from it would
                be tried for ever, in silence.

        """
        with self._looking, contextlib.suppress(UnreachableError):
            counts = self._cluster.partition_counts(self._topics)
            absent = frozenset(self._topics).difference(counts)
            if absent:  # deleted, or without leaders for the moment
                absent -= self._cluster.names()
            if gone := sorted(absent & self._absent):
                raise deleted(gone[0], self._address)
            self._absent = absent
            now = {(topic, number) for topic, count in counts.items() for number in range(count)}
            if added := now.difference(self.known):
                self.known = tuple(sorted({*self.known, *added}))
        return self.known

    def marks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained and the next readable offset of every known partition, as they are now.

        Raises:
            TopicError: a topic was deleted.

        """
        known = self.known
        starts, ends = self._cluster.starts(known), self._cluster.ends(known)
        return {partition: (starts[partition], ends[partition]) for partition in known}

    def since(self, timestamp_ms: int, timeout: float) -> dict[Partition, int]:
        """The first offset of every known partition whose record is not older; the end where there is none.

        Arguments:
            timestamp_ms: since 1970.
            timeout: seconds for each answer.

        Raises:
            TopicError: a topic was deleted.

        """
        known = self.known
        ends = self._cluster.ends(known)  # first: what is written between the two questions may be as new
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        asked = {TopicPartition(topic, number): spec for topic, number in known}
        committed = IsolationLevel.READ_COMMITTED

        def ask() -> dict[Partition, int]:
            answers = self._cluster.client.list_offsets(asked, request_timeout=timeout, isolation_level=committed)
            offsets = {
                (found.topic, found.partition): answer.result(timeout).offset for found, answer in answers.items()
            }
            if min(offsets.values()) < _NO_RECORD:  # no answer: the broker died while it was asked
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - public code with a private name
            return offsets

        found = self._cluster.patiently(ask, "while looking up a time", self._topics) if asked else {}
        return {where: offset if offset > _NO_RECORD else ends[where] for where, offset in found.items()}

    def look_later(self) -> Future[tuple[Partition, ...]]:
        """:meth:`look` on a thread of its own, for a reader that must not wait for the answer."""
        return later(self.look, _THREAD)

    def marks_later(self, *, look: bool) -> Future[dict[Partition, tuple[int, int]]]:
        """:meth:`marks` on a thread of its own, after a :meth:`look` if that is wanted."""

        def look_and_mark() -> dict[Partition, tuple[int, int]]:
            self.look()
            return self.marks()

        return later(look_and_mark if look else self.marks, _THREAD)

    def ends_later(self) -> Future[Mapping[Partition, int]]:
        """Where every known partition ends, asked for on a thread of its own."""
        return later(lambda: self._cluster.ends(self.known), _THREAD)

    def _find(self, wait: float) -> tuple[Partition, ...]:
        deadline = time.monotonic() + wait
        while True:
            counts = self._cluster.partition_counts(self._topics)
            absent = [topic for topic in self._topics if topic not in counts]
            if not absent:
                return tuple(sorted((topic, number) for topic in self._topics for number in range(counts[topic])))
            if time.monotonic() >= deadline:
                raise TopicError(
                    f"the topic {absent[0]} does not exist on Kafka at {self._address}: "
                    "start a producer first, or check application and chain id",
                    topic=absent[0],
                )
            time.sleep(_TOPICS_SECONDS)
