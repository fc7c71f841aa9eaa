"""Delivery reports of the sending client.

Rules:

1. The client reports every message; a report is only counted. With the last report of a call its delivery is complete,
   and its callback runs after the client's poll has returned: there it may send and wait for the client's queue.
2. A sending thread polls every :data:`_POLL_EVERY` messages. A background thread polls when no other has recently:
   polling always costs a third of all processor time, as two threads compete for the interpreter (blocks of ten
   messages).
3. The client's queue bounds what is in flight: a thread that sends while it is full polls until a report frees a
   place, or the client is closed: from then on what is sent fails at once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError, KafkaException

from cardinal.protocols.streams.types import Routed
from cardinal.transports.written import Written

from .errors import kafka_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Message, Producer

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"
_Seen: TypeAlias = "tuple[str, int, int, bytes | None]"

_POLL_EVERY: Final = 64
"""Messages sent by one thread before it polls."""

_POLL_SECONDS: Final = 0.1
_NAP_SECONDS: Final = 0.001
_FULL_SECONDS: Final = 0.005
_ANY_PARTITION: Final = -1
_HASH: Final = slice(1, 33)
_NOWHERE: Final[Mapping[bytes, Written]] = MappingProxyType({})
_NOW: Final = 0


class Delivery:
    """Reports of one call's messages.

    Arguments:
        total: number of messages of the call, 1 or more.
        done: called once, when all of them are acknowledged or have failed, with the last error.
        complete: the queue that it joins then.
        written: by block, collects the offsets of its messages.

    """

    __slots__ = ("_complete", "_keys", "_reports", "_seen", "_total", "_written", "done", "error")

    def __init__(
        self,
        total: int,
        done: Callable[[KafkaError | None], None],
        complete: deque[Delivery],
        written: Mapping[bytes, Written] = _NOWHERE,
    ) -> None:
        self.done = done
        self._written = written
        self._keys = len(written) > 1
        self._seen: list[_Seen] = []
        self.error: KafkaError | None = None
        self._total = total
        self._complete = complete
        # Two threads may poll at the same time; next() on a count is atomic.
        self._reports = itertools.count(1)

    def report(self, error: KafkaError | None, message: Message | None) -> None:
        """Count one acknowledged or failed message: librdkafka's ``on_delivery``."""
        if error is not None:
            self.error = error
        elif self._written and message is not None:
            key = message.key() if self._keys else None
            offset = message.offset()
            self._seen.append((message.topic(), message.partition(), -1 if offset is None else offset, key))  # type: ignore[arg-type]
        if next(self._reports) == self._total:
            self._complete.append(self)

    def finish(self) -> None:
        """Call back."""
        try:
            self._note()
        finally:
            self.done(self.error)

    def _note(self) -> None:
        for block_hash, written in self._written.items():
            written.wrote(
                self._seen
                if not self._keys
                else [one for one in self._seen if one[3] is not None and one[3][_HASH] == block_hash]
            )


class _OfThread(threading.local):
    """State of a thread."""

    calls_back = False


