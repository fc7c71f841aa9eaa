"""The records between where the last batch ended and how far the topics have been read, without their content.

Rules:

1. Partitions are assigned, never subscribed, and nothing is ever committed to the broker.
2. A partition counts as read up to an offset when the source's position has passed it, so that control records, gaps
   and the end of a partition hold nothing up.
3. A broker that goes away is waited for, up to ``PATIENCE`` seconds at a time; what retention has removed is an error.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.errors import CardinalError, CursorExpiredError, TransportError

from .digested import Digester, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source

PATIENCE: Final = 300.0
"""Seconds to wait for a broker that has gone away before the query fails."""

MARKS_SECONDS: Final = 0.3
"""After so long the broker's ends are asked for anew."""

_PAUSE: Final = 0.5
_POLL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.2
_CHUNK: Final = 50_000

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


def expired(error: CursorExpiredError) -> CursorExpiredError:
    """The error for a checkpoint whose records are gone, with what to do about it in Spark."""
    where = ", ".join(
        f"{topic}:{number} {at}–{low}" for (topic, number), (at, low) in sorted(error.missing.items())[:3]
    )
    return CursorExpiredError(
        f"retention has removed records that this checkpoint still needs ({where}): start with a new checkpoint, with "
        "restartFrom=sink to go on behind the lake's end where the topics still hold it, else with a new lake; and "
        "raise retention.ms",
        missing=error.missing,
    )


class Window:
    """Reads ahead of the planner.

    Arguments:
        open_source: opens the topics; called when something is first read, and again after an error.
        digester: see :mod:`.digested`.
        patience: seconds, see rule 3.

    """

    def __init__(self, open_source: Callable[[], Source], digester: Digester, *, patience: float = PATIENCE) -> None:
        self._open_source = open_source
        self._digester = digester
        self._patience = patience
        self._source: Source | None = None
        self._assigned = False
        self._start: dict[Partition, int] = {}
        self._read: dict[Partition, int] = {}
        self._records: dict[Partition, list[Record]] = {}
        self.record_bytes = 500.0

    @property
    def start(self) -> Mapping[Partition, int]:
        """Where the window begins: everything below has been taken."""
        return self._start

    def marks(self) -> dict[Partition, tuple[int, int]]:
        """For every partition the lowest and the next offset on the broker, at most 250 ms old."""
        return self._patiently(lambda: self._opened().watermarks())

    def times(self, timestamp_ms: int) -> dict[Partition, int]:
        """For every partition the first offset that is not older."""
        return self._patiently(lambda: self._opened().offsets_for_time(timestamp_ms))

    def seek(self, pos: Mapping[Partition, int]) -> None:
        """Begin at these offsets; a window that begins there already keeps what it has read."""
        if self._start != dict(pos):
            self._start, self._read = dict(pos), dict(pos)
            self._records = {where: [] for where in pos}
            self._assigned = False
            self._patiently(self._opened)

    def fetch(self, target: Mapping[Partition, int]) -> None:
        """Read until every partition is read up to its target. Targets lie at or below the broker's ends."""
        moved = time.monotonic()
        while behind := {where for where, at in target.items() if self._read[where] < at}:
            before = dict(self._read)
            self._patiently(lambda behind=behind: self._poll(behind))  # type: ignore[misc] # mypy has no type for it
            if self._read != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > self._patience:
                (topic, number), *_ = sorted(behind)
                raise TransportError(f"nothing arrived from {topic}:{number} for {self._patience:.0f} s")

    def peek(self, end: Mapping[Partition, int]) -> list[Record]:
        """The records of [start, end)."""
        return [record for where, at in end.items() for record in self._records[where] if record.offset < at]

    def bytes(self, end: Mapping[Partition, int]) -> int:
        """The bytes of the records of [start, end) on their topics, about."""
        return sum(map(size_of, self.peek(end)))

    def take(self, end: Mapping[Partition, int]) -> None:
        """The window begins at ``end`` from now on."""
        for where, at in end.items():
            self._records[where] = [record for record in self._records[where] if record.offset >= at]
        self._start = dict(end)

    def chunks(self, low: Mapping[Partition, int], high: Mapping[Partition, int]) -> Iterator[list[Record]]:
        """The records of [low, high), a piece at a time, all partitions in step; the window begins at ``high`` then."""
        self.seek(low)
        left = sum(high[where] - at for where, at in low.items())
        while left > 0:
            share = min(1.0, _CHUNK / left)
            # every partition by the same share of what is left, rounded up so that it ends
            end = {where: at + -int(-(high[where] - at) * share // 1) for where, at in self._start.items()}
            self.fetch(end)
            records = self.peek(end)
            self.take(end)
            yield records
            left = sum(high[where] - at for where, at in end.items())

    def close(self) -> None:
        """Release the connection."""
        if self._source is not None:
            self._source.close()
            self._source = None

    # --- inside --------------------------------------------------------------------------------------------------

    def _opened(self) -> Source:
        """The source, reading where the last one stood."""
        if self._source is None:
            self._source = self._open_source()
            self._assigned = False
        if not self._assigned and self._read:
            self._source.assign(self._read)
            self._assigned = True
        return self._source

    def _poll(self, wanted: set[Partition]) -> None:
        source = self._opened()
        source.pause(self._read.keys() - wanted)
        raw = source.poll(_POLL_RECORDS, _POLL_SECONDS)
        for record in self._digester(raw):
            self._records[record.topic, record.partition].append(record)
        if raw:
            sample = raw[:: max(1, len(raw) // 64)]
            mean = sum(len(record.key) + len(record.value) + 24 for record in sample) / len(sample)
            self.record_bytes += (mean - self.record_bytes) / 8
        self._read.update(source.positions())

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Do what may meet a broker that is away; a connection that failed is opened anew where the last one stood."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return call()
            except CursorExpiredError as error:
                raise expired(error) from None
            except CardinalError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                _LOG.warning("the broker is away, trying again: %s", error)
            time.sleep(_PAUSE)
            self.close()
