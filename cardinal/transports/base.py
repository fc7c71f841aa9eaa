"""The border of a transport: a :class:`Source` of records, a :class:`Sink` for blocks, their :class:`Capabilities`.

Rules for every transport:

1. It carries records. It never parses more of a message than its key's routing bytes and never decides an order.
2. A record that was acknowledged survives any crash of the process that sent it.
3. A sink may be called from several threads. A source belongs to one thread at a time, but for ``partitions``,
   ``watermarks``, ``uncommitted_ends``, ``open_transactions`` and ``offsets_for_time``: these query the server, may
   block, and may be called from any thread.
4. Foreign exceptions are mapped to :mod:`cardinal.errors` at this border, without credentials.

A transport derives from these classes: abilities that only some transports have get a default here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cardinal._concurrency import new_future, settle
from cardinal.errors import ConfigurationError
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.protocols.streams.types import Partition, Record, Routed, Row

    from .written import Written


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of one opened source or sink, beyond those of every transport.

    Attributes:
        transaction_seconds: of a sink: ``transact`` publishes atomically, and the server aborts a transaction that was
            left open for this long; None: no transactions.
        channels: of a sink: ``open_channel`` creates topics for reorgs deeper than the threshold.
        records: of a sink: ``replay`` accepts records of another transport.
        polled: of a sink: acknowledgements are delivered sooner while a thread that waits for them calls ``serve``.
        foreign_clock: of a sink: a topic whose records carry the time of their producers' clocks; empty: the server's
            clock stamps all records, or this is unknown.
        single_log: of a source: the records of all partitions come in the one order in which they were written.
            Pausing some gains nothing, and the records in between are read twice.
        log: of a source: the name of its log; offsets noted under the same name mean the same records. Empty: none.

    """

    transaction_seconds: float | None = None
    channels: bool = False
    records: bool = False
    polled: bool = False
    foreign_clock: str = ""
    single_log: bool = False
    log: str = ""

    @property
    def transactional(self) -> bool:
        """True where ``Sink.transact`` works."""
        return self.transaction_seconds is not None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is not ended: readers of committed records see nothing of the partition from it on.

    Attributes:
        topic, partition: where it is.
        first: the offset of its first record.
        records: offsets from there to the end of the partition, those of others included.
        since_ms: when its first record was written, milliseconds since 1970; None where this is unknown.

    """

    topic: str
    partition: int
    first: int
    records: int
    since_ms: int | None = None

    @property
    def tp(self) -> Partition:
        """Its partition."""
        return (self.topic, self.partition)

    def __str__(self) -> str:
        since = (
            "" if self.since_ms is None else f" since {datetime.fromtimestamp(self.since_ms // 1000, UTC):%F %T} UTC"
        )
        records, verb = Count(self.records, "record"), "is" if self.records == 1 else "are"
        return (
            f"{records} of {self.topic}:{self.partition} from offset {self.first} on {verb} behind an open "
            f"transaction{since}, which its program has to end"
        )


_PLAIN: Final = Capabilities()


class Sink(Protocol):
    """The sending side of a stream. It adds the ``cardinal-producer`` header to every record."""

    capabilities: Capabilities = _PLAIN
    """Abilities of this sink."""

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages that the transport does not carry, before anything of a block is sent.

        Returns:
            The bytes of all keys and values.

        Raises:
            OversizeError: a message is larger than its topic takes.
            TopicError: a topic is not of this stream.
            TransportError: the sink is closed.

        """
        ...

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Send messages of one block, and call ``done`` when the last of them is acknowledged, or one has failed.

        Waits while too much is in flight; a seal alone never waits. :meth:`check` has accepted all of them.

        Arguments:
            block: messages in any number and of any topic of the stream, sent immediately.
            seal: the block's Batch, sent with the header ``cardinal-sealed`` when all of ``block`` is
                acknowledged. None where the caller will send it later, by ``post([], seal, done)``.
            done: called with None, or with a :class:`~cardinal.errors.DeliveryError` where a message was not
                acknowledged (the complete block may be resent). It runs on a thread of the transport or on one that is
                sending: it must be quick, must not wait, and may post a seal.
            written: collects the offsets of the content, on a transport with offsets, for the seal's headers.

        Raises:
            TransportError: the sink is closed; nothing was sent, and ``done`` is not called.

        """
        ...

    def send(self, block: Sequence[Routed], seal: Routed | None, written: Written | None = None) -> Future[None]:
        """:meth:`check`, then :meth:`post` with a future in place of ``done``; raises as both."""
        self.check(block if seal is None else (*block, seal))
        future = new_future()
        self.post(block, seal, partial(settle, future), written)
        return future

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` per partition, in order of their positions."""
        ...

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is acknowledged; TransportError after ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """Flush for a bounded time, and release the connection. May be called twice."""
        ...

    def serve(self, seconds: float) -> None:
        """Deliver acknowledgements on this thread, until the first or a timeout: see ``Capabilities.polled``."""
        del seconds

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition, unless it exists; from now on ``send`` accepts messages for it.

        Raises:
            TopicError: it cannot be created, or exists with several partitions.
            ConfigurationError: not one of the sink's capabilities.

        """
        raise ConfigurationError(f"this transport has no reorg channels, and {topic} is one: use another transport")

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Send records in this order, with their keys, values and headers; no header is added.

        ``cardinal-ranges`` is left out: it names offsets of another log. The key determines the partition. The
        timestamp is retained where the transport supports it. The caller is responsible for sealing: it sends a Batch
        with the header ``cardinal-sealed`` when the block's content is acknowledged.

        Returns:
            A future as that of :meth:`send`.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`check`; nothing was sent.
            ConfigurationError: not one of the sink's capabilities.

        """
        del records
        raise ConfigurationError("this transport does not accept records of another one: use another transport")

    def transact(
        self,
        content: Sequence[Routed],
        seals: Sequence[Routed],
        last: Sequence[Routed] = (),
        written: Sequence[Written] = (),
    ) -> Future[None]:
        """Send the messages of an update; readers see all of them at once or none. ``send`` is a transaction too.

        Arguments:
            content: messages in any number, sent first.
            seals: Batches, parents first, sent with ``cardinal-sealed`` when all of ``content`` is acknowledged.
            last: messages that come after the seals in each partition.
            written: for each seal, collects the offsets of the content, for the seal's headers.

        Returns:
            A future as that of :meth:`send`, which ends with the commit.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`check`; nothing was sent.
            ConfigurationError: not one of the sink's capabilities.

        """
        del content, seals, last, written
        raise ConfigurationError("this transport has no transactions: use kafka:// with transactional=update")

    def uncommitted_ends(self) -> Mapping[Partition, int] | None:
        """The end of each partition of the default topic, open transactions included; None: the server is unreachable.

        A reader that has reached these ends has seen the outcome of each of these transactions.
        """
        return None


