"""A producer's messages to Kafka in transactions: readers of committed records see a whole update or nothing of it.

Rules:

1. One call is one transaction, and one transaction is open at a time: the client knows no other way.
2. The rule of sealing holds inside a transaction as well: seals are handed over when everything else is acknowledged.
   So a reader that does not care for transactions is promised no less than without them.
3. A transaction that fails is aborted, and its call can be made again.
4. A second producer with our transactional id fences us: a :class:`~cardinal.errors.FencedError`, for good.
5. The broker fences us as well when a transaction was open for longer than ``transaction.timeout.ms`` (we were stopped,
   or the broker was away). What it says is the same; what tells the two apart is our own clock. Then we connect anew
   and the call can be made again. Where both happened at once, we fence the other one, and it, whose transaction was
   not overdue, ends: two producers never fence each other in turn. A broker that is asked to abort what is overdue
   may say yes to that and have done so itself: then it is the next transaction that it fences us in.
6. A broker that was killed may know nothing of a transaction that began while it died. It says that our state is not
   valid, and the client stops for good. Nobody has our id then (that is looked at first), and nothing was committed:
   we connect anew as well.

A thread of the sink works the calls off, one after the other.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from cardinal.errors import CardinalError, DeliveryError, FencedError, TransportError, UnreachableError
from cardinal.protocols.streams.types import Routed
from cardinal.transports.posting import end, new_future, tell

from .errors import kafka_error
from .fencing import take_id
from .sink import CLOSE_SECONDS, HASH, KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.posting import Done
    from cardinal.transports.written import Written

    from .outbox import Delivery

    Ends: TypeAlias = dict[Partition, int]

_SLICE: Final = 1.0
_IDLE_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 0.02


class _Stage(NamedTuple):
    """Messages that are acknowledged before the next stage is sent."""

    messages: int
    hand_over: Callable[[Delivery], None]
    written: Mapping[bytes, Written] = MappingProxyType({})


class _Call(NamedTuple):
    """What one transaction holds, and whom to tell."""

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
    """A :class:`~cardinal.transports.base.TransactionalSink` on Kafka.

    Arguments:
        timeout: ``transaction.timeout.ms`` in seconds.
        connect_timeout: seconds until a broker must have answered.
        ends: where each partition of the default topic ends, by what is written, committed or not.
        plain: sends heartbeats outside of transactions. Consumers of the Go implementation are at the end of a
            partition when they have read its last offset but one, and a transaction's marker is the last: without a
            heartbeat behind it they never are.
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
        self._aborted_late = False
        self._for_good = False
        self._calls_waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        super().__init__(*args, **others)
        self._behind_markers = set(self._topics)
        self._worker = threading.Thread(target=self._work_off, name="cardinal-kafka-transactions", daemon=True)
        self._worker.start()

    # --- Sink ----------------------------------------------------------------------------------------------

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.Sink.send`."""
        return self.transact(block, () if seal is None else (seal,))

    def transact(
        self,
        content: Sequence[Routed],
        seals: Sequence[Routed],
        last: Sequence[Routed] = (),
        written: Sequence[Written] = (),
    ) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.TransactionalSink.transact`."""
        everything = [*content, *seals, *last]
        size = self.measure(everything)
        stages: list[_Stage] = []
        if content:

            def begin(delivery: Delivery) -> None:
                self._outbox.hand_over(content, self._headers, delivery)

            noted = {batch.key[HASH]: where for batch, where in zip(seals, written, strict=False)}
            stages.append(_Stage(len(content), begin, noted))
        if seals or last:

            def close(delivery: Delivery) -> None:
                for batch, where in itertools.zip_longest(seals, written[: len(seals)]):
                    self._outbox.hand_over((batch,), self._seal(batch, where), delivery)
                self._outbox.hand_over(last, self._headers, delivery)

            stages.append(_Stage(len(seals) + len(last), close))
        topics = {message.topic for message in everything}
        return self._line_up(everything[0].key[HASH] if everything else b"", size, topics, stages)

    @property
    def longest(self) -> float:
        """See :meth:`cardinal.transports.base.TransactionalSink.longest`."""
        return self._timeout

    def written(self) -> Ends | None:
        """See :meth:`cardinal.transports.base.TransactionalSink.written`."""
        try:
            return self._ends()
        except UnreachableError:
            return None

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """One transaction: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        size = self.measure([Routed(record.topic, record.key, record.value) for record in records])
        stage = _Stage(len(records), lambda delivery: self._hand_over_records(records, delivery))
        first = records[0].key[HASH] if records else b""
        topics = {record.topic for record in records}
        return self._line_up(first, size, topics, [stage] if records else [])

    def heartbeat(self, partitions: Sequence[tuple[str, int]], timeout: float) -> None:
        """One heartbeat into each of these partitions, outside of transactions."""
        self._plain.heartbeat(partitions, timeout)

    def close(self) -> None:
        """Flush for a bounded time, abort what is left, release the connection."""
        super().close()
        self._calls_waiting.put(None)
        if threading.current_thread() is not self._worker:
            self._worker.join(CLOSE_SECONDS)
        self._plain.close()

    # --- PostingSink ---------------------------------------------------------------------------------------

    def post(self, content: Sequence[Routed], size: int, done: Done, written: Written | None = None) -> None:
        """One transaction: see :meth:`cardinal.transports.posting.Poster.post`."""
        del size
        tell(self.transact(content, (), (), () if written is None else (written,)), done)

    def post_seal(self, batch: Routed, done: Done, written: Written | None = None) -> None:
        """One transaction: see :meth:`cardinal.transports.posting.Poster.post_seal`."""
        tell(self.transact((), (batch,), (), () if written is None else (written,)), done)

    # --- the worker ----------------------------------------------------------------------------------------

    def _line_up(self, block_hash: bytes, size: int, topics: set[str], stages: list[_Stage]) -> Future[None]:
        future = new_future()
        if stages:
            size += sum(stage.messages for stage in stages) * self._overhead
            self._wait_for_room(size)
            self._count_in(size, unless_closed=True)
            self._calls_waiting.put(_Call(block_hash, size, topics, stages, future))
        else:
            future.set_result(None)
        return future

    def _work_off(self) -> None:
        self._outbox.never_waits()
        while (call := self._next_call()) is not None:
            error: BaseException | None = None
            self._behind_markers |= call.topics
            try:
                self._transaction(call)
            except Exception as failure:  # noqa: BLE001 - whoever sent it is told, and others' calls wait behind it
                error = failure
            self._count_out(call.size)
            end(call.future, error)
        if self._since is not None and self._outbox.stopped is None:
            with contextlib.suppress(KafkaException):
                self._outbox.client.abort_transaction(_SLICE)

    def _next_call(self) -> _Call | None:
        """The next call; while none comes, and at the end, heartbeats go where a marker is the last record."""
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
        partitions = [(one, number) for one in sorted(topics) for number in range(self._topics[one].partitions)]
        if partitions:
            with contextlib.suppress(CardinalError):  # they are for others; what matters is said of transactions
                self._plain.beat(partitions)

    def _transaction(self, call: _Call) -> None:
        """Begin, send stage by stage, commit. DeliveryError, FencedError, … when it was aborted instead."""
        if self._outbox.closed:
            raise TransportError("the sink was closed before this could be sent")
        if (stopped := self._outbox.stopped) is not None:
            if self._for_good or not (self._overdue(stopped) or _unknown(stopped)):
                raise self._failed(stopped, call.block_hash)
            self._connect_again()  # once more: the broker was away
        try:
            if self._since is not None:
                self._abort()  # the transaction before could not be: the broker was away
            self._outbox.client.begin_transaction()
            self._since = time.monotonic()
            for stage in call.stages:
                self._send(stage)
            self._patiently(self._outbox.client.commit_transaction)
            self._aborted_late = False
            self._reasons.forget()
        except _UndeliveredError as error:
            raise self._given_up(error.error, call.block_hash) from None
        except KafkaException as error:
            raise self._given_up(kafka_error(error), call.block_hash) from None
        self._since = None

    def _send(self, stage: _Stage) -> None:
        """Hand over the messages of a stage and wait until all of them are acknowledged."""
        settled: list[KafkaError | None] = []
        delivery = self._outbox.delivery(stage.messages, settled.append, stage.written)
        stage.hand_over(delivery)
        while not settled:
            if self._outbox.closed:  # nobody else asks the client for acknowledgements any more
                self._outbox.fail_what_is_left(_SLICE)
            else:
                self._outbox.serve(_REPORT_SECONDS)
        if delivery.error is not None:
            raise _UndeliveredError(self._outbox.stopped or delivery.error)

    def _patiently(self, step: Callable[[float], None], *, until: float | None = None) -> None:
        """Commit or abort, again and again while the broker does not answer."""
        while True:
            try:
                step(_SLICE)
            except KafkaException as error:
                late = until is not None and time.monotonic() > until
                if late or self._outbox.closed or not kafka_error(error).retriable():
                    raise
            except KafkaError as error:  # type: ignore[misc] # see Outbox
                self._outbox.stop(error)
                raise KafkaException(error) from None
            else:
                return

    def _abort(self, *, until: float | None = None) -> bool:
        """Abort the open transaction; whether the broker had done so, because it was open for too long."""
        overdue = False
        try:
            self._patiently(self._outbox.client.abort_transaction, until=until)
        except KafkaException as error:
            inner = kafka_error(error)
            overdue = inner.fatal() and self._overdue(inner)
            if not (overdue or _unknown(inner)):
                raise
            self._connect_again()
        else:
            self._aborted_late = self._aborted_late or self._is_late
        self._since = None
        return overdue

    def _given_up(self, error: KafkaError, block_hash: bytes) -> CardinalError:
        """Abort the open transaction, and say what became of it."""
        if self._since is not None and not error.fatal():
            try:
                if self._abort(until=time.monotonic() + self._timeout):
                    return self._too_late(block_hash)  # whatever a message said: that was why
            except KafkaException as failure:
                error = kafka_error(failure) if kafka_error(failure).fatal() else error
        error = self._outbox.stopped or error  # whoever serves may have heard meanwhile that it stopped
        if not error.fatal():
            return self._meaning(error, None, block_hash)
        if self._since is not None and ((overdue := self._overdue(error)) or _unknown(error)):
            try:
                self._connect_again()
            except CardinalError as failure:
                return failure
            return self._too_late(block_hash) if overdue else _forgotten(block_hash)
        self._for_good = True
        self._outbox.stop(error)
        return self._failed(error, block_hash)

    def _too_late(self, block_hash: bytes) -> DeliveryError:
        return DeliveryError(
            f"block 0x{block_hash.hex()} was not committed: its transaction was open for longer than "
            f"transaction.timeout.ms ({self._timeout:g} s); send it again",
            block_hash=block_hash,
        )

    def _overdue(self, error: KafkaError) -> bool:
        """Whether the broker fenced us because our transaction was open for too long."""
        fenced = isinstance(self._reasons.map(error, ""), FencedError)
        return fenced and (self._is_late or self._aborted_late)

    @property
    def _is_late(self) -> bool:
        """Whether the transaction that is open is so for longer than it may be."""
        return self._since is not None and time.monotonic() - self._since >= self._timeout

    def _look_at_refusal(self) -> None:
        """No message is tried for longer than its transaction may be open."""

    def _refuse(self, stopped: KafkaError) -> None:
        """A client that stopped within a transaction is looked into by the worker: there may be a new one soon."""
        if self._for_good or not (self._since is not None or self._aborted_late):
            super()._refuse(stopped)

    # --- the client ----------------------------------------------------------------------------------------

    def _connect(self) -> Producer:
        producer = super()._connect()
        take_id(producer, self._reasons, timeout=self._timeout, connect_timeout=self._connect_timeout)
        return producer

    def _connect_again(self) -> None:
        self._outbox.go_on_with(self._connect())
        self._since, self._aborted_late = None, False


def _unknown(error: KafkaError) -> bool:
    """Whether the broker knows nothing of the transaction that was to be ended."""
    return error.code() == KafkaError.INVALID_TXN_STATE


def _forgotten(block_hash: bytes) -> DeliveryError:
    return DeliveryError(
        f"block 0x{block_hash.hex()} was not committed: the broker knew nothing of its transaction when it came back; "
        "send it again",
        block_hash=block_hash,
    )