class _Released:
    """In place of a client that was given up: every call fails."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method of a client
        raise KafkaException(KafkaError(KafkaError._DESTROY))  # noqa: SLF001 - a public code with a private name


class Outbound:
    """The sending client and its reports.

    Arguments:
        client: librdkafka's producer.
        check: called periodically on the background thread.

    Attributes:
        stopped: the error with which the client stopped for good.

    """

    def __init__(self, client: Producer, check: Callable[[], None] = lambda: None) -> None:
        self.client = client
        self._check = check
        self.stopped: KafkaError | None = None
        self._complete: deque[Delivery] = deque()
        self._this = _OfThread()
        self._since_polled = 0
        self._polls = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cardinal-kafka-sink", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """True when no thread polls any more."""
        return self._closed.is_set()

    @property
    def calls_back(self) -> bool:
        """True in a callback of this thread."""
        return self._this.calls_back

    def delivery(
        self, total: int, done: Callable[[KafkaError | None], None], written: Mapping[bytes, Written] = _NOWHERE
    ) -> Delivery:
        """The delivery of one call; ``done`` is called when all its messages are acknowledged or have failed."""
        return Delivery(total, done, self._complete, written)

    def send(self, messages: Sequence[Routed], headers: Headers, delivery: Delivery) -> None:
        """Send messages; waits while the client's queue is full. A message that the client refuses has failed."""
        produce, report = self.client.produce, delivery.report
        if self.closed:
            self._refuse(len(messages), delivery)
            return
        for message in messages:
            topic, key, value = message
            try:
                # Positional arguments halve the cost of the call; "callback" and "on_delivery" are synonyms.
                produce(topic, value, key, _ANY_PARTITION, report, report, _NOW, headers)
            except BufferError:
                self._send_when_free(message, _ANY_PARTITION, headers, delivery)
            except KafkaException as error:
                report(kafka_error(error), None)
        self._since_polled += len(messages)
        if self._since_polled >= _POLL_EVERY:
            self.poll(0)

    def send_heartbeats(self, partitions: Sequence[tuple[str, int]], headers: Headers, delivery: Delivery) -> None:
        """Send an empty record to each of these partitions."""
        for topic, number in partitions:
            self._send_when_free(Routed(topic, b"", b""), number, headers, delivery)

    def poll(self, seconds: float) -> None:
        """Poll for reports, waiting up to ``seconds`` for the first, and call back for complete deliveries."""
        self._since_polled = 0
        self._polls += 1  # two threads may lose a step; it only has to change
        self._poll(seconds)
        self._call_back()

    def stop(self, error: KafkaError) -> None:
        """Stop the client (fenced, or its sequence numbers are lost) and fail everything in flight."""
        self.stopped = error
        with contextlib.suppress(KafkaException):
            self.client.purge()

    def fail_unacknowledged(self, seconds: float) -> None:
        """Fail every unacknowledged message."""
        with contextlib.suppress(KafkaException):
            self.client.purge()
        self._serve(self.client.flush, seconds)
        self._call_back()

    def fail_unsent(self) -> None:
        """Fail every unsent message; messages in flight may still be acknowledged."""
        self.client.purge(in_queue=True, in_flight=False)

    def close(self, seconds: float) -> None:
        """Stop polling."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def release(self) -> None:
        """Give the client up: it ends its connections and repeats no request.

        A client that was only forgotten goes on until its memory is collected. One with a transactional id would
        request the id's next epoch meanwhile, and so fence the client that has taken the id over.
        """
        self.client = cast("Producer", _Released())

    # --- inside --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        seen = -1
        while not self._closed.is_set():
            self._check()
            if seen != self._polls:
                seen = self._polls
                time.sleep(_NAP_SECONDS)  # another thread polls
            else:
                self._poll(_POLL_SECONDS)
            self._call_back()

    def _poll(self, seconds: float) -> None:
        with contextlib.suppress(KafkaException):  # it was given up
            self._serve(self.client.poll, seconds)

    def _serve(self, wait: Callable[[float], object], seconds: float) -> None:
        """Poll or flush. Either raises a fatal error once."""
        try:
            wait(seconds)
        except (KafkaException, KafkaError) as error:  # type: ignore[misc] # raised as well; its stub derives from it
            self.stop(kafka_error(error) if isinstance(error, KafkaException) else error)

    def _call_back(self) -> None:
        if not self._complete or self._this.calls_back:
            return
        self._this.calls_back = True
        try:
            while self._complete:
                try:
                    delivery = self._complete.popleft()
                except IndexError:
                    return  # another thread took the last one
                delivery.finish()
        finally:
            self._this.calls_back = False

    def _refuse(self, messages: int, delivery: Delivery) -> None:
        """Fail messages: nobody would poll for their reports."""
        for _ in range(messages):
            delivery.report(KafkaError(KafkaError._PURGE_QUEUE), None)  # noqa: SLF001 - a public code with a private name
        self._call_back()

    def _send_when_free(self, message: Routed, partition: int, headers: Headers, delivery: Delivery) -> None:
        topic, key, value = message
        while True:
            if self.closed:
                self._refuse(1, delivery)
                return
            try:
                self.client.produce(topic, value, key, partition, on_delivery=delivery.report, headers=headers)
            except BufferError:
                self._poll(_FULL_SECONDS)  # any report frees a place of the queue
            except KafkaException as error:  # the topic was recreated with fewer partitions, say
                delivery.report(kafka_error(error), None)
                return
            else:
                return
