"""Positions of a block's content, for the header ``cardinal-ranges`` of its Batch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cardinal.protocols.streams.wire.ranges import BlockRanges, encode_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams.types import Partition


class Written:
    """Positions of a block's content, collected as its messages are acknowledged.

    Arguments:
        values: by path, the values of the content that the chain depends on.

    """

    __slots__ = ("_lock", "_ranges", "_size", "_unknown", "_values")

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._values = values
        self._ranges: dict[Partition, tuple[int, int]] = {}
        self._size = 0
        self._unknown = False
        self._lock = threading.Lock()

    def sends(self, size: int) -> None:
        """Count sent messages, by their bytes."""
        with self._lock:
            self._size += size

    def wrote(self, seen: Iterable[tuple[str, int, int, object]]) -> None:
        """Record topic, partition and offset of acknowledged messages, for transports with offsets.

        The offset is -1 where an earlier attempt wrote the message and its response was lost.
        """
        topic, partition, low, high = "", -1, 0, -1
        with self._lock:
            for tp, number, offset, _ in seen:  # they come in runs of one partition
                if number != partition or tp != topic:
                    self._widen(topic, partition, low, high)
                    topic, partition, low, high = tp, number, offset, offset
                elif offset > high:
                    high = offset
                elif offset < low:
                    low = offset
            self._widen(topic, partition, low, high)

    def _widen(self, topic: str, partition: int, low: int, high: int) -> None:
        if partition >= 0:
            known_low, known_high = self._ranges.get((topic, partition), (low, high))
            self._ranges[topic, partition] = (min(low, known_low), max(high + 1, known_high))
            self._unknown |= low < 0

    def header(self, log: str) -> bytes | None:
        """The header's value, for a log of this name; None where not all positions are known.

        Called when all messages are acknowledged, before the Batch is sealed.
        """
        with self._lock:
            if self._unknown or (self._size and not self._ranges):
                return None
            return encode_ranges(BlockRanges(log, self._size, self._ranges, self._values))
