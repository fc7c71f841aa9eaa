"""Replay of a recording into a sink: in the recorded order, as fast as possible or at the pace of its times.

1. The order of each of the application's topics is the recorded one, in every partition of the sink.
2. A Batch with the header ``cardinal-sealed`` is sent when everything recorded before it is acknowledged. Other topics'
   messages are not delayed by that: many blocks are in flight at once.
3. Where the sink takes records as they are (``Capabilities.records``), headers and times are kept. Elsewhere the
   records carry the replaying producer's id.
4. A jump of more than an hour between the times of two records, ahead or back, is skipped.
5. Heartbeats are left out: the sink's topics have their own.
6. Where the recording is damaged, everything before the damage is replayed, seals included, and then the damage is
   raised.

To replay a recording twice is harmless, because consumers recognise copies.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import CardinalError, TransportError
from cardinal.protocols.streams.types import Record, Routed, is_sealed
from cardinal.transports.file import FileSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.errors import LogDamagedError
    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Sink, Source
    from cardinal.transports.registry import Topics

_POLL_RECORDS: Final = 5_000
_POLL_SECONDS: Final = 0.2
_SLICE_SECONDS: Final = 0.02
_WAIT_SECONDS: Final = 60.0
_JUMP_MS: Final = 3_600_000
_IN_FLIGHT_MAX: Final = 10_000
_ACKNOWLEDGE_SECONDS: Final = 150.0
"""Longer than the Kafka client tries to deliver a message."""


class Played(NamedTuple):
    """Counts of a replay: records sent, those among them that seal a block, and bytes of keys and values."""

    records: int
    seals: int
    bytes: int


class _Queued(NamedTuple):
    """A record that keeps its position in its topic. ``after``: number of sends that have to be acknowledged first."""

    record: Record
    after: int | None


def readable_watermarks(source: Source) -> tuple[Mapping[Partition, tuple[int, int]], LogDamagedError | None]:
    """The watermarks of a recording; where it is damaged those before the damage, and the damage.

    LogDamagedError where the list of its partitions is damaged.
    """
    return source.whole() if isinstance(source, FileSource) else (source.watermarks(), None)


class Player:
    """Replay of a source's records, up to its current watermarks, into a sink of the same application.

    ``speed`` is relative to the recording's times, 2 is twice as fast; None: as fast as possible. ``wait`` and
    ``clock`` are in seconds.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        app: Topics,
        *,
        speed: float | None = None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._sink = sink
        self._side = frozenset(app.all_topics) - {app.default_topic}
        self._open_topics = set(app.all_topics)
        self._speed = speed
        self._wait = wait
        self._clock = clock
        self._pace_start: tuple[float, int] | None = None
        self._last = 0
        watermarks, self._damage = readable_watermarks(source)
        self._watermarks: dict[Partition, int] = {tp: high for tp, (_, high) in watermarks.items()}
        source.assign({tp: low for tp, (low, _) in watermarks.items()})
        self._chunk: list[Record] = []
        self._queue: deque[_Queued] = deque()
        self._queue_call = 0
        self._calls = self._acknowledged = 0
        self._in_flight: deque[Future[None]] = deque()
        self._played = Played(0, 0, 0)

    @property
    def played(self) -> Played:
        """The counts until now."""
        return self._played

    @property
    def left(self) -> int:
        """Records of the recording that were not read yet."""
        positions = self._source.positions()
        return sum(max(0, end - positions.get(tp, end)) for tp, end in self._watermarks.items())

    def step(self) -> bool:
        """Replay a part; returns False when everything was sent and is acknowledged.

        Raises:
            DeliveryError, OversizeError, TopicError, TransportError: of the sink.
            LogDamagedError, CursorExpiredError, TransportError: of the recording; all before it is acknowledged.

        """
        if not self.left:
            return self._end()
        for record in self._poll():
            if record.offset < self._watermarks[record.topic, record.partition] and record.key:
                self._await_due(record)
                self._play(record)
        self._send_chunk()
        self._advance()
        return True

    # --- inside --------------------------------------------------------------------------------------------

    def _poll(self) -> list[Record]:
        try:
            return self._source.poll(_POLL_RECORDS, _POLL_SECONDS)
        except CardinalError:
            while self._drain():
                pass
            raise

    def _play(self, record: Record) -> None:
        if record.topic in self._side:
            self._chunk.append(record)
            return
        if record.topic not in self._open_topics:
            self._open_channel(record.topic)
        sealed = is_sealed(record.headers)
        self._send_chunk()
        self._queue.append(_Queued(record, self._calls if sealed else None))
        self._advance()
        while len(self._queue) + len(self._in_flight) > _IN_FLIGHT_MAX:
            self._await_one()
            self._advance()

    def _advance(self) -> None:
        """Send the records that their topic's order and their seals allow."""
        while self._in_flight and self._in_flight[0].done():
            self._await_one()
        while self._queue:
            record, after = self._queue[0]
            if after is not None and self._acknowledged < max(after, self._queue_call):
                return
            self._queue.popleft()
            self._send((record,), sealed=after is not None)
            if after is None:
                self._queue_call = self._calls

    def _send_chunk(self) -> None:
        if self._chunk:
            chunk, self._chunk = self._chunk, []
            self._send(chunk, sealed=False)

    def _send(self, records: Sequence[Record], *, sealed: bool) -> None:
        if self._sink.capabilities.records:
            future = self._sink.replay(records)
        else:
            messages = [Routed(record.topic, record.key, record.value) for record in records]
            future = self._sink.send((), messages[0]) if sealed else self._sink.send(messages, None)
        self._calls += 1
        self._in_flight.append(future)
        size = sum(len(record.key) + len(record.value) for record in records)
        before = self._played
        self._played = Played(before.records + len(records), before.seals + sealed, before.bytes + size)

    def _await_one(self) -> None:
        """Wait for the oldest call; then more may be sent."""
        if self._in_flight:
            try:
                self._in_flight[0].result(_ACKNOWLEDGE_SECONDS)
            except TimeoutError:
                raise TransportError(
                    f"the sink acknowledged nothing for {_ACKNOWLEDGE_SECONDS:.0f} s: check it, then replay again"
                ) from None
            self._in_flight.popleft()
            self._acknowledged += 1

    def _end(self) -> bool:
        left = self._drain()
        if not left and self._damage is not None:
            raise self._damage
        return left

    def _drain(self) -> bool:
        """Send records that were read and await an acknowledgement; returns True while more are left."""
        self._advance()
        self._await_one()
        return bool(self._queue or self._in_flight)

    def _await_due(self, record: Record) -> None:
        """Wait until this record is due."""
        if self._speed is None:
            return
        if self._pace_start is None or abs(record.timestamp_ms - self._last) > _JUMP_MS:
            self._pace_start = (self._clock(), record.timestamp_ms)
        self._last = record.timestamp_ms
        due = self._pace_start[0] + (record.timestamp_ms - self._pace_start[1]) / 1000 / self._speed
        if due > self._clock():
            self._send_chunk()
        while (left := due - self._clock()) > 0:
            self._advance()
            self._wait(min(left, _SLICE_SECONDS if self._in_flight or self._queue else _WAIT_SECONDS))

    def _open_channel(self, topic: str) -> None:
        if not self._sink.capabilities.channels:
            raise TransportError(
                f"the recording has the reorg channel {topic}, which this sink cannot carry: use Kafka or a file"
            )
        self._sink.open_channel(topic)
        self._open_topics.add(topic)
