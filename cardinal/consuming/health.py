"""Health of a source: does its server answer, and how far is the reading behind the ends of the partitions?

An answer, or a record, proves that the server is there; a request that is not answered in time, or fails, that it is
away. :meth:`Health.look` belongs to the reading thread; everything else may be called from any thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.consuming.watermarks import Marks, Watermarks
    from cardinal.protocols.streams.types import Partition

_LAG_SECONDS: Final = 10.0
"""The ends of so long ago are not read yet: the reader lags. Below it, records may just have come."""


class Health:
    """Health of a source that is read from ``positions`` on."""

    def __init__(self, watermarks: Watermarks, positions: Mapping[Partition, int]) -> None:
        self._watermarks = watermarks
        self._positions = positions
        self._target = watermarks.newest
        """Replaced by the newest ends when it is reached."""
        self._target_at = self._read_at = time.monotonic()

    @property
    def connected(self) -> bool:
        """The server answers. Judged by the newest request, also while nobody reads."""
        away = self._watermarks.away_since
        return away is None or self._read_at > away

    @property
    def last_read_at(self) -> float:
        """Time of the last records, or of the last request for watermarks that the server answered."""
        return max(self._read_at, self._watermarks.newest_at)

    @property
    def lag(self) -> int:
        """Offsets between the positions and the last known ends of all partitions."""
        return self._behind(self._watermarks.newest)

    @property
    def lags(self) -> bool:
        """Ends of some seconds ago are not reached yet."""
        return time.monotonic() - self._target_at > _LAG_SECONDS and self._behind(self._target) > 0

    @property
    def lag_seconds(self) -> float:
        """Seconds since the ends were requested that are not reached yet; 0 where the newest known ones are."""
        return time.monotonic() - self._target_at if self.lag else 0.0

    def look(self, positions: Mapping[Partition, int]) -> None:
        """Take note of the positions after a poll."""
        if positions != self._positions:
            self._positions, self._read_at = positions, time.monotonic()
        newest = self._watermarks.newest
        if self._target is not newest and self._behind(self._target) == 0:
            self._target, self._target_at = newest, self._watermarks.newest_at

    def _behind(self, marks: Marks) -> int:
        positions = self._positions
        return sum(max(0, end - positions[tp]) for tp, (_, end) in marks.items() if tp in positions)
