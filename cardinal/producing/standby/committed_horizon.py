"""Horizon of a reader of committed records: the moment up to which it knows everything that was written.

Rules:

1. A moment is known when everything that was written before it is read, or was aborted: the reader is past where the
   partitions ended then, whether what lay there was committed yet or not.
2. What is written after that moment is not waited for. So a stream on which there is always some transaction open is
   known as well, one transaction later; only one that does not end holds a moment up.
3. One moment is looked at at a time. Where no broker says where the partitions end, the next call looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition


class Horizon:
    """Moments that become known, one after the other.

    Arguments:
        written: where each partition ends now, by what is written; None where that cannot be said at the moment.
        read: the next offset of each partition that is read.

    """

    def __init__(
        self, written: Callable[[], Mapping[Partition, int] | None], read: Callable[[], Mapping[Partition, int]]
    ) -> None:
        self._written = written
        self._read = read
        self._moment = 0.0
        self._ends: Mapping[Partition, int] | None = None

    def reached(self, now: float) -> float | None:
        """The moment that has become known with this call, at most ``now`` (seconds, any clock); None: not yet."""
        if self._ends is None:
            self._moment, self._ends = now, self._written()
        ends = self._ends
        if ends is None or any(at < ends.get(tp, 0) for tp, at in self._read().items()):
            return None
        self._ends = None
        return self._moment
