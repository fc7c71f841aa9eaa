"""Sink on Kafka with transactions: readers of committed records see a complete update or nothing of it.

Rules:

1. One call is one transaction, and one transaction is open at a time: the client knows no other way. A thread of the
   sink works the calls off, one after the other.
2. The rule of sealing holds inside a transaction as well: seals are sent when all content is acknowledged, and what
   comes last when all seals are. So a reader of uncommitted records is promised no less than without transactions.
3. A transaction that fails is aborted, and its call can be made again.
4. A second producer with our transactional id fences us: a :class:`~cardinal.errors.FencedError`. The broker does so
   with the same code when a transaction was open for longer than ``transaction.timeout.ms`` (we were stopped, or the
   broker was away); our own clock tells the two apart. Then, and after every other fatal error (a broker that was
   killed may have lost a transaction that began while it died), the sink fails with a
   :class:`~cardinal.errors.ClientStoppedError`: a new producer sends again. Two producers never fence each other in
   turn: the one whose transaction was not overdue ends.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from cardinal._concurrency import new_future, settle
from cardinal.errors import (
    CardinalError,
    ClientStoppedError,
    ConfigurationError,
    TransportError,
    UnreachableError,
)
from cardinal.protocols.streams.types import Routed

from .errors import kafka_error
from .sink import CLOSE_SECONDS, HASH, KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.written import Written

    from .delivery import Delivery, Headers

    Ends: TypeAlias = dict[Partition, int]

_SLICE: Final = 1.0
_IDLE_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 0.002
"""Delay until an acknowledged stage is noticed, where the other thread received the reports."""
_SETTINGS: Final = frozenset(
    {
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.INVALID_CONFIG,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - a public code with a private name
    }
)


class _Stage(NamedTuple):
    """Messages that are acknowledged before the next stage is sent."""

    messages: int
    send: Callable[[Delivery], None]
    written: Mapping[bytes, Written] = MappingProxyType({})


class _Call(NamedTuple):
    """The messages of one transaction, and its future."""

    block_hash: bytes
    size: int
    topics: set[str]
    stages: list[_Stage]
    future: Future[None]


class _UndeliveredError(Exception):
    """A message of the open transaction failed."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error)
        self.error = error


