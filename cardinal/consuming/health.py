"""Health of a source: does its server answer, and how far is the reading behind the ends of the partitions?

Watermarks are requested every two seconds while somebody reads, on another thread. An answer, or a record, proves that
the server is there; one that does not come in time, or fails, that it is away. :meth:`Health.look` belongs to the
reading thread; everything else may be called from any thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source

_LOOK_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 3.0
_LAG_SECONDS: Final = 10.0
"""The ends of so long ago are not read yet: the reader lags. Below it, records may just have come."""


class Health:
    """Health of a source that is read from ``positions`` on, up to ``ends`` at opening.

    Attributes:
        last_read_at: when the server last delivered records or watermarks, by ``time.monotonic()``.

    """

    def __init__(self, source: Source, positions: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        self._source = source
        self._request: Future[dict[Partition, tuple[int, int]]] | None = None
        self._requested = self._target_at = self.last_read_at = time.monotonic()
        self._unreachable = False
        self._positions = positions
        self._ends = self._target = ends
        # The target is replaced by the newest ends when it is reached.

    @property
    def connected(self) -> bool:
        """The server answers. Judged by the newest request, also while nobody reads."""
        request = self._request
        if self.last_read_at > self._requested or request is None:
            return not self._unreachable
        if request.done():
            return request.exception() is None
        return not self._unreachable and time.monotonic() - self._requested < _ANSWER_SECONDS

    @property
    def lag(self) -> int:
        """Offsets between the positions and the last known ends of all partitions."""
        return self._behind(self._ends)

    @property
    def lags(self) -> bool:
        """Ends of some seconds ago are not reached yet."""
        return time.monotonic() - self._target_at > _LAG_SECONDS and self._behind(self._target) > 0

    @property
    def lag_seconds(self) -> float:
        """Seconds since the ends were requested that are not reached yet; 0 where the newest known ones are."""
        return time.monotonic() - self._target_at if self._behind(self._ends) else 0.0

    def look(self, positions: Mapping[Partition, int]) -> None:
        """Take note of the positions after a poll, take an answer if there is one, request the next."""
        now = time.monotonic()
        if positions != self._positions:
            self._positions, self.last_read_at, self._unreachable = positions, now, False
        request = self._request
        if request is not None and request.done():
            self._unreachable = request.exception() is not None
            if not self._unreachable:
                self._ends = {tp: high for tp, (_, high) in request.result().items()}
                self.last_read_at = now
                if self._behind(self._target) == 0:
                    self._target, self._target_at = self._ends, now
            self._request = None
        if self._request is None and now - self._requested >= _LOOK_SECONDS:
            self._requested = now
            self._request = run_in_thread(self._source.watermarks, "cardinal-health")

    def _behind(self, ends: Mapping[Partition, int]) -> int:
        positions = self._positions
        return sum(max(0, end - positions[tp]) for tp, end in ends.items() if tp in positions)
