"""What a transport is: a :class:`Source` of records and a :class:`Sink` for blocks.

Rules for every transport:

1. It carries records. It never parses more of a message than its key's routing bytes and never decides an order.
2. A record that was acknowledged is there after any crash of the process that sent it.
3. A sink may be called from several threads. A source belongs to one thread at a time.
4. Foreign exceptions are mapped to :mod:`cardinal.errors` at this border, without credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Record, Routed, Row

    from .written import Written


@runtime_checkable
class Sink(Protocol):
    """Where a producer's messages go. It adds the ``cardinal-producer`` header to every record."""

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse, before anything of a block is sent, what the transport does not carry.

        Raises:
            OversizeError: a message is larger than its topic takes.
            TopicError: a topic is not of this stream.
            TransportError: the sink is closed.

        """
        ...

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over messages of one block; the future ends when the last of them is acknowledged.

        Arguments:
            block: messages in any number and of any topic of the stream, sent at once.
            seal: the block's Batch, sent with the header ``cardinal-sealed`` when all of ``block`` is
                acknowledged. None where the caller will send it later, by ``send([], seal)``.

        Returns:
            A future that fails with :class:`~cardinal.errors.DeliveryError` where a message was not
            acknowledged (the whole block may be sent again). Its callbacks run on a thread of the transport or
            on one that is sending: they must be quick, must not wait, and may call ``send([], seal)``.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`check`; nothing was sent.

        """
        ...

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` a partition, in order of their positions."""
        ...

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged; TransportError after ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """Flush what is under way, for a bounded time, and release the connection. May be called twice."""
        ...


@runtime_checkable
class ChannelSink(Protocol):
    """A sink that can carry reorgs deeper than the threshold, each on a channel of its own."""

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition, unless it is there; from here on ``send`` takes messages for it.

        Raises:
            TopicError: it cannot be created, or is there and has several partitions.

        """
        ...


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink whose readers see what was handed over in one call as a whole or not at all.

    Its ``send`` is a transaction too.
    """

    def transact(
        self,
        content: Sequence[Routed],
        seals: Sequence[Routed],
        last: Sequence[Routed] = (),
        written: Sequence[Written] = (),
    ) -> Future[None]:
        """Hand over the messages of an update; the future ends when all of them have become readable at once.

        Arguments:
            content: messages in any number, sent first.
            seals: Batches, parents first, sent with ``cardinal-sealed`` when all of ``content`` is acknowledged.
            last: messages to stand after the seals in each partition.
            written: for each seal, where to note where the content was written; it goes into the seal's headers.

        Returns:
            A future as :meth:`Sink.send` gives it; where it fails, readers see nothing of the call.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`Sink.check`; nothing was sent.

        """
        ...

    @property
    def longest(self) -> float:
        """Seconds after which a transaction that was left open is ended by the transport."""
        ...

    def written(self) -> Mapping[Partition, int] | None:
        """Where each partition of the default topic ends now, by what is written, of transactions under way as well.

        Whoever has read up to there knows how all of these ended. None where the server is away.
        """
        ...


@runtime_checkable
class RecordSink(Protocol):
    """A sink that takes records as they were elsewhere, for copies of a stream."""

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over records in this order, with their keys, values and headers; no header is added.

        ``cardinal-ranges`` is left out: it names offsets of elsewhere.

        The partition is that of the key, the offset is the next one there. The time is kept where the transport keeps
        times that are given. Who calls it answers for the sealing: a Batch with the header ``cardinal-sealed`` is
        handed over when what it seals is acknowledged.

        Returns:
            A future as :meth:`Sink.send` gives it.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`Sink.check`; nothing was sent.

        """
        ...


@runtime_checkable
class Source(Protocol):
    """Where a consumer's records come from."""

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics that this source was opened for, sorted."""
        ...

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other."""
        ...

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        ...

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any.

        Fewer than are there where they are large: who asks does not know how large, and a poll is held in memory.

        Raises:
            CursorExpiredError, TopicError: what comes next in a partition is gone; at every call until :meth:`assign`.

        """
        ...

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition, control records and gaps already passed."""
        ...

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the offset after the last readable record, as the server has them now."""
        ...

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        ...

    def close(self) -> None:
        """Release the connection. May be called twice."""
        ...


@runtime_checkable
class RowSource(Protocol):
    """A source that can leave out what assembling blocks of one trusted producer does not need."""

    def poll_rows(self, limit: int, timeout: float) -> list[Row]:
        """What :meth:`Source.poll` gives, in plain tuples; a reader calls the one or the other, not both.

        BatchMsgs come without headers, and with the time of a record near by in the same partition.
        """
        ...


@runtime_checkable
class ManySource(Protocol):
    """A source of several places, of which one may be away while the others are read."""

    def beside(self, topics: Sequence[str]) -> Source:
        """A source of other topics of the same places, which begins with those that answer.

        It shows partitions of the others when they are back and have the topics.

        Raises:
            TopicError: a topic is nowhere.
            UnreachableError: a topic is in none of the places that answer.

        """
        ...


@runtime_checkable
class NamedLog(Protocol):
    """A source whose log has a name: offsets that were noted under the same name mean the same records."""

    @property
    def log_name(self) -> str:
        """The name; empty where the server gives none."""
        ...


@runtime_checkable
class OneOrderSource(Protocol):
    """A source that gives the records of all partitions in the one order in which they were written.

    None of its partitions is ever ahead of another one. To pause some "to keep them in step" costs much (what comes
    between has to be read again) and gains nothing.
    """

    @property
    def one_order(self) -> bool:
        """Whether it does."""
        ...
