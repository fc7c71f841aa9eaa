"""For every partition the lowest offset that something still needs.

Holding a block pins the offsets at which its messages begin; letting it go frees them. Each costs the logarithm of
what is held, and asking for the lowest costs the number of partitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from .types import Partition

_SLACK: Final = 64


class Pins:
    """See the module. A pin is known by a hash, or by any bytes that no hash can be."""

    def __init__(self) -> None:
        self._places: dict[bytes, Mapping[Partition, int]] = {}
        self._heaps: dict[Partition, list[tuple[int, bytes]]] = {}
        self._counts: dict[Partition, int] = {}

    def put(self, name: bytes, places: Mapping[Partition, int]) -> None:
        """Pin these offsets, in place of what this name pinned before."""
        self.discard(name)
        self._places[name] = places
        for partition, offset in places.items():
            heap = self._heaps.setdefault(partition, [])
            heapq.heappush(heap, (offset, name))
            self._counts[partition] = self._counts.get(partition, 0) + 1
            if len(heap) > 2 * self._counts[partition] + _SLACK:
                heap[:] = [entry for entry in dict.fromkeys(heap) if self._stands(partition, entry)]
                heapq.heapify(heap)

    def discard(self, name: bytes) -> None:
        """Free what this name pinned."""
        for partition in self._places.pop(name, {}):
            self._counts[partition] -= 1

    def lowest(self, aged: Callable[[bytes, Partition, int], bool]) -> dict[Partition, int]:
        """The lowest pinned offset of every partition that has one.

        Arguments:
            aged: whether a pin has lost its claim; asked only of the lowest.

        """
        found: dict[Partition, int] = {}
        for partition, heap in list(self._heaps.items()):
            while heap:
                offset, name = heap[0]
                if self._stands(partition, heap[0]) and not aged(name, partition, offset):
                    found[partition] = offset
                    break
                heapq.heappop(heap)
            else:
                del self._heaps[partition]
        return found

    def _stands(self, partition: Partition, entry: tuple[int, bytes]) -> bool:
        offset, name = entry
        places = self._places.get(name)
        return places is not None and places.get(partition) == offset
