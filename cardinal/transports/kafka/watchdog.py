"""Watchdog for partitions that the Kafka client no longer fetches.

librdkafka may stop fetching a partition after its leader's epoch has changed, without an error (its issue 4492 is one
way; seen with 2.16 after a starved broker had been fenced: one partition of 520, for seventeen minutes; neither a seek
nor a new assignment helped, a new client did). Such a partition is one that the broker has more of, and of which
nothing came for a minute of polls that left nothing fetched: before that its records may wait for their reader.
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
"""Counted at most of the time between two polls."""


class Watchdog:
    """Looks for such partitions. Belongs to the thread that polls.

    Arguments:
        ends: queries where every partition ends; called on another thread.

    """

    def __init__(self, ends: Callable[[], Mapping[Partition, int]]) -> None:
        self._ends = ends
        self._request: Future[Mapping[Partition, int]] | None = None
        self._behind: dict[Partition, tuple[int, float]] = {}
        """Position of each partition that the broker had more of, and since when."""
        self._last: float | None = None
        self._polled = 0.0
        self._next = _LOOK_SECONDS

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These are paused, or read from elsewhere."""
        for tp in partitions:
            self._behind.pop(tp, None)

    def look(
        self, now: float, positions: Mapping[Partition, int], paused: Collection[Partition], *, drained: bool
    ) -> list[Partition]:
        """The partitions that are no longer fetched, after a poll.

        Arguments:
            now: when it was, in seconds of any monotonic clock.
            positions: the next offset of each partition.
            paused: those that are not fetched on purpose.
            drained: it left nothing that was fetched.

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
