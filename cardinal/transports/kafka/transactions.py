"""Sink on Kafka with transactions: readers of committed records see a complete update or nothing of it.

Rules:

1. One call is one transaction, and one transaction is open at a time: the client knows no other way. A thread of the
   sink works the calls off, one after the other.
2. The rule of sealing holds inside a transaction as well: seals are sent when all content is acknowledged, and what
   comes last when all seals are. So a reader of uncommitted records is promised no less than without transactions.
3. The first unclean end is the sink's last: the transaction is aborted, so that readers need not wait for its timeout
   (an overdue one is left to the broker, which aborts it), and the call and all later ones fail. librdkafka lacks
   KIP-890 (its issue 5423): a request to end a transaction that a broken connection left somewhere may arrive later,
   and then ends the next transaction of the same producer epoch. A new client takes the transactional id with the next
   epoch, in which that request is refused. Unclean is: a message that was not acknowledged;
   a commit that was not answered within ``transaction.timeout.ms``, which may have taken place or not; a connection
   that was lost since the transaction began, though its commit was reported and its call ends well.
4. The error is a :class:`~cardinal.errors.ClientStoppedError`: a new producer sends again. Where a second producer with
   our transactional id fences us, it is a :class:`~cardinal.errors.FencedError`. The broker does so with the same code
   when a transaction was open for too long (we were stopped, or the broker was unreachable); our own clock tells the
   two apart. Two producers never fence each other in turn: the one whose transaction was not overdue ends.
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
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from cardinal._concurrency import new_future, report, settle
from cardinal.errors import (
    CardinalError,
    ClientStoppedError,
    ConfigurationError,
    TransportError,
    UnreachableError,
)
from cardinal.protocols.streams.types import Routed

from .errors import kafka_error
from .sink import CLOSE_SECONDS, HASH, LOG, KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.written import Written

    from .delivery import Delivery, Headers

    Ends: TypeAlias = dict[Partition, int]

_SLICE: Final = 1.0
_IDLE_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 0.002
"""Delay until an acknowledged stage is noticed, where the other thread received the reports."""
_WAITING_MAX: Final = 64
"""Transactions that wait for those before them until the next call waits as well."""
_INFORMATION: Final = "6"
"""The ``log_level`` from which on lost connections are logged."""
_LOST: Final = "in state UP"
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

    _more_headers: ClassVar[int] = 32  # cardinal-agreed and its twelve bytes

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
        self._was_overdue = False
        self._connections = _Connections()
        self._calls_waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        super().__init__(*args, **others)
        self.capabilities = replace(self.capabilities, transaction_seconds=timeout, polled=False)
        self._behind_markers = set(self._topics)
        self._worker = threading.Thread(target=self._process, name="cardinal-kafka-transactions", daemon=True)
        self._worker.start()

    @property
    def usable(self) -> bool:
        """False when it has stopped for good."""
        return self._outbound.stopped is None and not self._outbound.closed

    # --- Sink ----------------------------------------------------------------------------------------------

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """One transaction: see :meth:`cardinal.transports.base.Sink.post`."""
        seals, places = () if seal is None else (seal,), () if written is None else (written,)
        report(self.transact(block, seals, (), places), done)

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
        self.check(everything)
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
        return self._enqueue(everything[0].key[HASH] if everything else b"", topics, stages)

    def uncommitted_ends(self) -> Ends | None:
        """See :meth:`cardinal.transports.base.Sink.uncommitted_ends`."""
        try:
            return self._ends()
        except UnreachableError:
            return None

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.Sink.replay`."""
        self.check([Routed(record.topic, record.key, record.value) for record in records])
        stage = _Stage(len(records), lambda delivery: self._send_records(records, delivery))
        first = records[0].key[HASH] if records else b""
        topics = {record.topic for record in records}
        return self._enqueue(first, topics, [stage] if records else [])

    def heartbeat(self, partitions: Sequence[tuple[str, int]], timeout: float) -> None:
        """One heartbeat into each of these partitions, outside of transactions."""
        self._plain.heartbeat(partitions, timeout)

    def close(self) -> None:
        """Flush for a bounded time, fail the remaining calls, release the connection."""
        super().close()
        self._calls_waiting.put(None)
        if threading.current_thread() is not self._worker:
            self._worker.join(CLOSE_SECONDS)
        self._plain.close()

    # --- the worker ----------------------------------------------------------------------------------------

    def _enqueue(self, block_hash: bytes, topics: set[str], stages: list[_Stage]) -> Future[None]:
        future = new_future()
        if stages:
            self._count_in()
            while self._calls_waiting.qsize() >= _WAITING_MAX and threading.current_thread() is not self._worker:
                time.sleep(_REPORT_SECONDS)
            self._calls_waiting.put(_Call(block_hash, topics, stages, future))
        else:
            future.set_result(None)
        return future

    def _process(self) -> None:
        while (call := self._next_call()) is not None:
            error: BaseException | None = None
            self._behind_markers |= call.topics
            try:
                self._transaction(call)
            except Exception as failure:  # noqa: BLE001 - it ends the call's future; the thread serves further calls
                error = failure
            self._count_out()
            settle(call.future, error)

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
            with contextlib.suppress(CardinalError):  # an unreachable broker fails transactions
                self._plain.beat(partitions)

    def _transaction(self, call: _Call) -> None:
        """Begin, send stage by stage, commit; the error of an unclean end."""
        if self._outbound.closed:
            raise TransportError("the sink was closed before this could be sent")
        if (stopped := self._outbound.stopped) is not None:
            raise self._failed(stopped, call.block_hash)
        self._outbound.poll(0)
        self._connections.lost = ""  # nothing was in flight when it was lost
        self._since = time.monotonic()
        try:
            self._outbound.client.begin_transaction()
            for stage in call.stages:
                self._send(stage)
            self._patiently(self._outbound.client.commit_transaction)
        except _UndeliveredError as error:
            raise self._stop(error.error, call.block_hash) from None
        except KafkaException as error:
            raise self._stop(kafka_error(error), call.block_hash) from None
        self._since = None
        self._reasons.forget()
        # The client logs a lost connection before it makes another, and the commit's answer came on that one.
        self._outbound.poll(0)
        if lost := self._connections.lost:
            self._outbound.stop(KafkaError(KafkaError._TRANSPORT, lost))  # noqa: SLF001 - public code with a private name

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

    def _patiently(self, step: Callable[[float], None]) -> None:
        """Commit or abort, and retry while the broker does not answer and the transaction may be open."""
        while True:
            try:
                step(_SLICE)
            except KafkaException as error:
                if self._overdue or self._outbound.closed or not kafka_error(error).retriable():
                    raise
            except KafkaError as error:  # type: ignore[misc] # see Outbound
                self._outbound.stop(error)
                raise KafkaException(error) from None
            else:
                return

    def _stop(self, error: KafkaError, block_hash: bytes) -> TransportError:
        """Abort the open transaction, stop for good, and return the error for its call.

        An overdue transaction is left to the broker: to abort it, the client would first request the next epoch of its
        id, and a suspended broker processes that request late, and fences the client that has taken the id over.
        """
        if not error.fatal() and not self._overdue:
            try:
                self._patiently(self._outbound.client.abort_transaction)
            except KafkaException as failure:
                error = kafka_error(failure) if kafka_error(failure).fatal() else error
        self._was_overdue = self._overdue
        self._since = None
        self._outbound.stop(self._outbound.stopped or error)  # the polling thread may have received it
        return self._failed(error, block_hash)

    @property
    def _overdue(self) -> bool:
        """True if the transaction is open for longer than the timeout, or the last one was."""
        return self._was_overdue or (self._since is not None and time.monotonic() - self._since >= self._timeout)

    def _failed(self, error: KafkaError, block_hash: bytes) -> TransportError:
        """As for a sink without transactions; an overdue transaction was not fenced by another producer."""
        if self._overdue:
            return ClientStoppedError(
                f"a transaction was open for longer than transaction.timeout.ms ({self._timeout:g} s), and the broker "
                "has aborted it: restart the producer, and resend unacknowledged blocks"
            )
        return super()._failed(error, block_hash)

    def _look_at_refusal(self) -> None:
        """Nothing: no message is retried for longer than its transaction may be open."""

    def _connect(self) -> Producer:
        producer = super()._connect()
        self._acquire_id(producer)
        return producer

    def _client_config(self) -> Mapping[str, Any]:
        self._connections.forwards = self._config["log_level"] != "0"
        return {"log_level": max(self._config["log_level"], _INFORMATION), "logger": self._connections}

    def _acquire_id(self, client: Producer) -> None:
        """Acquire the transactional id: its last owner is fenced, and an open transaction of that one is aborted.

        Raises:
            ConfigurationError: the broker refuses the transaction timeout.
            UnreachableError, RefusedError, FencedError: the broker is unreachable or refuses; another client
                acquires it too.

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


class _Connections:
    """Logger of a client, for what nothing else reports: a connection was lost, which it will make again."""

    def __init__(self) -> None:
        self.lost = ""
        self.forwards = False

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line of librdkafka's; called by the thread that polls."""
        line = text % values
        if _LOST in line:
            self.lost = line.rpartition("]: ")[2]
        if self.forwards:
            LOG.log(level, "%s", line)
