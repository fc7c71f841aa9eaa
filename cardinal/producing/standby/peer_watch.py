"""Other producers of the stream: the newest records are read, for live ids, first senders, and sealed blocks.

1. Only the default topic is read: Batches and pings are there. It begins so far back that what was sealed shortly
   before is known.
2. Only a seal proves that a block is complete. What producers of another implementation publish without one is sent
   as well.
3. Where nothing can be read any more, for any reason, everything is sent from then on.
4. With transactions, what others have sealed is known when theirs have ended. At the start, and for all ranks but
   the lowest, time moves on to a moment when everything that was written before it is read
   (:class:`~.committed_horizon.Horizon`): the transaction of a producer that died is waited for, a stream that never
   rests is not. What was begun and is still queued waits like what was not: while others make progress, they
   send it.
5. Ranks need one place where all producers write, and one clock: where the records of a topic are stamped by the clocks
   of their producers ``standby`` is refused.

One thread reads, and begins or skips what waited. It and those who offer blocks decide and begin under one lock, so
that a block never goes before one that was offered earlier.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import CardinalError, ConfigurationError, DecodeError, TopicError
from cardinal.producing.standby.arrivals import ArrivalCounts, Arrivals
from cardinal.producing.standby.committed_horizon import Horizon
from cardinal.protocols.streams.publishing.standby import Peers, Standby, Verdict
from cardinal.protocols.streams.types import ENDED_HEADER, PRODUCER_HEADER, SEALED_HEADER
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, PING, Ping
from cardinal.transports.registry import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.config.url import TransportUrl
    from cardinal.producing.inflight import InFlight, Publication
    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.base import Sink, Source

_REDUNDANCIES: Final = ("all", "standby")
_BACK: Final = 2_048
_LIMIT: Final = 5_000
_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 25.0
_DOUBLED: Final = 2
"""Pings under our id that we did not send: one may be the last of ourselves, before a restart."""

_BATCH: Final = bytes((BATCH,))
_PING: Final = bytes((PING,))


def is_standby(redundancy: str, url: TransportUrl) -> bool:
    """Return True for ``standby``; ConfigurationError where that is impossible, and for an unknown redundancy."""
    if redundancy not in _REDUNDANCIES:
        raise ConfigurationError(
            f"redundancy is {' or '.join(_REDUNDANCIES)}, not {redundancy!r}", setting="redundancy"
        )
    standby = redundancy == "standby"
    if standby and url.members:
        raise ConfigurationError(
            "standby leaves out blocks that others have sealed, and of a mux one member may have them and another not: "
            "use redundancy=all, or produce to one of the members",
            setting="redundancy",
        )
    return standby


def refuse_foreign_clocks(sink: Sink) -> None:
    """TopicError where producers cannot be ranked, because no clock is everybody's."""
    if topic := sink.capabilities.foreign_clock:
        raise TopicError(
            f"the topic {topic} is stamped by its producers' clocks, and standby needs the broker's: set "
            "message.timestamp.type=LogAppendTime for all topics of the stream, or use redundancy=all",
            topic=topic,
        )


