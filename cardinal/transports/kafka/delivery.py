"""Delivery of messages: the client that sends, and the reports of what it has sent.

Rules:

1. The client reports every message by itself. A report is counted and nothing else; when the last one of a call has
   arrived, the call is *settled*. Its callback runs after the client's poll has returned: it may send, and wait for the
   client's queue, which it could not from inside.
2. A thread that sends also polls, every so many messages. A thread of its own polls when no other has for a moment.
   Were it always polling, every report would make two threads take turns at the interpreter (measured, blocks of ten
   messages: a third of all processor time).
3. A thread that runs callbacks never waits for capacity: it may be the only one that can free some.

Two threads may poll at once, so a report is counted in a way that two may do at once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from cardinal.transports.written import Written

from .errors import kafka_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Message, Producer

    from cardinal.protocols.streams.types import Routed

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"
Done: TypeAlias = "Callable[[BaseException | None], None]"
"""Called with what became of a call: None, or the error."""
_Seen: TypeAlias = "tuple[str, int, int | None, bytes | None]"

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
        total: how many messages the call has, 1 or more.
        done: called once, when all of them are acknowledged or have failed, with the last error.
        settled: the queue it joins then.
        written: by block, collects where its messages were written.

    """

    __slots__ = ("_reports", "_seen", "_settled", "_total", "_written", "done", "error")

    def __init__(
        self,
        total: int,
        done: Callable[[KafkaError | None], None],
        settled: deque[Delivery],
        written: Mapping[bytes, Written] = _NOWHERE,
    ) -> None:
        self.done = done
        self._written = written
        self._seen: list[_Seen] = []
        self.error: KafkaError | None = None
        self._total = total
        self._settled = settled
        # next() on a count is one step of the interpreter: two threads never get the same number
        self._reports = itertools.count(1)

    def report(self, error: KafkaError | None, message: Message | None) -> None:
        """One message was acknowledged, or failed: librdkafka's ``on_delivery``."""
        if error is not None:
            self.error = error
        elif self._written and message is not None:
            key = message.key() if len(self._written) > 1 else None
            self._seen.append((message.topic(), message.partition(), message.offset(), key))  # type: ignore[arg-type]
        if next(self._reports) == self._total:
            self._settled.append(self)

    def finish(self) -> None:
        """Call back for a settled call."""
        try:
            self._note()
        finally:
            self.done(self.error)

    def _note(self) -> None:
        for block_hash, written in self._written.items():
            # An offset is not known where an earlier try has written the message and its answer was lost.
            written.wrote(
                (topic, partition, -1 if offset is None else offset)
                for topic, partition, offset, key in self._seen
                if key is None or key[_HASH] == block_hash
            )


class _OfThread(threading.local):
    """State of a thread."""

    calls_back = False
    frees_capacity = False


class Outbound:
    """The sending client and its reports.

    Arguments:
        client: librdkafka's producer.
        look: called now and then, by a thread of its own.

    Attributes:
        stopped: the error with which the client stopped for good.

    """

    def __init__(self, client: Producer, look: Callable[[], None] = lambda: None) -> None:
        self.client = client
        self._look = look
        self.stopped: KafkaError | None = None
        self._settled: deque[Delivery] = deque()
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
    def may_wait(self) -> bool:
        """True where this thread may wait for capacity (rule 3)."""
        return not (self._this.calls_back or self._this.frees_capacity)

    def never_waits(self) -> None:
        """This thread frees capacity by what it does, and never waits for some."""
        self._this.frees_capacity = True

    def delivery(
        self, total: int, done: Callable[[KafkaError | None], None], written: Mapping[bytes, Written] = _NOWHERE
    ) -> Delivery:
        """For one call of so many messages; ``done`` is called when all of them are acknowledged or have failed."""
        return Delivery(total, done, self._settled, written)

    def send(self, messages: Sequence[Routed], headers: Headers, delivery: Delivery) -> None:
        """Send messages. One that the client refuses has failed; where its queue is full, this waits."""
        produce, report = self.client.produce, delivery.report
        for message in messages:
            topic, key, value = message
            try:
                # Positional: to find arguments by their names takes the client as long as all the rest of the call.
                # "callback" and "on_delivery" are two names of one thing.
                produce(topic, value, key, _ANY_PARTITION, report, report, _NOW, headers)
            except BufferError:
                self._send_when_room(message, headers, delivery)
            except KafkaException as error:
                report(kafka_error(error), None)
        self._since_polled += len(messages)
        if self._since_polled >= _POLL_EVERY:
            self.poll(0)

    def send_heartbeats(self, partitions: Sequence[tuple[str, int]], headers: Headers, delivery: Delivery) -> None:
        """Send an empty record to each of these partitions."""
        for topic, number in partitions:
            while True:
                try:
                    self.client.produce(topic, b"", b"", number, on_delivery=delivery.report, headers=headers)
                except BufferError:
                    self._poll(_FULL_SECONDS)  # its queue is full of the others
                except KafkaException as error:  # the topic was created again, with fewer partitions
                    delivery.report(kafka_error(error), None)
                    break
                else:
                    break

    def poll(self, seconds: float) -> None:
        """Poll for reports, at most so long for the first, and call back for the calls that they settle."""
        self._since_polled = 0
        self._polls += 1  # two threads may lose a step here: all that matters is that it moves
        self._poll(seconds)
        self._call_back()

    def stop(self, error: KafkaError) -> None:
        """The client sends nothing more (fenced, or its sequence numbers are lost); what is in flight fails."""
        self.stopped = error
        with contextlib.suppress(KafkaException):
            self.client.purge()

    def fail_unacknowledged(self, seconds: float) -> None:
        """Fail everything that is not acknowledged."""
        self.client.purge()
        self.client.flush(seconds)
        self._call_back()

    def fail_unsent(self) -> None:
        """Fail everything that was not sent yet; what is on its way may still be acknowledged."""
        self.client.purge(in_queue=True, in_flight=False)

    def close(self, seconds: float) -> None:
        """Poll no more."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    # --- inside --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        seen = -1
        while not self._closed.is_set():
            self._look()
            if seen != self._polls:
                seen = self._polls
                time.sleep(_NAP_SECONDS)  # another thread polls
            else:
                self._poll(_POLL_SECONDS)
            self._call_back()

    def _poll(self, seconds: float) -> None:
        try:
            self.client.poll(seconds)
        except (KafkaException, KafkaError) as error:  # type: ignore[misc] # raised too, and its type claims to be one
            self.stop(kafka_error(error) if isinstance(error, KafkaException) else error)

    def _call_back(self) -> None:
        if not self._settled or self._this.calls_back:
            return
        self._this.calls_back = True
        try:
            while self._settled:
                try:
                    delivery = self._settled.popleft()
                except IndexError:
                    return  # another thread took the last one
                delivery.finish()
        finally:
            self._this.calls_back = False

    def _send_when_room(self, message: Routed, headers: Headers, delivery: Delivery) -> None:
        while True:
            # A report, of whichever call, frees a place in the queue.
            self._poll(_FULL_SECONDS)
            try:
                self.client.produce(
                    message.topic, message.value, message.key, on_delivery=delivery.report, headers=headers
                )
            except BufferError:
                time.sleep(_FULL_SECONDS)
            except KafkaException as error:
                delivery.report(kafka_error(error), None)
                return
            else:
                return
