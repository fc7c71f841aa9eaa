"""The client that sends, and who serves its acknowledgements.

Rules:

1. The client reports every message by itself. A report is counted and nothing else; when the last one of a call has
   come, the call is *settled*, and told of after the client has been left: what is told may send, and may wait for the
   client's queue, which it could not from inside.
2. Whoever sends serves as well, every so many messages. A thread of the outbox serves when nobody else has for a
   moment. Were it always there, each single report would make two threads hand the interpreter to each other
   (measured, blocks of ten messages: a third of all processor time).
3. A thread that is telling never waits for room: it may be the only one that can make some.

Two threads may serve at once, so a report is counted in a way that two may do at once.
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
_Seen: TypeAlias = "tuple[str, int, int | None, bytes | None]"

_SERVE_EVERY: Final = 64
"""Messages handed over by one thread before it serves."""

_POLL_SECONDS: Final = 0.1
_NAP_SECONDS: Final = 0.001
_FULL_SECONDS: Final = 0.005
_ANY_PARTITION: Final = -1
_HASH: Final = slice(1, 33)
_NOWHERE: Final[Mapping[bytes, Written]] = MappingProxyType({})
_NOW: Final = 0


class Delivery:
    """The acknowledgements of one call's messages.

    Arguments:
        total: how many messages the call has, 1 or more.
        done: told once, when all of them are acknowledged or have failed, with the last error.
        settled: where it goes then.
        written: by block, where to note where its messages were written.

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

    def tell(self) -> None:
        """Tell of the call, which is settled."""
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
    """What a thread is at."""

    telling = False
    makes_room = False


class Outbox:
    """See the module.

    Arguments:
        client: librdkafka's producer; may be replaced when it has stopped for good (:meth:`go_on_with`).
        look: called now and then, by a thread of the outbox.

    """

    def __init__(self, client: Producer, look: Callable[[], None] = lambda: None) -> None:
        self.client = client
        self._look = look
        self.stopped: KafkaError | None = None
        self._settled: deque[Delivery] = deque()
        self._this = _OfThread()
        self._since_served = 0
        self._served = 0
        self._closed = threading.Event()
        self._changing = threading.Lock()
        self._server = threading.Thread(target=self._run, name="cardinal-kafka-sink", daemon=True)
        self._server.start()

    @property
    def closed(self) -> bool:
        """Whether nobody serves any more."""
        return self._closed.is_set()

    @property
    def may_wait(self) -> bool:
        """Whether this thread may wait for room (rule 3)."""
        return not (self._this.telling or self._this.makes_room)

    def never_waits(self) -> None:
        """This thread makes room by what it does, and never waits for some."""
        self._this.makes_room = True

    def delivery(
        self, total: int, done: Callable[[KafkaError | None], None], written: Mapping[bytes, Written] = _NOWHERE
    ) -> Delivery:
        """For one call of so many messages; ``done`` is told when all of them are acknowledged or have failed."""
        return Delivery(total, done, self._settled, written)

    def hand_over(self, messages: Sequence[Routed], headers: Headers, delivery: Delivery) -> None:
        """Give messages to the client. One that it refuses has failed; where its queue is full, this waits."""
        produce, report = self.client.produce, delivery.report
        for message in messages:
            topic, key, value = message
            try:
                # By place: to find arguments by their names takes the client as long as all the rest of the call.
                # "callback" and "on_delivery" are two names of one thing.
                produce(topic, value, key, _ANY_PARTITION, report, report, _NOW, headers)
            except BufferError:
                self._hand_over_when_room(message, headers, delivery)
            except KafkaException as error:
                report(kafka_error(error), None)
        self._since_served += len(messages)
        if self._since_served >= _SERVE_EVERY:
            self.serve(0)

    def hand_over_to(self, partitions: Sequence[tuple[str, int]], headers: Headers, delivery: Delivery) -> None:
        """Give the client an empty record for each of these partitions."""
        for topic, number in partitions:
            while True:
                try:
                    self.client.produce(topic, b"", b"", number, on_delivery=delivery.report, headers=headers)
                except BufferError:
                    self._poll(_FULL_SECONDS)  # its queue is full of the others
                else:
                    break

    def serve(self, seconds: float) -> None:
        """Take reports in, waiting so long for the first of them, and tell of the calls that they settle."""
        self._since_served = 0
        self._served += 1  # two threads may lose a step here: all that matters is that it moves
        self._poll(seconds)
        self._tell()

    def stop(self, error: KafkaError) -> None:
        """The client takes nothing more (fenced, or its sequence numbers are lost); what is under way fails."""
        self.stopped = error
        with contextlib.suppress(KafkaException):
            self.client.purge()

    def go_on_with(self, client: Producer) -> None:
        """A new client takes the place of one that has stopped."""
        with self._changing:
            self.client, self.stopped = client, None

    def fail_what_is_left(self, seconds: float) -> None:
        """Let everything that is not acknowledged fail."""
        self.client.purge()
        self.client.flush(seconds)
        self._tell()

    def fail_what_waits(self) -> None:
        """Let everything fail that was not sent yet; what is on its way may still be acknowledged."""
        self.client.purge(in_queue=True, in_flight=False)

    def close(self, seconds: float) -> None:
        """Serve no more."""
        self._closed.set()
        if threading.current_thread() is not self._server:
            self._server.join(seconds)

    # --- inside --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        seen = -1
        while not self._closed.is_set():
            self._look()
            if seen != self._served:
                seen = self._served
                time.sleep(_NAP_SECONDS)  # somebody else serves; let us see whether he goes on
            else:
                self._poll(_POLL_SECONDS)
            self._tell()

    def _poll(self, seconds: float) -> None:
        client = self.client
        try:
            client.poll(seconds)
        except (KafkaException, KafkaError) as error:  # type: ignore[misc] # raised too, and its type claims to be one
            with self._changing:
                if client is self.client:  # else there is a new one by now
                    self.stop(kafka_error(error) if isinstance(error, KafkaException) else error)

    def _tell(self) -> None:
        if not self._settled or self._this.telling:
            return
        self._this.telling = True
        try:
            while self._settled:
                try:
                    delivery = self._settled.popleft()
                except IndexError:
                    return  # another thread took the last one
                delivery.tell()
        finally:
            self._this.telling = False

    def _hand_over_when_room(self, message: Routed, headers: Headers, delivery: Delivery) -> None:
        while True:
            # To take reports in, of whichever call, is what makes room.
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
