"""Source on a folder, while one process may be writing.

Rules:

1. While nothing is paused, records of all partitions come in the order in which they were written.
2. Only complete, checked blocks are read. A poll that waits looks at the end of the log after growing pauses: a new
   record is seen within 25 ms.
3. A paused partition keeps its position. When it is resumed, reading returns there and skips the records that the
   other partitions delivered already.
4. Queries use a log of their own, under a lock: any thread may make them while another one reads.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, CursorExpiredError, TopicError, TransportError
from cardinal.transports.base import Capabilities, Source
from cardinal.transports.expired import check_positions, expired

from .log import Log, Position
from .segments import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cardinal.errors import LogDamagedError
    from cardinal.protocols.streams.types import Partition, Record

_REMEDY: Final = ", or raise retention.bytes"
_CAUSE: Final = "the folder was recreated, or its disk lost unsynced data; restart from the earliest record"
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.025
_TOPICS_SECONDS: Final = 0.05
_POLL_BYTES: Final = 8 << 20
"""A poll ends with the block in which its values reach this: a poll is held in memory."""


class FileSource(Source):
    """Source on a folder.

    Arguments:
        folder: see :mod:`.segments`.
        topics: the topics to read; None: all.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        TopicError: a topic does not exist.

    """

    capabilities = Capabilities(single_log=True)

    def __init__(self, folder: Path, topics: Sequence[str] | None, *, wait: float = 0.0) -> None:
        self._folder = folder
        self._log = Log(folder)
        self._queried = Log(folder)
        """For queries, which any thread may make under ``_querying`` while another one reads."""
        self._querying = threading.Lock()
        self._topics = None if topics is None else frozenset(topics)
        self._closed = False
        self._assigned: dict[Partition, int] = {}
        self._paused: dict[Partition, Position] = {}
        self._position = Position(0, 0)
        self._next = self._position
        self._block: Sequence[Record] = ()
        self._in_block = 0
        self._wait_for_topics(wait)

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics, sorted."""
        with self._query() as log:
            partitions = log.partitions()
        return tuple(tp for tp in partitions if self._topics is None or tp[0] in self._topics)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read from these positions on: see :meth:`cardinal.transports.base.Source.assign`.

        Raises:
            LogDamagedError: a position is beyond the damage that :meth:`watermarks` reports.

        """
        watermarks, damage = self.whole()
        if damage is not None and any(at > watermarks[tp][1] for tp, at in positions.items() if tp in watermarks):
            raise damage
        check_positions(positions, watermarks, f"in {self._folder}", remedy=_REMEDY, cause=_CAUSE)
        self._assigned = dict(positions)
        self._paused = {}
        with readable(self._folder):
            self._seek(self._log.find(positions))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = frozenset(partitions) & self._assigned.keys()
        resumed = {tp: self._paused.pop(tp) for tp in self._paused.keys() - wanted}
        for tp in wanted - self._paused.keys():
            self._paused[tp] = self._position
        if resumed and (back := min(resumed.values())) <= self._position:
            self._seek(back)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in the order of the log; empty after ``timeout`` seconds without any.

        Fewer of large ones: see :data:`_POLL_BYTES`.

        Raises:
            CursorExpiredError: the next segments have expired meanwhile, or the current one was replaced.
            LogDamagedError: bytes are not what was written.
            TransportError: the source is closed, or a file cannot be read.

        Records before an error are delivered first, and the error is raised by the next call.
        """
        self._check_open()
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            with readable(self._folder):
                records = self._read(limit)
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        return dict(self._assigned)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the one after the last readable record, of every partition.

        Raises:
            LogDamagedError: bytes after the last readable record are not what was written.

        """
        watermarks, damage = self.whole()
        if damage is not None:
            raise damage
        return watermarks

    def whole(self) -> tuple[dict[Partition, tuple[int, int]], LogDamagedError | None]:
        """As :meth:`watermarks`; in a damaged log, the offsets before the damage, and its error."""
        with self._query() as log:
            (ends, damage), starts = log.whole(), log.starts()
        return {tp: (starts.get(tp, 0), ends.get(tp, 0)) for tp in self.partitions()}, damage

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        with self._query() as log:
            offsets = log.from_time(timestamp_ms)
        return {tp: offsets.get(tp, 0) for tp in self.partitions()}

    def close(self) -> None:
        """Release the files. May be called twice."""
        self._closed = True
        self._log.close()
        with self._querying:
            self._queried.close()

    # --- inside --------------------------------------------------------------------------------------------

    @contextmanager
    def _query(self) -> Iterator[Log]:
        """The log for queries, for one thread at a time."""
        with self._querying, readable(self._folder):
            self._check_open()  # under the lock: no file is opened after close()
            yield self._queried

    def _read(self, limit: int) -> list[Record]:
        """Records that can be read now: up to ``limit``, and not much more than :data:`_POLL_BYTES`."""
        records: list[Record] = []
        size = 0
        while len(records) < limit and size < _POLL_BYTES and len(self._paused) < len(self._assigned):
            before = len(records)
            while self._in_block < len(self._block) and len(records) < limit:
                record = self._block[self._in_block]
                self._in_block += 1
                tp = (record.topic, record.partition)
                if self._assigned.get(tp, record.offset + 1) <= record.offset and tp not in self._paused:
                    self._assigned[tp] = record.offset + 1
                    records.append(record)
            size += sum([len(record.value) for record in records[before:]])  # a list is quicker
            try:
                if self._in_block == len(self._block) and not self._advance():
                    break
            except (CardinalError, OSError):
                if not records:
                    raise
                break  # the next call raises it
        return records

    def _advance(self) -> bool:
        """Read the next block; False where there is none yet."""
        self._seek(self._next)
        if self._log.lost(self._position):
            raise CursorExpiredError(
                f"a segment of {self._folder} was cut off, removed or replaced where it was read: restart from the "
                "earliest retained record",
                missing={tp: (at, at) for tp, at in self._assigned.items()},
            )
        block = self._log.read(self._position)
        if block is not None:
            self._block = block.records
            self._next = Position(self._position.number, block.end)
            return True
        following = self._log.after(self._position)
        if following is None:
            return False
        if not following.adjoins:
            self._check_kept(following.offsets)
        for tp, offset in following.offsets.items():
            # A recording has the gaps of the transport that it was made from.
            if tp not in self._paused and self._assigned.get(tp, offset) < offset:
                self._assigned[tp] = offset
        self._seek(following.position)
        return True

    def _seek(self, position: Position) -> None:
        self._position = self._next = position
        self._block, self._in_block = (), 0

    def _wait_for_topics(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while absent := (self._topics or frozenset()) - {topic for topic, _ in self.partitions()}:
            if time.monotonic() >= deadline:
                topic = min(absent)
                raise TopicError(
                    f"the topic {topic} is not in {self._folder}: start a producer or a recording there first, "
                    "or check application and chain id",
                    topic=topic,
                )
            time.sleep(_TOPICS_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("this source is closed; open another one")

    def _check_kept(self, starts: Mapping[Partition, int]) -> None:
        """CursorExpiredError where a removed segment held records of assigned partitions."""
        gone = {
            tp: (at, starts[tp])
            for tp, at in self._assigned.items()
            if tp not in self._paused and at < starts.get(tp, 0)
        }
        if gone:
            raise expired(gone, f"in {self._folder}", remedy=_REMEDY, cause=_CAUSE)
