"""Partitions that the Kafka client has stopped reading, without a word.

Rules:

1. librdkafka may leave a partition where it is after its leader's epoch has changed: no record of it comes any more,
   and no error (its issue 4492 is one way; seen with 2.16 after a starved broker had been fenced: one partition of 520,
   for seventeen minutes, while all others were read, and neither a seek nor a new assignment helped). Whoever puts
   blocks in order would stand still for ever. A new client reads on.
2. It is one where the broker had more of a partition than was read, at looks ten seconds apart, and nothing of it came
   for longer than an answer of the broker may take: over a slow line, all partitions may be in one that is on its way,
   and whoever gives that up gets no farther. A paused partition is none.
3. What was fetched may wait for its reader. So the time counts in which somebody polls, and of that the time until a
   poll brought nothing; where every poll brings records of others, three times as long has to do.
4. Looks are taken beside the reading. Where no broker answers, all begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition

PATIENCE_SECONDS: Final = 10.0
_BUSY: Final = 3
"""Times as long where every poll brings something."""
_STEP_SECONDS: Final = 1.0
"""What counts of the time between two polls."""


class Stalled:
    """See the module. Belongs to the thread that polls.

    Arguments:
        ends: asks where every partition ends, without waiting for the answer.
        answer: seconds after which an answer of the broker has come, or was given up by the client.

    """

    def __init__(self, ends: Callable[[], Future[Mapping[Partition, int]]], answer: float) -> None:
        self._ends = ends
        self._answer = answer
        self._patience = PATIENCE_SECONDS
        self._asked: Future[Mapping[Partition, int]] | None = None
        self._behind: dict[Partition, tuple[int, float]] = {}
        """Where each partition stands that the broker had more of, and since when it is known to."""
        self._last: float | None = None
        self._polled = self._drained = 0.0
        self._next = self._patience

    def moved(self, partitions: Iterable[Partition]) -> None:
        """These are paused, or read from elsewhere: what was known of them counts no more."""
        for where in partitions:
            self._behind.pop(where, None)

    def look(
        self, now: float, positions: Mapping[Partition, int], paused: Collection[Partition], *, drained: bool
    ) -> list[Partition]:
        """After a poll: the partitions that the client does not read any more.

        Arguments:
            now: in seconds, any clock that goes forward.
            positions: the next offset of every partition that is read.
            paused: those that are not to be read now.
            drained: the poll brought nothing.

        """
        self._polled += 0.0 if self._last is None else min(now - self._last, _STEP_SECONDS)
        self._last = now
        if drained:
            self._drained = self._polled
        if self._asked is None:
            if self._polled >= self._next:
                self._asked = self._ends()
            return []
        if not self._asked.done():
            return []
        asked, self._asked = self._asked, None
        self._next = self._polled + self._patience
        before = self._behind
        try:
            ends = asked.result()
        except TransportError:
            ends = {}
        self._behind = {
            where: before[where] if where in before and before[where][0] == at else (at, self._polled)
            for where, at in positions.items()
            if at < ends.get(where, 0) and where not in paused
        }
        return [where for where, (_, since) in self._behind.items() if self._is_long(since)]

    def _is_long(self, since: float) -> bool:
        drained = self._drained > since + self._answer
        return self._polled - since >= (self._answer + self._patience) * (1 if drained else _BUSY)
