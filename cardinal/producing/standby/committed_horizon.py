"""Horizon of a reader of committed records: the moment up to which it knows everything that was written.

A moment is known when everything that was written before it is read, or was aborted: the reader is past where the
partitions ended then. What is written after it is not waited for: on a stream on which there is always some transaction
open moments become known too; only a transaction that does not end holds one up. One moment is looked at at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition


class Horizon:
    """Moments that become known, one after the other.

    ``written``: where each partition ends by what is written, None where that cannot be said now. ``read``: the next
    offset of each partition that is read.
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
