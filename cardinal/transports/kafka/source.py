"""Source on Kafka.

Rules:

1. Partitions are assigned, never subscribed: positions come from a cursor, not from a group.
2. Committed records only. Positions move past control records and gaps, because the end of a partition is reported
   with the next offset (``enable.partition.eof``).
3. Expired offsets are an error that names them, never skipped silently.
4. With ``group.id``, the client commits positions every few seconds and when it is closed, so that common tools show
   the lag; they are never read, and no call waits for long for an unreachable broker.
5. The client reconnects to an unreachable broker; a refusal is an error.
6. A client that no longer fetches a partition is replaced by a new one (:mod:`.watchdog`).
7. Partitions are only ever added. A topic that two queries in a row did not find was deleted.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cardinal._concurrency import run_in_thread
from cardinal.errors import CursorExpiredError, TopicError, UnreachableError
from cardinal.protocols.streams.types import Partition, Record, Row
from cardinal.texts import Count
from cardinal.transports.base import Capabilities, OpenTransaction, Source
from cardinal.transports.expired import check_positions, expired

from .admin import Cluster
from .errors import PendingError, bad_setting, deleted, kafka_error
from .records import Messages
from .watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import Message

    from .settings import KafkaSettings

_log = logging.getLogger("cardinal.transports")

_REMEDY: Final = ", or raise retention.ms"
_UNCLEAN: Final = (
    "its topic was recreated, or a broker that lacked records was elected to lead it (unclean.leader.election.enable); "
    "start from an older cursor, or from the earliest record"
)
_BATCH_MAX: Final = 10_000
_YEAR_10000_MS: Final = 253_402_300_800_000
_STORE_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 2.0
_TOPICS_SECONDS: Final = 0.1
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 - public codes with private names
_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - the same
_record: Final = partial(tuple.__new__, Record)  # NamedTuple's own constructor takes twice as long


class KafkaSource(Source):
    """Source on Kafka.

    Arguments:
        settings: options of the URL.
        topics: the topics to read.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        TopicError: a topic does not exist.
        UnreachableError, RefusedError: the broker is unreachable or refuses.

    """

    def __init__(self, settings: KafkaSettings, topics: Sequence[str], *, wait: float = 0.0) -> None:
        self._settings = settings
        self._place = f"on Kafka at {settings.address}"
        self._grouped = "group.id" in settings.properties
        self._cluster = Cluster(settings)
        self._topics = tuple(topics)
        self._absent: frozenset[str] = frozenset()
        self._looking = threading.Lock()
        self._looking_behind = threading.Lock()
        self._times: dict[tuple[Partition, int], int] = {}
        self._partitions = self._find(wait)
        self._reasons = self._cluster.reasons
        self._consumer = self._connect()
        self._watchdog = Watchdog(lambda: self._cluster.ends(self._partitions))
        self.capabilities = Capabilities(log=self._cluster.name)
        self._positions: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()
        self._ends: dict[Partition, int] = {}
        self._ended: list[Partition] = []
        self._prefetched: list[Row] = []
        self._messages = Messages(topics, self._note)
        self._pending = PendingError()
        self._stored_at = 0.0
        self._whole = True
        self._closed = False

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics as they are now, sorted; those seen before where no broker answers.

        Raises:
            TopicError: a topic was deleted. Fetching from it would be retried for ever, in silence.

        """
        with self._looking, contextlib.suppress(UnreachableError):
            counts = self._cluster.partition_counts(self._topics)
            absent = frozenset(self._topics).difference(counts)
            if absent:  # deleted, or temporarily without leaders
                absent -= self._cluster.names()
            if gone := sorted(absent & self._absent):
                raise deleted(gone[0], self._settings.address)
            self._absent = absent
            existing = {(topic, number) for topic, count in counts.items() for number in range(count)}
            if not existing <= set(self._partitions):
                self._partitions = tuple(sorted(existing.union(self._partitions)))
        return self._partitions

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained and the next readable offset of every seen partition.

        Never cached: a position beyond them proves that every earlier record was read.

        Raises:
            TopicError: a topic was deleted.

        """
        partitions = self._partitions
        starts, ends = self._cluster.starts(partitions), self._cluster.ends(partitions)
        return {tp: (starts[tp], ends[tp]) for tp in partitions}

    def uncommitted_ends(self) -> dict[Partition, int]:
        """The end of every seen partition, open transactions included; raises as :meth:`watermarks`."""
        return self._cluster.ends(self._partitions, committed=False)

    def open_transactions(self) -> list[OpenTransaction]:
        """The oldest open transaction of each partition that has one; raises as :meth:`watermarks`."""
        ends = self.uncommitted_ends()  # first: records that are committed meanwhile are not behind one
        readable = self._cluster.ends(self._partitions)
        hidden = {tp: readable[tp] for tp, end in ends.items() if end > readable[tp]}
        with self._looking_behind:
            times = self._times_of(hidden)
        return [OpenTransaction(*tp, at, ends[tp] - at, times.get((tp, at))) for tp, at in sorted(hidden.items())]

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        return self._cluster.offsets_for_time(self._partitions, timestamp_ms)

    def at_end(self) -> frozenset[Partition]:
        """The partitions whose end was delivered."""
        ends = self._ends
        return frozenset(tp for tp, at in self._positions.items() if ends.get(tp, -1) >= at)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read from these positions on: see :meth:`cardinal.transports.base.Source.assign`."""
        if not positions.keys() <= set(self._partitions):
            self.partitions()  # another reader may have seen what was added since
        self._check(positions)
        self.pause(())  # librdkafka keeps what was paused over a new assignment
        self._watchdog.forget(self._positions)
        self._positions = dict(positions)
        self._ends.clear()
        self._prefetched.clear()
        self._pending.forget()
        self._assign()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call."""
        wanted = frozenset(partitions) & self._positions.keys()
        if resumed := self._paused - wanted:
            self._consumer.resume([TopicPartition(topic, number) for topic, number in resumed])
        if paused := wanted - self._paused:
            self._consumer.pause([TopicPartition(topic, number) for topic, number in paused])
            self._watchdog.forget(paused)
        self._paused = wanted

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """Records: see :meth:`cardinal.transports.base.Source.poll`. An error comes after the records before it."""
        return list(map(_record, self._poll(limit, timeout, whole=True)))

    def poll_rows(self, limit: int, timeout: float) -> list[Row]:
        """Plain rows, faster than :meth:`poll`: see :meth:`cardinal.transports.base.Source.poll_rows`."""
        return self._poll(limit, timeout, whole=False)

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        return dict(self._positions)

    def close(self) -> None:
        """Release the connection. May be called twice."""
        if not self._closed:
            self._closed = True
            self._store(0.0)
            with contextlib.suppress(TimeoutError):
                _close_later(self._consumer).result(_LAST_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------

    def _poll(self, limit: int, timeout: float, *, whole: bool) -> list[Row]:
        if self._pending.retry_due(time.monotonic()):
            self._pending.forget()
            self._read_again()
        self._pending.throw(time.monotonic())
        self._store(_STORE_SECONDS)
        self._whole = whole
        rows = self._release(limit)
        if not rows:
            rows = self._receive(limit, 0.0) or (self._wait(limit, timeout) if timeout > 0 else [])
            now = time.monotonic()
            if stalled := self._watchdog.check(now, self._positions, self._paused, drained=len(rows) < limit):
                self._reconnect(stalled)
        if not rows:
            self._pending.throw(time.monotonic())
        return rows

    def _connect(self) -> Consumer:
        try:
            commits = {"enable.auto.commit": "true" if self._grouped else "false"}
            return Consumer({**self._settings.consumer(), **commits, "error_cb": self._reasons})
        except KafkaException as error:
            raise bad_setting(error) from None

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in self._positions.items()])

    def _reconnect(self, stalled: Sequence[Partition]) -> None:
        """Resume with another client."""
        (topic, number), *more = stalled
        others = f" and {Count(len(more), 'more partition')}" if more else ""
        _log.warning("the Kafka client no longer fetches %s:%d%s: a new one resumes", topic, number, others)
        old, self._consumer = self._consumer, self._connect()
        _close_later(old)
        self._read_again()

    def _read_again(self) -> None:
        """Reassign our positions: the client refetches records beyond them."""
        self._watchdog.forget(self._positions)
        self._ends.clear()
        self._prefetched.clear()
        paused, self._paused = self._paused, frozenset()
        self._assign()
        self.pause(paused)

    def _store(self, interval: float) -> None:
        """Give the client the positions to commit for the group; for operators' tools only: a failure is no error."""
        now = time.monotonic()
        if self._grouped and self._positions and now - self._stored_at >= interval:
            self._stored_at = now
            offsets = [TopicPartition(topic, number, at) for (topic, number), at in self._positions.items()]
            with contextlib.suppress(KafkaException):
                self._consumer.store_offsets(offsets=offsets)

    def _wait(self, limit: int, timeout: float) -> list[Row]:
        """Wait for one message, then return all that have arrived.

        ``consume(n, timeout)`` would wait for all n or for the whole timeout.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            rows = self._receive(1, max(left, 0.0))
            if rows and limit > 1:
                rows += self._receive(limit - 1, 0.0)
            # An end of partition wakes the poll as well and is no record: wait for the rest of the time.
            if rows or left <= 0 or self._pending:
                return rows
            if refusal := self._reasons.refusal():
                raise refusal

    def _receive(self, limit: int, timeout: float) -> list[Row]:
        try:
            messages = self._consumer.consume(min(limit, _BATCH_MAX), timeout)
        except KafkaException as error:
            raise self._reasons.map(kafka_error(error), "while reading") from None
        rows, next_offsets = self._messages.rows(messages, whole=self._whole)
        if next_offsets or self._ended:
            self._reasons.forget()
        if self._paused and not self._paused.isdisjoint(next_offsets):
            self._prefetched += [row for row in rows if row[:2] in self._paused]
            rows = [row for row in rows if row[:2] not in self._paused]
            next_offsets = {tp: at for tp, at in next_offsets.items() if tp not in self._paused}
        self._read_up_to(next_offsets)
        self._ended.clear()
        return rows

    def _release(self, limit: int) -> list[Row]:
        """Rows of resumed partitions, fetched when these were paused."""
        if not self._prefetched:
            return []
        held, self._prefetched = self._prefetched, []
        rows: list[Row] = []
        for row in held:
            wanted = len(rows) < limit and row[:2] not in self._paused
            (rows if wanted else self._prefetched).append(row)
        self._read_up_to({row[:2]: row[2] + 1 for row in rows})
        return rows

    def _read_up_to(self, next_offsets: Mapping[Partition, int]) -> None:
        """Move positions past the delivered records, and past control records at the end."""
        for tp, at in next_offsets.items():
            self._positions[tp] = max(at, self._positions.get(tp, 0))
        for tp in (*next_offsets, *self._ended):
            end = self._ends.get(tp, -1)
            if end > self._positions.get(tp, end) and not any(row[:2] == tp for row in self._prefetched):
                self._positions[tp] = end

    def _note(self, error: KafkaError, message: Message) -> None:
        code, topic, partition = error.code(), message.topic() or "", message.partition() or 0
        tp = (topic, partition)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public code with a private name
            self._ends[tp] = message.offset() or 0
            self._ended.append(tp)
        elif code in _LOST:
            self._pending.keep(lambda: self._out_of_range(tp))
        elif code in _GONE:
            self._pending.keep(lambda: deleted(topic, self._settings.address))
        elif code == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._grouped:
            pass  # librdkafka looks for the group's coordinator, which this source does not need
        elif not error.retriable() and code not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001 - the same
            mapped = self._reasons.map(error, f"while reading {topic}".strip())
            self._pending.keep(lambda: mapped)

    def _times_of(self, offsets: Mapping[Partition, int]) -> Mapping[tuple[Partition, int], int]:
        """Times of these uncommitted records, milliseconds since 1970; without those that do not arrive.

        The last readable offset is that of the oldest open transaction's first record: Kafka's client has no query for
        transactions.
        """
        wanted = set(offsets.items())
        self._times = {key: at for key, at in self._times.items() if key in wanted}
        left = {tp: at for tp, at in offsets.items() if (tp, at) not in self._times}
        if not left:
            return self._times
        others = {"isolation.level": "read_uncommitted", "enable.auto.commit": "false", "error_cb": self._reasons}
        client = Consumer({**self._settings.consumer(), **others})
        try:
            client.assign([TopicPartition(topic, number, at) for (topic, number), at in left.items()])
            deadline = time.monotonic() + _LAST_SECONDS
            while left and time.monotonic() < deadline:
                message = client.poll(deadline - time.monotonic())
                if message is None or message.error() is not None:
                    continue
                tp = (message.topic() or "", message.partition() or 0)
                if left.get(tp) == message.offset():
                    at = left.pop(tp)
                    if (
                        0 < (written := message.timestamp()[1]) < _YEAR_10000_MS
                    ):  # a program's own clock may say anything
                        self._times[tp, at] = written
                client.incremental_unassign([TopicPartition(*tp)])
        except KafkaException as error:
            _log.debug("the first record of an open transaction cannot be read: %s", error)
        finally:
            _close_later(client)
        return self._times

    def _check(self, positions: Mapping[Partition, int]) -> None:
        """Refuse positions that cannot be read from; raises as :meth:`assign`."""
        watermarks = self.watermarks()
        beyond = [tp for tp, at in positions.items() if tp in watermarks and at > watermarks[tp][1]]
        for tp, end in (self._cluster.ends(beyond, committed=False) if beyond else {}).items():
            if positions[tp] <= end:
                watermarks[tp] = (watermarks[tp][0], positions[tp])
        cause = "the topic was recreated; restart without a cursor"
        check_positions(positions, watermarks, self._place, remedy=_REMEDY, cause=cause)

    def _out_of_range(self, tp: Partition) -> CursorExpiredError:
        """The error for a partition whose broker has nothing at our position.

        Raises:
            UnreachableError: the broker is unreachable.

        """
        at = self._positions.get(tp, 0)
        low = self._cluster.starts([tp])[tp]
        limit = low if at < low else min(at, self._cluster.ends([tp], committed=False)[tp])
        return expired({tp: (at, limit)}, self._place, remedy=_REMEDY, cause=_UNCLEAN)

    def _find(self, wait: float) -> tuple[Partition, ...]:
        deadline = time.monotonic() + wait
        while True:
            counts = self._cluster.partition_counts(self._topics)
            absent = [topic for topic in self._topics if topic not in counts]
            if not absent:
                return tuple(sorted((topic, number) for topic in self._topics for number in range(counts[topic])))
            if time.monotonic() >= deadline:
                raise TopicError(
                    f"the topic {absent[0]} does not exist {self._place}: "
                    "start a producer first, or check application and chain id",
                    topic=absent[0],
                )
            time.sleep(_TOPICS_SECONDS)


def _close_later(client: Consumer) -> Future[None]:
    """Close a client on another thread: it may wait for an unreachable broker."""
    return run_in_thread(client.close, "cardinal-kafka-closing")
