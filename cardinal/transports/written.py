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

    __slots__ = ("_lock", "_ranges", "_size", "_values")

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._values = values
        self._ranges: dict[Partition, list[int]] = {}
        """The lowest and the highest offset of each partition."""
        self._size = 0
        self._lock = threading.Lock()

    def sends(self, size: int) -> None:
        """Count sent messages, by their bytes."""
        with self._lock:
            self._size += size

    def wrote(self, seen: Iterable[tuple[str, int, int, object]]) -> None:
        """Record topic, partition and offset of acknowledged messages, for transports with offsets.

        The offset is -1 where an earlier attempt wrote the message and its response was lost.
        """
        with self._lock:
            ranges = self._ranges
            for topic, partition, offset, _ in seen:
                where = topic, partition
                known = ranges.get(where)
                if known is None:
                    ranges[where] = [offset, offset]
                elif offset > known[1]:
                    known[1] = offset
                elif offset < known[0]:
                    known[0] = offset

    def header(self, log: str) -> bytes | None:
        """The header's value, for a log of this name; None where not all positions are known.

        Called when all messages are acknowledged, before the Batch is sealed.
        """
        with self._lock:
            if self._size and not self._ranges:
                return None
            ranges: dict[Partition, tuple[int, int]] = {}
            for where, (low, high) in self._ranges.items():
                if low < 0:
                    return None
                ranges[where] = low, high + 1
            return encode_ranges(BlockRanges(log, self._size, ranges, self._values))
