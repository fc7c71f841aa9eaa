"""A recording played into a sink: in the recorded order, as fast as it goes or at the pace of its times.

Rules:

1. The order of each of the application's topics is the recorded one, in every partition of the sink.
2. Sealing holds: a Batch with the header ``cardinal-sealed`` is handed over when everything recorded before it is
   acknowledged. Other topics' messages are not held up by that: many blocks are under way at once.
3. Where the sink takes records as they are (:class:`~cardinal.transports.base.RecordSink`), headers are kept, the names
   of the producers among them, and times where the transport keeps times. Elsewhere the records carry the id of the
   one who replays.
4. At the pace of the recorded times, a jump of more than an hour between two records, ahead or back, is no pace: a
   record without a time, or with a wrong one, and a stream that stood still for long, keep nobody waiting.
5. Heartbeats stay behind: the sink's topics have their own.

6. Where the recording is damaged, what stands before the damage is played whole, seals and all, and then it is told.

What fails is raised; to play it again is harmless, because consumers recognise copies.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import CardinalError, TransportError
from cardinal.protocols.streams.types import Record, Routed, is_sealed
from cardinal.transports import ChannelSink, RecordSink
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
_UNDER_WAY_MAX: Final = 10_000
_PATIENCE_SECONDS: Final = 150.0
"""Longer than the Kafka client tries to deliver a message."""


class Played(NamedTuple):
    """What was handed over: records, those among them that seal a block, and bytes of keys and values."""

    records: int
    seals: int
    bytes: int


class _Later(NamedTuple):
    """A record that keeps its place in its topic. ``after``: how many hand-overs have to be acknowledged first."""

    record: Record
    after: int | None


def whole(source: Source) -> tuple[Mapping[Partition, tuple[int, int]], LogDamagedError | None]:
    """The watermarks of a recording; where it is damaged those before the damage, and what it is.

    Raises:
        LogDamagedError: it is damaged where its partitions stand.
        TransportError: see :meth:`cardinal.transports.base.Source.watermarks`.

    """
    return source.whole() if isinstance(source, FileSource) else (source.watermarks(), None)


class Player:
    """Plays a source's records, up to the ends that it has now, into a sink.

    Arguments:
        source: the recording; it is assigned anew.
        sink: of the same application.
        app: the application.
        speed: of the recording's times, 2 is twice as fast; None: as fast as it goes.
        wait: waits for so many seconds.
        clock: seconds that only grow.

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
        self._known = set(app.all_topics)
        self._speed = speed
        self._wait = wait
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._last = 0
        marks, self._damage = whole(source)
        self._ends: dict[Partition, int] = {where: high for where, (_, high) in marks.items()}
        source.assign({where: low for where, (low, _) in marks.items()})
        self._chunk: list[Record] = []
        self._lane: deque[_Later] = deque()
        self._lane_call = 0
        self._calls = self._acknowledged = 0
        self._under_way: deque[Future[None]] = deque()
        self._played = Played(0, 0, 0)

    @property
    def played(self) -> Played:
        """What was handed over until now."""
        return self._played

    @property
    def left(self) -> int:
        """Records of the recording that were not read yet."""
        positions = self._source.positions()
        return sum(max(0, end - positions.get(where, end)) for where, end in self._ends.items())

    def step(self) -> bool:
        """Play a piece; False when everything was played and is acknowledged.

        Raises:
            DeliveryError, OversizeError, TopicError, TransportError: of the sink.
            LogDamagedError, CursorExpiredError, TransportError: of the recording; all before it is acknowledged.

        """
        if not self.left:
            return self._end()
        for record in self._polled():
            if record.offset < self._ends[record.topic, record.partition] and record.key:
                self._keep_pace(record)
                self._play(record)
        self._hand_over_chunk()
        self._advance()
        return True

    # --- inside --------------------------------------------------------------------------------------------

    def _polled(self) -> list[Record]:
        try:
            return self._source.poll(_POLL_RECORDS, _POLL_SECONDS)
        except CardinalError:
            while self._work_off():
                pass
            raise

    def _play(self, record: Record) -> None:
        if record.topic in self._side:
            self._chunk.append(record)
            return
        if record.topic not in self._known:
            self._open_channel(record.topic)
        sealed = is_sealed(record.headers)
        self._hand_over_chunk()
        self._lane.append(_Later(record, self._calls if sealed else None))
        self._advance()
        while len(self._lane) + len(self._under_way) > _UNDER_WAY_MAX:
            self._await_one()
            self._advance()

    def _advance(self) -> None:
        """Hand over what its topic's order and its seal allow."""
        while self._under_way and self._under_way[0].done():
            self._await_one()
        while self._lane:
            record, after = self._lane[0]
            if after is not None and self._acknowledged < max(after, self._lane_call):
                return
            self._lane.popleft()
            self._hand_over((record,), sealed=after is not None)
            if after is None:
                self._lane_call = self._calls

    def _hand_over_chunk(self) -> None:
        if self._chunk:
            chunk, self._chunk = self._chunk, []
            self._hand_over(chunk, sealed=False)

    def _hand_over(self, records: Sequence[Record], *, sealed: bool) -> None:
        if isinstance(self._sink, RecordSink):
            future = self._sink.replay(records)
        else:
            messages = [Routed(record.topic, record.key, record.value) for record in records]
            future = self._sink.send((), messages[0]) if sealed else self._sink.send(messages, None)
        self._calls += 1
        self._under_way.append(future)
        size = sum(len(record.key) + len(record.value) for record in records)
        before = self._played
        self._played = Played(before.records + len(records), before.seals + sealed, before.bytes + size)

    def _await_one(self) -> None:
        """Wait for the oldest call; then more may be handed over."""
        if self._under_way:
            try:
                self._under_way[0].result(_PATIENCE_SECONDS)
            except TimeoutError:
                raise TransportError(
                    f"the sink acknowledged nothing for {_PATIENCE_SECONDS:.0f} s: look at it, then play again"
                ) from None
            self._under_way.popleft()
            self._acknowledged += 1

    def _end(self) -> bool:
        left = self._work_off()
        if not left and self._damage is not None:
            raise self._damage
        return left

    def _work_off(self) -> bool:
        """Hand over and have acknowledged some of what was read; whether more of it is left."""
        self._advance()
        self._await_one()
        return bool(self._lane or self._under_way)

    def _keep_pace(self, record: Record) -> None:
        """Wait until it is this record's turn."""
        if self._speed is None:
            return
        if self._began is None or abs(record.timestamp_ms - self._last) > _JUMP_MS:
            self._began = (self._clock(), record.timestamp_ms)
        self._last = record.timestamp_ms
        due = self._began[0] + (record.timestamp_ms - self._began[1]) / 1000 / self._speed
        if due > self._clock():
            self._hand_over_chunk()
        while (left := due - self._clock()) > 0:
            self._advance()
            self._wait(min(left, _SLICE_SECONDS if self._under_way or self._lane else _WAIT_SECONDS))

    def _open_channel(self, topic: str) -> None:
        if not isinstance(self._sink, ChannelSink):
            raise TransportError(f"the recording has the reorg channel {topic}, which this sink cannot carry")
        self._sink.open_channel(topic)
        self._known.add(topic)