class PeerWatch:
    """Follows the other producers, and decides with :class:`Standby` on blocks that wait.

    Arguments:
        me: the producer's configured id.
        step: seconds between two ranks.
        alive: seconds after which a silent producer is taken for dead.
        transactions: what sends, where that is done in transactions (rule 4).

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: Stream,
        me: str,
        *,
        step: float,
        alive: float,
        transactions: Sink | None = None,
    ) -> None:
        self._me = me
        self._lock = threading.RLock()
        self._peers = Peers(alive * 1000)
        self._arrivals = Arrivals(getattr(app, "volatile_paths", ()))
        self._standby = Standby(me, step, self._peers)
        self._step = step
        self._rank = 0
        self._others_progress_at = float("-inf")
        self._time = time.monotonic()
        self._foreign_pings = 0
        self._unreadable = False
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._source: Source = open_source(url, app, topics=[app.default_topic])
        self._watermarks = Watermarks(self._source)
        marks = self._watermarks.query()
        self._ends = {tp: high for tp, (_, high) in marks.items()}
        longest = None if transactions is None else transactions.capabilities.transaction_seconds
        self._start_seconds = _START_SECONDS if longest is None else min(longest, _START_SECONDS)
        self._horizon = None if transactions is None else Horizon(transactions.uncommitted_ends, self._source.positions)
        self._source.assign({tp: max(low, high - _BACK) for tp, (low, high) in marks.items()})

    @property
    def producer_count(self) -> ProducerCount:
        """Live producers, the first sender of each block, and whether another producer has our id."""
        with self._lock:
            return replace(self._peers.count(self._me), doubled=self._foreign_pings >= _DOUBLED)

    @property
    def arrivals(self) -> ArrivalCounts:
        """Duplicates, divergences, and the lag of each producer."""
        with self._lock:
            return self._arrivals.counts

    def turn(self, block_hash: bytes) -> Verdict:
        """The verdict on a block that was begun and is not sent yet (rule 4); waits for no lock."""
        if self._standby.is_done(block_hash):
            return Verdict.SKIP
        return Verdict.SEND if self._unreadable or self._others_stalled(self._time) else Verdict.WAIT

    def _others_stalled(self, now: float) -> bool:
        """True when the others' progress has stalled for this rank's delay; rank 0 never waits."""
        return not self._rank or now - self._others_progress_at >= self._rank * self._step

    def start(self, in_flight: InFlight, is_anothers: Callable[[Ping], bool]) -> None:
        """Read on a thread from now on; returns when everything that was there has been read, or cannot be.

        It waits no longer than one transaction may take. ``is_anothers``: whether a ping is of another producer with
        our id.
        """
        self._in_flight = in_flight
        self._is_anothers = is_anothers
        self._thread = threading.Thread(target=self._run, name="cardinal-producer-peers", daemon=True)
        self._thread.start()
        self._caught_up.wait(self._start_seconds)

    def offer(self, publication: Publication) -> None:
        """Begin a publication that was let in, leave it to others, or keep it until that is known.

        Raises as ``InFlight.begin``.
        """
        with self._lock:
            verdict = Verdict.SEND if self._unreadable else self._standby.offer(publication.hash, time.monotonic())
            if verdict is Verdict.SEND:
                self._in_flight.begin(publication)
        if verdict is Verdict.SKIP:
            self._in_flight.skip(publication)

    def close(self) -> None:
        """Stop reading. May be called twice."""
        self._stop.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_START_SECONDS)
        self._source.close()

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with contextlib.suppress(CardinalError):
                while not self._stop.is_set():
                    self._read_once()
        finally:
            if not self._stop.is_set():
                self._stop_reading()
            self._caught_up.set()

    def _read_once(self) -> None:
        now = time.monotonic()
        self._watermarks.read_new_partitions()
        records = self._source.poll(_LIMIT, _POLL_SECONDS)
        with self._lock:
            for record in records:
                self._hear(record)
            if len(records) == _LIMIT:
                return  # more is there that was appended before now
            due = self._standby.due()
            self._rank = self._peers.rank(self._me)
            overdue = (due is not None and due <= now) or (self._in_flight.in_line and self._others_stalled(now))
            urgent = overdue and self._rank > 0
        # The moment up to which nothing that others sealed is kept from us (rule 4); None: none yet.
        horizon = self._horizon if urgent or not self._caught_up.is_set() else None
        known = now if horizon is None else horizon.reached(now)
        if known is not None:
            self._time = max(self._time, known)
        self._decide(self._time)
        if not self._caught_up.is_set() and known is not None:
            positions = self._source.positions()
            if all(at >= self._ends.get(tp, 0) for tp, at in positions.items()):
                self._caught_up.set()

    def _decide(self, now: float) -> None:
        """Begin what is due by this time, and skip what others have done."""
        skipped: list[Publication] = []
        with self._lock:
            for block_hash, verdict in self._standby.advance(now):
                publication = self._in_flight.get(block_hash)
                if publication is None:
                    continue  # closed meanwhile
                if verdict is Verdict.SKIP:
                    skipped.append(publication)
                    continue
                try:
                    self._in_flight.begin(publication)
                except CardinalError as error:
                    if not publication.future.done():
                        publication.future.set_exception(error)
        for publication in skipped:
            self._in_flight.skip(publication)
        self._in_flight.proceed()

    def _stop_reading(self) -> None:
        with self._lock:
            self._unreadable = True
        self._decide(math.inf)

    # --- what is read --------------------------------------------------------------------------------------

    def _hear(self, record: Record) -> None:
        key, headers = record.key, dict(record.headers)
        producer = headers.get(PRODUCER_HEADER)
        named = producer is not None
        who = producer.decode("utf-8", "surrogateescape") if producer is not None else ""
        if key[:1] == _PING:
            who = who or f"0x{key[1:HASH_END].hex()}"
            self._hear_ping(record)
        if ENDED_HEADER in headers:
            self._peers.ended(who, record.timestamp_ms)
        elif who:
            self._peers.heard(who, record.timestamp_ms, named=named)
        if key[:1] == _BATCH and len(key) == HASH_END:
            block_hash = key[1:]
            self._peers.batch(block_hash, who or "anonymous")
            self._arrivals.batch(record, who or "anonymous")
            if SEALED_HEADER in headers:
                if who != self._me and not self._standby.is_done(block_hash):
                    self._others_progress_at = time.monotonic()
                self._standby.done(block_hash)

    def _hear_ping(self, record: Record) -> None:
        """Of those that were appended since we are here: whether it has our id and is not ours."""
        if record.offset < self._ends.get(record[:2], 0):
            return
        with contextlib.suppress(DecodeError):
            ping = decode(record.key, record.value)
            self._foreign_pings += isinstance(ping, Ping) and self._is_anothers(ping)
