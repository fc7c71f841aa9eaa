"""Kafka's records to a consumer.

Rules:

1. Partitions are assigned, never subscribed: where to read is the cursor's business, not a group's.
2. Committed records only. A position passes control records and gaps, because the end of a partition is reported
   with the offset that comes next (``enable.partition.eof``).
3. Offsets that retention has removed are reported with what is missing, never skipped in silence; how often something
   is told, and what is asked again: :mod:`.noted`.
4. Where the URL names a group (``group.id``), positions are committed for it every few seconds, so that ordinary
   tools show the lag; nothing is ever read from them. Nobody waits for that where the broker is away.
5. A broker that goes away is waited for; the client reconnects by itself. One that refuses us is an error.
6. A client that stops reading a partition is replaced by a new one (:mod:`.stalled`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cardinal.protocols.streams.types import Partition, Record, Row

from .cluster import Cluster
from .errors import bad_setting, deleted, kafka_error
from .gone import check_positions, refused
from .messages import Messages
from .noted import Noted
from .partitions import Partitions
from .stalled import Stalled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import Message

    from .settings import KafkaSettings

_log = logging.getLogger(__name__)

_BATCH_MAX: Final = 10_000
_COMMIT_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 0.01
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 - public codes with private names
_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - the same
_record: Final = partial(tuple.__new__, Record)  # past NamedTuple's own constructor, which takes twice as long


class KafkaSource:
    """A :class:`~cardinal.transports.base.Source` on Kafka.

    Arguments:
        settings: the URL, sorted.
        topics: the topics to read.
        wait: seconds to wait for topics that do not exist yet.

    """

    def __init__(self, settings: KafkaSettings, topics: Sequence[str], *, wait: float = 0.0) -> None:
        self._settings = settings
        self._cluster = Cluster(settings)
        self._partitions = Partitions(self._cluster, topics, settings.address, wait)
        self._reasons = self._cluster.reasons
        self._consumer = self._connect()
        self._stalled = Stalled(self._partitions.ends_later, settings.answer_seconds)
        self._positions: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()
        self._ends: dict[Partition, int] = {}
        self._ended: list[Partition] = []
        self._held: list[Row] = []
        self._messages = Messages(topics, self._note)
        self._noted = Noted()
        self._grouped = "group.id" in settings.properties
        self._committed = time.monotonic()
        self._answer: dict[Partition, int] = {}
        self._whole = True
        self._closed = False

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics as they are now, sorted; those known before where no broker answers.

        Raises:
            TopicError: a topic is gone, see :meth:`.partitions.Partitions.look`.

        """
        return self._partitions.look()

    @property
    def log_name(self) -> str:
        """The cluster's id: see :class:`cardinal.transports.base.NamedLog`."""
        return self._cluster.name

    def look_later(self) -> Future[tuple[Partition, ...]]:
        """:meth:`partitions` without waiting: see :class:`cardinal.transports.pace.Unasked`."""
        return self._partitions.look_later()

    def watermarks_later(self, *, look: bool) -> Future[dict[Partition, tuple[int, int]]]:
        """:meth:`watermarks` without waiting: see :class:`cardinal.transports.pace.Unasked`."""
        return self._partitions.marks_later(look=look)

    def at_end(self) -> frozenset[Partition]:
        """The partitions whose end was delivered: see :class:`cardinal.transports.pace.Unasked`."""
        ends = self._ends
        return frozenset(where for where, at in self._positions.items() if ends.get(where, -1) >= at)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other.

        Raises:
            CursorExpiredError: retention has removed records from a position on, or a position lies behind the end.
            TopicError: there is no such partition.

        """
        if not positions.keys() <= set(self._partitions.known):
            self._partitions.look()  # others may have seen what was added since
        check_positions(positions, self._partitions.marks(), self._cluster)
        self.pause(())  # librdkafka keeps what was paused over a new assignment
        self._stalled.moved(self._positions)
        self._positions = dict(positions)
        self._ends.clear()
        self._held.clear()
        self._noted.forget()
        self._assign()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call."""
        wanted = frozenset(partitions) & self._positions.keys()
        if resumed := self._paused - wanted:
            self._consumer.resume([TopicPartition(topic, number) for topic, number in resumed])
        if paused := wanted - self._paused:
            self._consumer.pause([TopicPartition(topic, number) for topic, number in paused])
            self._stalled.moved(paused)
        self._paused = wanted

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any.

        Raises:
            CursorExpiredError, TopicError, RefusedError, TransportError: of the broker, after the records before it.

        """
        return list(map(_record, self._poll(limit, timeout, whole=True)))

    def poll_rows(self, limit: int, timeout: float) -> list[Row]:
        """Less than :meth:`poll`, and faster: see :class:`cardinal.transports.base.RowSource`."""
        return self._poll(limit, timeout, whole=False)

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        return dict(self._positions)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained and the next readable offset of every partition, as they are now.

        Never older ones: that a position has passed them proves that nothing of before is left to read.
        """
        return self._partitions.marks()

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        return self._partitions.since(timestamp_ms, self._settings.connect_timeout)

    def close(self) -> None:
        """Release the connection. May be called twice."""
        if not self._closed:
            self._closed = True
            if self._commit_last():
                self._consumer.close()
            else:
                _close_later(self._consumer)

    # --- inside --------------------------------------------------------------------------------------------

    def _poll(self, limit: int, timeout: float, *, whole: bool) -> list[Row]:
        if self._noted.is_stale(time.monotonic()):
            self._noted.forget()
            self._read_again()
        self._noted.tell(time.monotonic())
        self._commit()
        self._whole = whole
        rows = self._release(limit)
        if not rows:
            rows = self._receive(limit, 0.0) or (self._wait(limit, timeout) if timeout > 0 else [])
            now = time.monotonic()
            if stalled := self._stalled.look(now, self._positions, self._paused, drained=not rows):
                self._begin_anew(stalled)
        if not rows:
            self._noted.tell(time.monotonic())
        return rows

    def _connect(self) -> Consumer:
        try:
            return Consumer({**self._settings.consumer(), "error_cb": self._reasons, "on_commit": self._answered})
        except KafkaException as error:
            raise bad_setting(error) from None

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(topic, number, at) for (topic, number), at in self._positions.items()])

    def _begin_anew(self, stalled: Sequence[Partition]) -> None:
        """Read on with another client."""
        (topic, number), *more = stalled
        others = f" and {len(more)} more partitions" if more else ""
        _log.warning("The Kafka client has stopped reading %s:%d%s: a new one reads on.", topic, number, others)
        old, self._consumer = self._consumer, self._connect()
        _close_later(old)
        self._read_again()

    def _read_again(self) -> None:
        """Let the client begin at our positions: what it had fetched behind them comes again."""
        self._stalled.moved(self._positions)
        self._ends.clear()
        self._held.clear()
        paused, self._paused = self._paused, frozenset()
        self._assign()
        self.pause(paused)

    def _commit(self) -> None:
        """Tell the group's coordinator where the reading stands. Only a figure for operators: a failure is no error."""
        now = time.monotonic()
        if not self._grouped or not self._positions or now - self._committed < _COMMIT_SECONDS:
            return
        self._committed, self._answer = now, {}
        offsets = [TopicPartition(topic, number, at) for (topic, number), at in self._positions.items()]
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def _commit_last(self) -> bool:
        """The same at the end, waited for as long as a broker needs that is there; whether it was answered."""
        if not self._grouped or self._answer == self._positions:
            return True
        self._committed = -_COMMIT_SECONDS
        self.pause(self._positions)  # what comes while we wait is not read any more
        self._commit()
        deadline = time.monotonic() + _LAST_SECONDS
        while self._answer != self._positions and time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                self._consumer.consume(1, _ANSWER_SECONDS)
        return self._answer == self._positions

    def _answered(self, _error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """The coordinator has answered to a commit, with whatever."""
        self._answer = {(found.topic, found.partition): found.offset for found in offsets}

    def _wait(self, limit: int, timeout: float) -> list[Row]:
        """Wait for one message, then take what came with it.

        To ask for many and to wait are two things: ``consume(n, timeout)`` waits for all n or for the whole timeout.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            rows = self._receive(1, max(left, 0.0))
            if rows and limit > 1:
                rows += self._receive(limit - 1, 0.0)
            # An end of partition wakes us as well and is no record: wait on for the rest of the time.
            if rows or left <= 0 or self._noted:
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
            self._held += [row for row in rows if row[:2] in self._paused]
            rows = [row for row in rows if row[:2] not in self._paused]
            next_offsets = {where: at for where, at in next_offsets.items() if where not in self._paused}
        self._read_up_to(next_offsets)
        self._ended.clear()
        return rows

    def _release(self, limit: int) -> list[Row]:
        """Rows that had been fetched when their partition was paused, and are wanted now."""
        if not self._held:
            return []
        held, self._held = self._held, []
        rows: list[Row] = []
        for row in held:
            wanted = len(rows) < limit and row[:2] not in self._paused
            (rows if wanted else self._held).append(row)
        self._read_up_to({row[:2]: row[2] + 1 for row in rows})
        return rows

    def _read_up_to(self, next_offsets: Mapping[Partition, int]) -> None:
        """Move positions behind what is delivered now, and past control records where that was all there is."""
        for where, at in next_offsets.items():
            self._positions[where] = max(at, self._positions.get(where, 0))
        for where in (*next_offsets, *self._ended):
            end = self._ends.get(where, -1)
            if end > self._positions.get(where, end) and not any(row[:2] == where for row in self._held):
                self._positions[where] = end

    def _note(self, error: KafkaError, message: Message) -> None:
        code, topic, partition = error.code(), message.topic() or "", message.partition() or 0
        where = (topic, partition)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public code with a private name
            self._ends[where] = message.offset() or 0
            self._ended.append(where)
        elif code in _LOST:
            self._noted.keep(lambda: refused(where, self._positions.get(where, 0), self._cluster))
        elif code in _GONE:
            self._noted.keep(lambda: deleted(topic, self._settings.address))
        elif code == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._grouped:
            pass  # librdkafka looks for the group's coordinator, which nothing here needs
        elif not error.retriable() and code not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001 - the same
            mapped = self._reasons.map(error, f"while reading {topic}".strip())
            self._noted.keep(lambda: mapped)


def _close_later(client: Consumer) -> None:
    """Whatever it waits for: nobody waits for it."""
    threading.Thread(target=client.close, name="cardinal-kafka-closing", daemon=True).start()