class Source(Protocol):
    """The receiving side of a stream."""

    capabilities: Capabilities = _PLAIN
    """Abilities of this source."""

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics that this source was opened for, sorted. Called from any thread."""
        ...

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other; none is paused any more.

        Raises:
            CursorExpiredError: retention has removed records from a position on, or a position is beyond the end.
            TopicError: there is no such partition.

        """
        ...

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        ...

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any.

        Fewer large ones: a poll is held in memory.

        Raises:
            CursorExpiredError, TopicError: the next record of a partition has expired, or its topic was deleted; at
                every call until :meth:`assign`.

        """
        ...

    def poll_rows(self, limit: int, timeout: float) -> Sequence[Row]:
        """Records of :meth:`poll` as plain tuples; a reader calls one of the two, not both.

        A source may omit fields that assembling blocks of one trusted producer does not need: BatchMsgs come without
        headers, and with the time of a neighbouring record of the partition.
        """
        return self.poll(limit, timeout)

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition, control records and gaps already passed."""
        ...

    def at_end(self) -> frozenset[Partition]:
        """Partitions that seem to be at their end, without a query: a hint."""
        return frozenset()

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the one after the last readable record, from the server, never cached.

        Called from any thread.
        """
        ...

    def uncommitted_ends(self) -> Mapping[Partition, int]:
        """The end of every partition, open transactions included, as :meth:`watermarks`; empty without transactions.

        An end above a later answer of :meth:`watermarks` proves that records are behind an open transaction.
        """
        return {}

    def open_transactions(self) -> Sequence[OpenTransaction]:
        """The oldest open transaction of each partition that has one, as :meth:`watermarks`."""
        return ()

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none.

        Called from any thread.
        """
        ...

    def close(self) -> None:
        """Release the connection. May be called twice."""
        ...
