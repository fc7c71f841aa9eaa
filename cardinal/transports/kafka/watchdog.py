"""Watchdog for partitions that the Kafka client no longer fetches.

librdkafka may silently stop fetching a partition after its leader's epoch has changed (its issue 4492 is one case; seen
with 2.16 after a starved broker had been fenced: one of 520 partitions for seventeen minutes, until a new client
replaced it; a seek or a new assignment does not help). Such a partition has unread records on the broker and delivered
nothing during a minute of polls that drained the client's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition

PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 1.0
"""Upper bound of the time that is counted between two polls."""


class Watchdog:
    """Watchdog of a source. Belongs to the polling thread.

    Arguments:
        ends: queries the end of every partition; called on another thread.

    """

    def __init__(self, ends: Callable[[], Mapping[Partition, int]]) -> None:
        self._ends = ends
        self._request: Future[Mapping[Partition, int]] | None = None
        self._behind: dict[Partition, tuple[int, float]] = {}
        """Position of each partition with unread records, and the time since when."""
        self._last: float | None = None
        self._polled = 0.0
        self._next = _LOOK_SECONDS

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that are paused or reassigned."""
        for tp in partitions:
            self._behind.pop(tp, None)

    def check(
        self, now: float, positions: Mapping[Partition, int], paused: Collection[Partition], *, drained: bool
    ) -> list[Partition]:
        """The partitions that are no longer fetched, after a poll.

        Arguments:
            now: time of the poll, in seconds of a monotonic clock.
            positions: the next offset of each partition.
            paused: the paused partitions.
            drained: the poll left no fetched records.

        """
        self._polled += min(now - self._last, _STEP_SECONDS) if drained and self._last is not None else 0.0
        self._last = now
        if self._request is None:
            if self._polled >= self._next:
                self._request = run_in_thread(self._ends, "cardinal-kafka-watchdog")
            return []
        if not self._request.done():
            return []
        request, self._request = self._request, None
        self._next = self._polled + _LOOK_SECONDS
        try:
            ends = request.result()
        except TransportError:
            ends = {}
        before = self._behind
        self._behind = {
            tp: before[tp] if tp in before and before[tp][0] == at else (at, self._polled)
            for tp, at in positions.items()
            if at < ends.get(tp, 0) and tp not in paused
        }
        return [tp for tp, (_, since) in self._behind.items() if self._polled - since >= PATIENCE_SECONDS]
