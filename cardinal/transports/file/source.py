"""Source on a folder, while one process may be writing.

Rules:

1. Records come in the order in which they were written, whatever partition they are of, as long as nothing is paused:
   the order of a recording is the order of its reading.
2. What can be read is complete and checked. While a poll waits, it looks at the end after growing pauses: there is no
   busy loop, and a new record is seen within 25 ms.
3. A partition that is paused keeps its place; when it is resumed, reading goes back there and skips what the others
   have had already.
4. Questions are answered by a log of their own, under a lock: any thread may ask them while another one reads.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, CursorExpiredError, TopicError, TransportError
from cardinal.transports.base import Capabilities, Source
from cardinal.transports.retained import expired

from .log import Log, Place
from .segments import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cardinal.errors import LogDamagedError
    from cardinal.protocols.streams.types import Partition, Record

_CAPABILITIES: Final = Capabilities(single_log=True)
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.025
_TOPICS_SECONDS: Final = 0.05
_RECENT_POLL: Final = 10_000
_POLL_BYTES: Final = 8 << 20
"""A poll ends with the block in which its values reach this: a poll is held in memory."""


class FileSource(Source):
    """Source on a folder.

    Arguments:
        folder: see :mod:`.segments`.
        topics: the topics to read; None: all that are there.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        TopicError: a topic is not there.

    """

    def __init__(self, folder: Path, topics: Sequence[str] | None, *, wait: float = 0.0) -> None:
        self._folder = folder
        self._log = Log(folder)
        self._queried = Log(folder)
        """For questions, which any thread may ask under ``_querying`` while another one reads."""
        self._querying = threading.Lock()
        self._topics = None if topics is None else frozenset(topics)
        self._closed = False
        self._assigned: dict[Partition, int] = {}
        self._paused: dict[Partition, Place] = {}
        self._place = Place(0, 0)
        self._next = self._place
        self._block: Sequence[Record] = ()
        self._in_block = 0
        self._wait_for_topics(wait)

    @property
    def capabilities(self) -> Capabilities:
        """One log of all partitions."""
        return _CAPABILITIES

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics, sorted."""
        with self._query() as log:
            there = log.partitions()
        return tuple(tp for tp in there if self._topics is None or tp[0] in self._topics)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other.

        Raises:
            CursorExpiredError: the segments with a position are gone, or it lies behind the end.
            LogDamagedError: a position lies behind what :meth:`watermarks` finds damaged.
            TopicError: there is no such partition.

        """
        marks, damage = self.whole()
        if damage is not None and any(at > marks[tp][1] for tp, at in positions.items() if tp in marks):
            raise damage
        self._check_known(positions, marks)
        self._assigned = dict(positions)
        self._paused = {}
        with readable(self._folder):
            self._go_to(self._log.find(positions))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = frozenset(partitions) & self._assigned.keys()
        resumed = {tp: self._paused.pop(tp) for tp in self._paused.keys() - wanted}
        for tp in wanted - self._paused.keys():
            self._paused[tp] = self._place
        if resumed and (back := min(resumed.values())) <= self._place:
            self._go_to(back)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in the order of the log; empty after ``timeout`` seconds without any.

        Some MiB of large ones; the next poll resumes.

        Raises:
            CursorExpiredError: segments that were to be read were removed meanwhile, or what is read was replaced.
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
        """The lowest offset that is kept and the one after the last whole record, of every partition.

        Raises:
            LogDamagedError: bytes behind the last whole record are not what was written.

        """
        marks, damage = self.whole()
        if damage is not None:
            raise damage
        return marks

    def whole(self) -> tuple[dict[Partition, tuple[int, int]], LogDamagedError | None]:
        """As :meth:`watermarks`; where there is damage, the offsets before it, and what it is.

        For readers that use what stands before the damage, and report it after that.
        """
        with self._query() as log:
            (ends, damage), starts = log.whole(), log.starts()
        return {tp: (starts.get(tp, 0), ends.get(tp, 0)) for tp in self.partitions()}, damage

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        with self._query() as log:
            found = log.from_time(timestamp_ms)
        return {tp: found.get(tp, 0) for tp in self.partitions()}

    def close(self) -> None:
        """Release the files. May be called twice."""
        self._closed = True
        self._log.close()
        with self._querying:
            self._queried.close()

    # --- inside --------------------------------------------------------------------------------------------

    @contextmanager
    def _query(self) -> Iterator[Log]:
        """The log for questions, to one thread at a time."""
        with self._querying, readable(self._folder):
            self._check_open()  # under the lock: nothing opens a file again after close()
            yield self._queried

    def _read(self, limit: int) -> list[Record]:
        """What is there, up to ``limit`` records, and not much more than :data:`_POLL_BYTES`."""
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
                break  # the next call comes upon it again
        return records

    def _advance(self) -> bool:
        """Go to the next block; False where there is none yet."""
        self._go_to(self._next)
        block = self._log.read(self._place)
        if block is not None:
            self._block = block.records
            self._next = Place(self._place.number, block.end)
            return True
        if self._log.lost(self._place):
            raise CursorExpiredError(
                f"a segment of {self._folder} was cut off, removed or replaced where it was read: start again from the "
                "start of what is kept",
                missing={tp: (at, at) for tp, at in self._assigned.items()},
            )
        following = self._log.after(self._place)
        if following is None:
            return False
        if not following.adjoins:
            self._check_kept(following.offsets)
        for tp, offset in following.offsets.items():
            # A log that keeps the offsets of another transport has its gaps as well.
            if tp not in self._paused and self._assigned.get(tp, offset) < offset:
                self._assigned[tp] = offset
        self._go_to(following.place)
        return True

    def _go_to(self, place: Place) -> None:
        self._place = self._next = place
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

    def _check_known(self, positions: Mapping[Partition, int], marks: Mapping[Partition, tuple[int, int]]) -> None:
        for tp in positions:
            if tp not in marks:
                raise TopicError(f"there is no partition {tp[1]} of {tp[0]} in {self._folder}", topic=tp[0])
        if gone := {tp: (at, marks[tp][0]) for tp, at in positions.items() if at < marks[tp][0]}:
            raise expired(gone, "retention.bytes")
        for tp, at in positions.items():
            if at > marks[tp][1]:
                raise CursorExpiredError(
                    f"{tp[0]}:{tp[1]} ends at {marks[tp][1]} in {self._folder}, before the position {at}: "
                    "the folder was made anew, or its disk lost what was not synced; start again",
                    missing={tp: (at, marks[tp][1])},
                )

    def _check_kept(self, starts: Mapping[Partition, int]) -> None:
        """CursorExpiredError where a segment between was removed with records that were to be read."""
        gone = {
            tp: (at, starts[tp])
            for tp, at in self._assigned.items()
            if tp not in self._paused and at < starts.get(tp, 0)
        }
        if gone:
            raise expired(gone, "retention.bytes")


def read_recent(folder: Path, topic: str, limit: int) -> list[Record]:
    """The newest records of a topic, at most ``limit`` a partition, in order of their positions."""
    source = FileSource(folder, (topic,))
    try:
        marks = source.watermarks()
        source.assign({tp: max(low, high - limit) for tp, (low, high) in marks.items()})
        records: list[Record] = []
        while any(at < marks[tp][1] for tp, at in source.positions().items()):
            records += [
                one for one in source.poll(_RECENT_POLL, 0.0) if one.offset < marks[one.topic, one.partition][1]
            ]
        return sorted(records, key=lambda record: record[:3])
    finally:
        source.close()
