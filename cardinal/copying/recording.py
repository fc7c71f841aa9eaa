"""A recording: everything of a stream, from any transport, kept in a folder with its positions.

Rules:

1. Records keep topic, partition, offset, time, key, value and headers. So a cursor of the stream goes on with the
   recording, and a recording may take a member's place in a mux (:mod:`cardinal.transports.mux`).
2. In the order of the recording every Batch comes after the rest of its block (:mod:`cardinal.copying.merging`). What
   comes in one order keeps that order, and nothing of it waits. Partitions that are added may hold content of the next
   Batch at once: they are looked for after every look at the ends, and in one order before what is behind them is kept.
3. A recording that is begun goes on where it ended, partition by partition, whatever ended it: nothing is missing and
   nothing is twice.
4. What waits in memory is bounded: partitions that are ahead are paused.
5. A transaction leaves marks that are no records, and a consumer's cursor stands behind them. The folder says every few
   minutes, and at the end, how far partitions were read: until then, or until their next record, it refuses the cursor.

Reorg channels that come while recording are noticed within seconds.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.consuming.options import cursor_of
from cardinal.copying.beginning import beginning, cannot_go_on
from cardinal.copying.merging import Merge
from cardinal.errors import CardinalError, CursorExpiredError, TopicError, TransportError, UnreachableError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.transports import OneOrderSource, list_topics, open_source, parse_url
from cardinal.transports.file import Fsync, file_settings, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

_POLL_RECORDS: Final = 500
_MARKS_SECONDS: Final = 0.3
"""A transport may answer with watermarks that are a quarter of a second old."""

_LOOK_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 2.0
_STAND_SECONDS: Final = 300.0
"""Every time costs a segment. The first time is when nothing has come for a moment, or after so long."""

_WAITING_BYTES: Final = 128 << 20
_BLOCK_BYTES: Final = 256 << 10


class Recorded(NamedTuple):
    """What was recorded in this run, and how many records lay behind it when the ends were last looked at."""

    records: int
    bytes: int
    behind: int


class Recorder:
    """Records a stream. One thread.

    Arguments:
        from_url: any transport.
        to_url: ``file://DIR``; ``fsync`` says when the disk is asked to have what was written.
        app: the application; all of its topics and its reorg channels are recorded.
        start: ``earliest``, ``latest``, the number of a block, the time from which on blocks were published, or a
            cursor (everything that resuming it needs): where the recording begins. Partitions that come later, while
            it runs or is stopped, are recorded from their beginnings.
        wait: seconds to wait for the topics to exist.
        waiting_bytes: what may wait in memory, about, before partitions that are ahead are paused.

    Raises:
        ConfigurationError: the stream does not hold the block to start with, or the time has no zone.
        ConfigurationError, UnreachableError, RefusedError, TopicError: of the transport that is read.
        CursorExpiredError: retention has removed what comes next, or what ``start`` needs.
        CursorInvalidError: ``start`` is none of these.
        LogInUseError, LogDamagedError, TransportError: of the folder.

    """

    def __init__(
        self,
        from_url: str | TransportUrl,
        to_url: str | TransportUrl,
        app: Topics,
        *,
        start: str | Cursor | int | datetime = "earliest",
        wait: float = 0.0,
        waiting_bytes: int = _WAITING_BYTES,
    ) -> None:
        self._url = parse_url(from_url)
        self._app = app
        self._start = cursor_of(start) or start
        target = parse_url(to_url)
        self._settings = file_settings(target)
        self._merge = Merge()
        self._waiting_bytes = waiting_bytes
        self._records = self._bytes = 0
        self._whole = self._unsynced = False
        self._paused: frozenset[Partition] = frozenset()
        self._marked = self._synced = 0.0
        self._looked = self._heard = self._begun = time.monotonic()
        self._stood = self._heard - _STAND_SECONDS
        self._topics = self._all_topics()
        self._source: Source = open_source(self._url, app, topics=self._topics, wait=wait)
        try:
            self._writer = open_writer(target)
        except BaseException:
            self._source.close()
            raise
        try:
            self._ends: Mapping[Partition, int] = {}
            self._begin()
            self._whole = True
            self.ends = dict(self._ends)
        except BaseException:
            self.close()
            raise

    @property
    def resumed(self) -> bool:
        """Whether the folder held a recording of this stream already."""
        return self._resumed

    @property
    def progress(self) -> Recorded:
        """How far the recording is."""
        standing = self._standing() if self._whole else {}
        recorded = self._writer.offsets
        behind = sum(
            max(0, end - max(recorded.get(where, end), standing.get(where, 0))) for where, end in self._ends.items()
        )
        return Recorded(self._records, self._bytes, behind)

    @property
    def at_end(self) -> bool:
        """Whether everything is recorded that was there at the beginning."""
        positions, waiting = self._source.positions(), self._merge.waiting
        return all(
            self._writer.offsets.get(where, 0) >= end or (where not in waiting and positions.get(where, end) >= end)
            for where, end in self.ends.items()
        )

    def step(self, timeout: float) -> int:
        """Read for at most so many seconds, record what may be recorded; how many records were read.

        Raises:
            CursorExpiredError, TopicError, RefusedError, TransportError: of either side. What is recorded stays. After
                one that took records along (a full disk), go on with a new recorder: this one says so.

        """
        if not self._whole:
            raise TransportError(
                f"the recording in {self._writer.folder} stopped at an error, and does not hold all that was read: "
                "close this recorder and open another; it goes on where the recording ends"
            )
        self._keep_bounded()
        records = self._read_some(timeout)
        now = time.monotonic()
        if now - self._marked >= _MARKS_SECONDS:
            self._marked = now
            with contextlib.suppress(UnreachableError), self._channels_may_go():  # the server is away: asked again
                self._look_at_ends()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            with contextlib.suppress(UnreachableError), self._channels_may_go():
                self._look_for_more()
        self._whole = False
        self._write(self._merge.take(self._source.positions()))
        self._whole = True
        if records:
            self._heard = now
        idle = now - self._heard >= _IDLE_SECONDS
        if now - (self._stood if idle else max(self._stood, self._begun)) >= _STAND_SECONDS:
            self._stand(now)
        return len(records)

    def close(self) -> None:
        """Have on the disk what was recorded, and how far each partition was read. May be called twice."""
        try:
            # While a beginning is looked for, and after what could not be written, positions are beyond the recording.
            if self._whole:
                with contextlib.suppress(TransportError):  # a run that has room will say so
                    self._stand(0.0)
        finally:
            self._source.close()
            self._writer.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _all_topics(self) -> tuple[str, ...]:
        """The application's topics, and those of its reorg channels that are there."""
        return (*self._app.all_topics, *sorted(filter(self._is_channel, list_topics(self._url))))

    def _is_channel(self, topic: str) -> bool:
        return topic.startswith(f"{self._app.default_topic}-re-")

    def _read_some(self, timeout: float) -> list[Record]:
        """Records that were read: written, or in the merge."""
        records: list[Record] = []
        one_order = isinstance(self._source, OneOrderSource) and self._source.one_order
        begin = self._source.positions()
        self._whole = False
        try:
            with self._channels_may_go(), self._expired_in_words():
                records = self._source.poll(_POLL_RECORDS, timeout)
                if one_order and records and self._read_added(begin):
                    records = []  # they come again, among those of what was added
        except CardinalError:
            self._whole = self._source.positions() == begin
            raise
        if one_order:
            self._write(records)
        else:
            self._merge.add(records)
        self._whole = True
        return records

    def _look_at_ends(self) -> None:
        """Then, what was added: the content of a Batch before these ends may be there, and the next ones release it."""
        ends = {where: high for where, (_, high) in self._source.watermarks().items()}
        if not self._read_added(self._source.positions()):
            self._ends = ends
            self._merge.watermarks(ends)

    def _read_added(self, positions: Mapping[Partition, int]) -> bool:
        """Read partitions that were added, and all others from these positions; whether there are any."""
        if not set(self._source.partitions()) - positions.keys():
            return False
        self._go_on(self._source, positions)
        return True

    def _look_for_more(self) -> None:
        """Read channels that were not there before."""
        topics = self._all_topics()
        if topics != self._topics:
            self._change(topics)

    @contextlib.contextmanager
    def _channels_may_go(self) -> Iterator[None]:
        """A reorg channel that is deleted is read no more; every other topic is needed."""
        try:
            yield
        except TopicError as error:
            if not self._is_channel(error.topic):
                raise
            with contextlib.suppress(UnreachableError, TopicError):  # or another one meanwhile: it is met again
                self._change(tuple(topic for topic in self._topics if topic != error.topic))

    @contextlib.contextmanager
    def _expired_in_words(self) -> Iterator[None]:
        """A recording that was begun has no other cursor to start from."""
        try:
            yield
        except CursorExpiredError as error:
            raise cannot_go_on(error, self._writer.folder) from None

    def _change(self, topics: tuple[str, ...]) -> None:
        """Go on with these topics; where their source cannot be opened, nothing has changed."""
        source = open_source(self._url, self._app, topics=topics)
        try:
            self._go_on(source, self._source.positions())
        except BaseException:
            source.close()
            raise
        self._source.close()
        self._source, self._topics = source, topics

    def _begin(self) -> None:
        """Read every partition: from where the folder ends; where it is empty, from where it was asked to begin."""
        marks = self._source.watermarks()
        self._resumed = any(where in self._writer.offsets for where in marks)
        if self._resumed:
            self._go_on(self._source, {})
        else:
            self._read(self._source, beginning(self._source, self._app, self._start, marks), marks)

    def _go_on(self, source: Source, positions: Mapping[Partition, int]) -> None:
        """Read every partition: from these positions, and what is new from its beginning."""
        marks = source.watermarks()
        known = {**self._writer.offsets, **positions}
        with self._expired_in_words():
            self._read(source, {where: known.get(where, low) for where, (low, _) in marks.items()}, marks)

    def _read(self, source: Source, begin: Mapping[Partition, int], marks: Mapping[Partition, tuple[int, int]]) -> None:
        """From these positions on; where the source fails, nothing has changed."""
        source.assign(begin)
        self._paused = frozenset()
        self._writer.declare({where: at for where, at in begin.items() if where not in self._writer.offsets})
        self._ends = {where: high for where, (_, high) in marks.items()}
        self._merge.watermarks(self._ends)

    def _keep_bounded(self) -> None:
        """Pause the partitions that are ahead, while too many bytes wait. The others are what they wait for."""
        # To pause costs what was fetched already, so reading goes on only when much of it is written.
        limit = self._waiting_bytes // 4 if self._paused else self._waiting_bytes
        wanted = self._merge.ahead if self._merge.size > limit else frozenset()
        if wanted != self._paused:
            self._paused = wanted
            self._source.pause(wanted)

    def _standing(self) -> dict[Partition, int]:
        """How far everything that was read is recorded, of the partitions of which nothing waits.

        That may be beyond the last record: transactions leave marks that are no records.
        """
        waiting = self._merge.waiting
        return {where: at for where, at in self._source.positions().items() if where not in waiting}

    def _stand(self, now: float) -> None:
        """Say in the folder how far the partitions were read."""
        standing = self._standing()
        if any(at > self._writer.offsets.get(where, -1) for where, at in standing.items()):
            self._stood = now
            self._writer.declare(standing)

    def _write(self, records: Sequence[Record]) -> None:
        for block in _blocks(records):
            written, error = self._writer.append([block])
            if error is not None:
                raise TransportError(
                    f"nothing more can be written to {self._writer.folder}: {error.strerror}; what was recorded stays, "
                    "make room and start again: it continues there"
                )
            self._records += written * len(block)
            self._bytes += sum(len(record.key) + len(record.value) for record in block)
        interval = self._settings.fsync_interval_ms / 1000 if self._settings.fsync is Fsync.INTERVAL else 0.0
        now = time.monotonic()
        self._unsynced |= bool(records) and self._settings.fsync is not Fsync.NEVER
        if self._unsynced and now - self._synced >= interval:
            self._synced, self._unsynced = now, False
            self._writer.sync()


def _blocks(records: Sequence[Record]) -> Iterator[list[Record]]:
    """In pieces that are decoded at once."""
    block: list[Record] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record.key) + len(record.value)
        if size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block
