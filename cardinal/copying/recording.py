"""Recording of a complete stream, from any transport, in a folder with its positions.

1. Records keep topic, partition, offset, time, key, value and headers. So a cursor of the stream resumes from the
   recording, and a recording may replace a member of a mux (:mod:`cardinal.transports.mux`).
2. Every Batch comes after the rest of its block (:mod:`cardinal.copying.merging`). A source in one order keeps that
   order, and none of its records wait. Added partitions may hold content of the next Batch at once: they are searched
   after every request of watermarks, and in one order before later records are kept.
3. A recording resumes where it ended, partition by partition, after any end: nothing is missing and nothing is twice.
4. A transaction leaves markers that are no records, and a consumer's cursor lies behind them. Every few minutes, and
   at the end, the positions read are declared in the folder: until then, or until the next record of the partition, it
   refuses the cursor.

Partitions that are ahead are paused while too many bytes wait. New reorg channels are noticed within seconds.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.consuming.options import cursor_of
from cardinal.copying.beginning import beginning, cannot_resume
from cardinal.copying.merging import Merge
from cardinal.errors import CardinalError, CursorExpiredError, TopicError, TransportError, UnreachableError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.transports import list_topics, open_source, parse_url
from cardinal.transports.file import Fsync, file_settings, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

_POLL_RECORDS: Final = 500
_WATERMARKS_SECONDS: Final = 0.3
"""A transport may answer with watermarks that are a quarter of a second old."""

_TOPICS_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 2.0
_DECLARE_SECONDS: Final = 300.0
"""Every declaration costs a segment. The first one comes when nothing was read for a moment, or after this time."""

_WAITING_BYTES: Final = 128 << 20
_BLOCK_BYTES: Final = 256 << 10


class RecordingProgress(NamedTuple):
    """Records recorded in this run, and the lag behind the watermarks when they were last requested."""

    records: int
    bytes: int
    behind: int


class Recorder:
    """Records a stream. One thread.

    Arguments:
        from_url: any transport.
        to_url: ``file://DIR``; ``fsync`` is the policy for flushing to the disk.
        app: the application; all of its topics and its reorg channels are recorded.
        start: ``earliest``, ``latest``, the number of a block, the time from which on blocks were published, or a
            cursor (everything that resuming it needs): the first record. Partitions that are added later, while it
            runs or is stopped, are recorded from their beginnings.
        wait: seconds to wait for the topics to exist.
        waiting_bytes: approximate bytes that may wait in memory before partitions that are ahead are paused.

    Raises:
        ConfigurationError: the stream does not hold the block to start with, or the time has no zone.
        ConfigurationError, UnreachableError, RefusedError, TopicError: of the transport that is read.
        CursorExpiredError: the next records, or those that ``start`` needs, have expired.
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
        self._syncs = file_settings(target).fsync is Fsync.ALWAYS
        self._merge = Merge()
        self._waiting_bytes = waiting_bytes
        self._records = self._bytes = 0
        self._consistent = False
        self._paused: frozenset[Partition] = frozenset()
        self._watermarks_at = 0.0
        self._topics_checked_at = self._last_read_at = self._begun_at = time.monotonic()
        self._declared_at = self._last_read_at - _DECLARE_SECONDS
        self._topics = self._all_topics()
        self._source: Source = open_source(self._url, app, topics=self._topics, wait=wait)
        try:
            self._writer = open_writer(target)
        except BaseException:
            self._source.close()
            raise
        try:
            self._watermarks: Mapping[Partition, int] = {}
            self._begin()
            self._consistent = True
            self.target = dict(self._watermarks)
        except BaseException:
            self.close()
            raise

    @property
    def resumed(self) -> bool:
        """True when the folder held a recording of this stream already."""
        return self._resumed

    @property
    def progress(self) -> RecordingProgress:
        """The progress of the recording."""
        recorded_to = self._recorded_positions() if self._consistent else {}
        recorded = self._writer.offsets
        behind = sum(
            max(0, end - max(recorded.get(tp, end), recorded_to.get(tp, 0))) for tp, end in self._watermarks.items()
        )
        return RecordingProgress(self._records, self._bytes, behind)

    @property
    def at_end(self) -> bool:
        """True when everything that was there at the beginning is recorded."""
        positions, waiting = self._source.positions(), self._merge.waiting
        return all(
            self._writer.offsets.get(tp, 0) >= end or (tp not in waiting and positions.get(tp, end) >= end)
            for tp, end in self.target.items()
        )

    def step(self, timeout: float) -> int:
        """Read for at most ``timeout`` seconds, and record what may be recorded; returns the number of records read.

        Raises:
            CursorExpiredError, TopicError, RefusedError, TransportError: of either side. Recorded data stays. After an
                error that lost records in memory (a full disk), use a new recorder: this one refuses to continue.

        """
        if not self._consistent:
            raise TransportError(
                f"the recording in {self._writer.folder} stopped at an error, and does not hold all that was read: "
                "close this recorder and open another, which resumes where the recording ends"
            )
        self._keep_bounded()
        records = self._read_some(timeout)
        now = time.monotonic()
        if now - self._watermarks_at >= _WATERMARKS_SECONDS:
            self._watermarks_at = now
            with contextlib.suppress(UnreachableError), self._channels_may_go():  # the server is unreachable: retried
                self._update_watermarks()
        if now - self._topics_checked_at >= _TOPICS_SECONDS:
            self._topics_checked_at = now
            with contextlib.suppress(UnreachableError), self._channels_may_go():
                self._look_for_channels()
        self._consistent = False
        self._write(self._merge.take(self._source.positions()))
        self._consistent = True
        if records:
            self._last_read_at = now
        idle = now - self._last_read_at >= _IDLE_SECONDS
        if now - (self._declared_at if idle else max(self._declared_at, self._begun_at)) >= _DECLARE_SECONDS:
            self._declare_positions(now)
        return len(records)

    def close(self) -> None:
        """Flush the recording and the positions read to the disk. May be called twice."""
        try:
            # While a beginning is searched, and after a failed write, positions are beyond the recording.
            if self._consistent:
                with contextlib.suppress(TransportError):  # the next run, with free space, declares them
                    self._declare_positions(0.0)
        finally:
            self._source.close()
            self._writer.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _all_topics(self) -> tuple[str, ...]:
        """The application's topics, and those of its existing reorg channels."""
        return (*self._app.all_topics, *sorted(filter(self._is_channel, list_topics(self._url))))

    def _is_channel(self, topic: str) -> bool:
        return topic.startswith(f"{self._app.default_topic}-re-")

    def _read_some(self, timeout: float) -> list[Record]:
        """Read records, and write them or add them to the merge."""
        records: list[Record] = []
        one_order = self._source.capabilities.single_log
        begin = self._source.positions()
        self._consistent = False
        try:
            with self._channels_may_go(), self._explain_expired():
                records = self._source.poll(_POLL_RECORDS, timeout)
                if one_order and records and self._read_added(begin):
                    records = []  # they are re-read, in order with those of the added partitions
        except CardinalError:
            self._consistent = self._source.positions() == begin
            raise
        if one_order:
            self._write(records)
        else:
            self._merge.add(records)
        self._consistent = True
        return records

    def _update_watermarks(self) -> None:
        """Take new watermarks, unless partitions were added: those may hold content of a Batch below the watermarks."""
        watermarks = {tp: high for tp, (_, high) in self._source.watermarks().items()}
        if not self._read_added(self._source.positions()):
            self._watermarks = watermarks
            self._merge.watermarks(watermarks)

    def _read_added(self, positions: Mapping[Partition, int]) -> bool:
        """Read added partitions, and all others from these positions; returns True when there are any."""
        if not set(self._source.partitions()) - positions.keys():
            return False
        self._read_on(self._source, positions)
        return True

    def _look_for_channels(self) -> None:
        """Read channels that are new."""
        topics = self._all_topics()
        if topics != self._topics:
            self._change(topics)

    @contextlib.contextmanager
    def _channels_may_go(self) -> Iterator[None]:
        """Stop reading a reorg channel that is deleted; every other topic is needed."""
        try:
            yield
        except TopicError as error:
            if not self._is_channel(error.topic):
                raise
            with contextlib.suppress(UnreachableError, TopicError):  # another one was deleted meanwhile: retried
                self._change(tuple(topic for topic in self._topics if topic != error.topic))

    @contextlib.contextmanager
    def _explain_expired(self) -> Iterator[None]:
        """Raise CursorExpiredError in the words of a recording, which has no other cursor to start from."""
        try:
            yield
        except CursorExpiredError as error:
            raise cannot_resume(error, self._writer.folder) from None

    def _change(self, topics: tuple[str, ...]) -> None:
        """Continue with these topics; where their source cannot be opened, nothing changes."""
        source = open_source(self._url, self._app, topics=topics)
        try:
            self._read_on(source, self._source.positions())
        except BaseException:
            source.close()
            raise
        self._source.close()
        self._source, self._topics = source, topics

    def _begin(self) -> None:
        """Read every partition: from the folder's end; with an empty folder, from the requested start."""
        watermarks = self._source.watermarks()
        self._resumed = any(tp in self._writer.offsets for tp in watermarks)
        if self._resumed:
            self._read_on(self._source, {})
        else:
            self._read(self._source, beginning(self._source, self._app, self._start, watermarks), watermarks)

    def _read_on(self, source: Source, positions: Mapping[Partition, int]) -> None:
        """Read every partition: from these positions, and new ones from their beginning."""
        watermarks = source.watermarks()
        positions = {**self._writer.offsets, **positions}
        with self._explain_expired():
            self._read(source, {tp: positions.get(tp, low) for tp, (low, _) in watermarks.items()}, watermarks)

    def _read(
        self, source: Source, begin: Mapping[Partition, int], watermarks: Mapping[Partition, tuple[int, int]]
    ) -> None:
        """Read from these positions on; where the source fails, nothing changes."""
        source.assign(begin)
        self._paused = frozenset()
        self._writer.declare({tp: at for tp, at in begin.items() if tp not in self._writer.offsets})
        self._watermarks = {tp: high for tp, (_, high) in watermarks.items()}
        self._merge.watermarks(self._watermarks)

    def _keep_bounded(self) -> None:
        """Pause the partitions that are ahead, while too many bytes wait. They wait for records of the others."""
        # A pause discards records that were fetched already, so reading resumes only when much is written.
        limit = self._waiting_bytes // 4 if self._paused else self._waiting_bytes
        wanted = self._merge.ahead if self._merge.size > limit else frozenset()
        if wanted != self._paused:
            self._paused = wanted
            self._source.pause(wanted)

    def _recorded_positions(self) -> dict[Partition, int]:
        """The positions up to which everything that was read is recorded, of the partitions of which nothing waits.

        That may be beyond the last record: transactions leave markers that are no records.
        """
        waiting = self._merge.waiting
        return {tp: at for tp, at in self._source.positions().items() if tp not in waiting}

    def _declare_positions(self, now: float) -> None:
        """Declare the positions read in the folder."""
        recorded_to = self._recorded_positions()
        if any(at > self._writer.offsets.get(tp, -1) for tp, at in recorded_to.items()):
            self._declared_at = now
            self._writer.declare(recorded_to)

    def _write(self, records: Sequence[Record]) -> None:
        for block in _blocks(records):
            written, error = self._writer.append([block])
            if error is not None:
                raise TransportError(
                    f"nothing more can be written to {self._writer.folder}: {error.strerror}; the recording is intact: "
                    "free space on the disk and restart, it resumes where it ended"
                )
            self._records += written * len(block)
            self._bytes += sum(len(record.key) + len(record.value) for record in block)
        if records and self._syncs:
            self._writer.sync()


def _blocks(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Groups of records that are decoded together."""
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
