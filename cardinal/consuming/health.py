"""Health of a source: does its server answer, and how far is the consumer behind the ends of the partitions?

An answer, or a record, proves that the server is there; a request that is not answered in time, or fails, that it is
unreachable. Lag counts from what was delivered: a record that was read counts until its updates are handled. It counts
to the ends of the partitions: records behind an open transaction, which nobody can read yet, are missing to a reader.

:meth:`Health.look`, :meth:`Health.delivered` and :meth:`Health.delivered_below` belong to the reading thread; all
else may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.consuming.watermarks import Marks, Watermarks
    from cardinal.protocols.streams.types import Partition

_LAG_SECONDS: Final = 10.0
"""The ends of so long ago are not delivered yet: the consumer lags. Below it, records may just have come."""

_ENDS_MAX: Final = 256


class Health:
    """Health of a source that is read from ``positions`` on."""

    def __init__(self, watermarks: Watermarks, positions: Mapping[Partition, int]) -> None:
        self._watermarks = watermarks
        self._positions = self._delivered = positions
        self._read_at = time.monotonic()
        self._noting = threading.Lock()
        self._ends: list[tuple[float, Marks]] = []
        """Ends that are not delivered yet, and when they were requested or read, oldest first."""
        self._noted: Marks = {}

    @property
    def connected(self) -> bool:
        """The server answers. Judged by the newest request, also while nobody reads."""
        since = self._watermarks.unreachable_since
        return since is None or self._read_at > since

    @property
    def last_read_at(self) -> float:
        """Time of the last records, or of the last request for watermarks that the server answered."""
        return max(self._read_at, self._watermarks.newest_at)

    @property
    def lag(self) -> int:
        """Offsets between the delivered positions and the last known ends of all partitions."""
        positions = self._positions  # may be beyond the ends of the last answer
        ends = {tp: (low, max(end, positions.get(tp, 0))) for tp, (low, end) in self._watermarks.ends.items()}
        return self._behind(ends)

    @property
    def lags(self) -> bool:
        """Ends of some seconds ago are not delivered yet."""
        return self.lag_seconds > _LAG_SECONDS

    @property
    def lag_seconds(self) -> float:
        """Seconds since the oldest ends that are not delivered yet were requested or read; 0 where all are."""
        self._note()
        ends = self._ends[:1]
        return time.monotonic() - ends[0][0] if ends else 0.0

    def refresh(self, seconds: float) -> None:
        """Query the ends where the last answer is some seconds old; ``seconds``: the wait at most."""
        self._watermarks.refresh(seconds)

    def look(self, positions: Mapping[Partition, int]) -> None:
        """Take note of the positions after a poll."""
        if positions != self._positions:
            self._positions, self._read_at = positions, time.monotonic()
            self._note()
            with self._noting:
                self._ends.append((self._read_at, {tp: (0, at) for tp, at in positions.items()}))

    def delivered(self) -> None:
        """Take note that everything that was read is delivered."""
        self._delivered = self._positions
        self._note()

    def delivered_below(self, floor: Mapping[Partition, int]) -> None:
        """Take note that everything below these offsets is delivered."""
        self._delivered = {tp: max(at, floor.get(tp, at)) for tp, at in self._delivered.items()}
        self._note()

    def _note(self) -> None:
        """Add the newest ends, and remove those that are delivered."""
        with self._noting:
            at, newest, ends = self._watermarks.newest_at, self._watermarks.ends, self._ends
            if not ends or self._noted != newest:
                ends.append((at, newest))
                self._noted = newest
            while ends and not self._behind(ends[0][1]):
                del ends[0]
            if len(ends) > _ENDS_MAX:  # of a lag of hours every other one suffices
                del ends[1:-1:2]

    def _behind(self, marks: Marks) -> int:
        delivered = self._delivered
        return sum(max(0, end - delivered[tp]) for tp, (_, end) in marks.items() if tp in delivered)