class TransactionalKafkaSink(KafkaSink):
    """Sink on Kafka with transactions.

    Arguments:
        timeout: ``transaction.timeout.ms`` in seconds.
        connect_timeout: seconds until a broker must have answered.
        ends: the end of each partition of the default topic, uncommitted records included.
        plain: sends heartbeats outside of transactions. Consumers of the Go implementation take a partition as read
            when they have its last offset but one, and the last is a transaction's marker: without a heartbeat after
            it they wait for ever.
        others: as :class:`~.sink.KafkaSink`; ``config`` holds the transactional id.

    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - passed through
        timeout: float,
        connect_timeout: float,
        ends: Callable[[], Ends],
        plain: KafkaSink,
        **others: Any,  # noqa: ANN401 - the same
    ) -> None:
        self._ends = ends
        self._plain = plain
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._since: float | None = None
        self._overdue = False
        """True once a transaction was open for too long."""
        self._calls_waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        super().__init__(*args, **others)
        self._capabilities = replace(self._capabilities, transaction_seconds=timeout, polled=False)
        self._behind_markers = set(self._topics)
        self._worker = threading.Thread(target=self._process, name="cardinal-kafka-transactions", daemon=True)
        self._worker.start()

    # --- Sink ----------------------------------------------------------------------------------------------

    def send(self, block: Sequence[Routed], seal: Routed | None, written: Written | None = None) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.Sink.send`."""
        return self.transact(block, () if seal is None else (seal,), (), () if written is None else (written,))

    def transact(
        self,
        content: Sequence[Routed],
        seals: Sequence[Routed],
        last: Sequence[Routed] = (),
        written: Sequence[Written] = (),
        headers: Sequence[Headers] = (),
    ) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.Sink.transact`; for each seal, further ``headers``."""
        everything = [*content, *seals, *last]
        size = self.check(everything)
        stages: list[_Stage] = []
        if content:

            def begin(delivery: Delivery) -> None:
                self._outbound.send(content, self._headers, delivery)

            places = {batch.key[HASH]: place for batch, place in zip(seals, written, strict=False)}
            stages.append(_Stage(len(content), begin, places))
        if seals:

            def seal(delivery: Delivery) -> None:
                for batch, place, more in itertools.zip_longest(seals, written[: len(seals)], headers):
                    self._outbound.send((batch,), [*self._seal(batch, place), *(more or ())], delivery)

            stages.append(_Stage(len(seals), seal))
        if last:
            stages.append(_Stage(len(last), lambda delivery: self._outbound.send(last, self._headers, delivery)))
        topics = {message.topic for message in everything}
        return self._enqueue(everything[0].key[HASH] if everything else b"", size, topics, stages)

    def uncommitted_ends(self) -> Ends | None:
        """See :meth:`cardinal.transports.base.Sink.uncommitted_ends`."""
        try:
            return self._ends()
        except UnreachableError:
            return None

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.Sink.replay`."""
        size = self.check([Routed(record.topic, record.key, record.value) for record in records])
        stage = _Stage(len(records), lambda delivery: self._send_records(records, delivery))
        first = records[0].key[HASH] if records else b""
        topics = {record.topic for record in records}
        return self._enqueue(first, size, topics, [stage] if records else [])

    def heartbeat(self, partitions: Sequence[tuple[str, int]], timeout: float) -> None:
        """One heartbeat into each of these partitions, outside of transactions."""
        self._plain.heartbeat(partitions, timeout)

    def close(self) -> None:
        """Flush for a bounded time, abort the open transaction, release the connection."""
        super().close()
        self._calls_waiting.put(None)
        if threading.current_thread() is not self._worker:
            self._worker.join(CLOSE_SECONDS)
        self._plain.close()

    # --- the worker ----------------------------------------------------------------------------------------

    def _enqueue(self, block_hash: bytes, size: int, topics: set[str], stages: list[_Stage]) -> Future[None]:
        future = new_future()
        if stages:
            size += sum(stage.messages for stage in stages) * self._overhead
            self._wait_for_capacity(size)
            self._count_in(size, unless_closed=True)
            self._calls_waiting.put(_Call(block_hash, size, topics, stages, future))
        else:
            future.set_result(None)
        return future

    def _process(self) -> None:
        self._outbound.never_waits()
        while (call := self._next_call()) is not None:
            error: BaseException | None = None
            self._behind_markers |= call.topics
            try:
                self._transaction(call)
            except Exception as failure:  # noqa: BLE001 - it ends the call's future; the thread serves further calls
                error = failure
            self._count_out(call.size)
            settle(call.future, error)
        if self._since is not None and self._outbound.stopped is None:
            with contextlib.suppress(KafkaException):
                self._outbound.client.abort_transaction(_SLICE)

    def _next_call(self) -> _Call | None:
        """The next call. When idle, and at the end, send heartbeats to partitions that end with a marker."""
        while True:
            try:
                call = self._calls_waiting.get(timeout=_IDLE_SECONDS if self._behind_markers else None)
            except queue.Empty:
                self._beat()
            else:
                if call is None:
                    self._beat()
                return call

    def _beat(self) -> None:
        topics, self._behind_markers = self._behind_markers, set()
        partitions = [(topic, number) for topic in sorted(topics) for number in range(self._topics[topic].partitions)]
        if partitions:
            with contextlib.suppress(CardinalError):  # a broker that is away fails transactions
                self._plain.beat(partitions)

    def _transaction(self, call: _Call) -> None:
        """Begin, send stage by stage, commit. DeliveryError, FencedError, …: it was aborted."""
        if self._outbound.closed:
            raise TransportError("the sink was closed before this could be sent")
        if (stopped := self._outbound.stopped) is not None:
            raise self._failed(stopped, call.block_hash)
        try:
            self._outbound.client.begin_transaction()
            self._since = time.monotonic()
            for stage in call.stages:
                self._send(stage)
            self._patiently(self._outbound.client.commit_transaction, until=self._commit_until())
            self._reasons.forget()
        except _UndeliveredError as error:
            raise self._abort(error.error, call.block_hash) from None
        except KafkaException as error:
            raise self._abort(kafka_error(error), call.block_hash) from None
        self._since = None

    def _commit_until(self) -> float | None:
        """Time at which an unanswered commit counts as failed; None: it is waited for."""
        return None

    def _send(self, stage: _Stage) -> None:
        """Send the messages of a stage and wait until all of them are acknowledged."""
        results: list[KafkaError | None] = []
        delivery = self._outbound.delivery(stage.messages, results.append, stage.written)
        stage.send(delivery)
        while not results:
            if self._outbound.closed:  # no other thread polls any more
                self._outbound.fail_unacknowledged(_SLICE)
            else:
                self._outbound.poll(_REPORT_SECONDS)
        if delivery.error is not None:
            raise _UndeliveredError(self._outbound.stopped or delivery.error)

    def _patiently(self, step: Callable[[float], None], *, until: float | None = None) -> None:
        """Commit or abort, and retry while the broker does not answer."""
        while True:
            try:
                step(_SLICE)
            except KafkaException as error:
                late = until is not None and time.monotonic() > until
                if late or self._outbound.closed or not kafka_error(error).retriable():
                    raise
            except KafkaError as error:  # type: ignore[misc] # see Outbound
                self._outbound.stop(error)
                raise KafkaException(error) from None
            else:
                return

    def _abort(self, error: KafkaError, block_hash: bytes) -> CardinalError:
        """Abort the open transaction, and return the error for its call; where that is impossible, stop the sink.

        The broker may have aborted an overdue transaction already, and then fences us in the next one. So an overdue
        transaction stops the sink, even if the abort succeeds.
        """
        since = self._since
        if since is not None and not error.fatal():
            try:
                self._patiently(self._outbound.client.abort_transaction, until=since + self._timeout)
            except KafkaException as failure:
                error = kafka_error(failure) if kafka_error(failure).fatal() else error
            else:
                since = None
        error = self._outbound.stopped or error  # the polling thread may have received it
        self._overdue = self._is_overdue
        if self._overdue or error.fatal():
            self._since = None  # the transaction is over
            self._outbound.stop(error)
            return self._failed(error, block_hash)
        self._since = since
        return self._meaning(error, None, block_hash)

    @property
    def _is_overdue(self) -> bool:
        """True if a transaction is or was open for longer than the timeout."""
        return self._overdue or (self._since is not None and time.monotonic() - self._since >= self._timeout)

    def _meaning(self, error: KafkaError, stopped: KafkaError | None, block_hash: bytes) -> TransportError:
        """As for a sink without transactions; an overdue transaction was not fenced by another producer."""
        if stopped is not None and self._is_overdue:
            return ClientStoppedError(
                f"a transaction was open for longer than transaction.timeout.ms ({self._timeout:g} s), and the broker "
                "has aborted it: restart the producer, and resend unacknowledged blocks"
            )
        return super()._meaning(error, stopped, block_hash)

    def _look_at_refusal(self) -> None:
        """Nothing: no message is retried for longer than its transaction may be open."""

    def _connect(self) -> Producer:
        producer = super()._connect()
        self._acquire_id(producer)
        return producer

    def _acquire_id(self, client: Producer) -> None:
        """Acquire the transactional id: its last owner is fenced, and an open transaction of that one is aborted.

        Raises:
            ConfigurationError: the broker refuses the transaction timeout.
            UnreachableError, RefusedError, FencedError: the broker is away or refuses; another client acquires it too.

        """
        deadline = time.monotonic() + self._connect_timeout
        with contextlib.suppress(KafkaException):
            # Metadata first: without a connection the client repeats its first request 0.5 s later.
            client.list_topics(next(iter(self._topics)), timeout=_SLICE)
        while True:
            try:
                client.init_transactions(_SLICE)
            except KafkaException as error:
                inner = kafka_error(error)
                with contextlib.suppress(KafkaException, KafkaError):  # type: ignore[arg-type] # see Outbound
                    client.poll(0)
                if refusal := self._reasons.refusal():
                    raise refusal from None
                if inner.code() in _SETTINGS:
                    raise ConfigurationError(
                        f"the broker refuses transaction.timeout.ms={self._timeout * 1000:.0f}: {inner.str()}",
                        setting="transaction.timeout.ms",
                    ) from None
                if not inner.retriable():
                    raise self._reasons.map(inner, "while taking the transactional id") from None
                if time.monotonic() > deadline:
                    raise self._reasons.unreachable(self._connect_timeout) from None
            else:
                return
