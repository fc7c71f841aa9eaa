"""For every partition the lowest offset that something still needs.

Holding a block pins the offsets at which its messages begin; letting it go frees them. Each costs the logarithm of
what is held, and asking for the lowest costs the number of partitions (:class:`Pins`).

Blocks that there was no room for are held by nobody, may be tens of thousands, and many of them never become whole:
what they pin takes no room but for their names, loses its claim with time, and is found lower than need be for a while
after some of them were freed (:class:`FadingPins`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from cardinal.protocols.streams.types import Partition

_SLACK: Final = 64
_FADING_MAX: Final = 65_536
_FREED_SHARE: Final = 8
"""The lowest offsets are found anew when more than one pin in so many was freed: so each costs the same."""


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


class FadingPins:
    """See the module. Of too many the oldest go.

    Arguments:
        distance: records after which a pin has lost its claim, counted from the first look after it was put.

    """

    def __init__(self, distance: int) -> None:
        self._distance = distance
        self._places: dict[bytes, Mapping[Partition, int]] = {}
        self._number: dict[bytes, int] = {}
        self._numbers: list[tuple[int, bytes]] = []
        self._new: dict[bytes, None] = {}
        self._since: dict[bytes, int] = {}
        self._lowest: dict[Partition, int] = {}
        self._freed = 0

    def put(self, name: bytes, places: Mapping[Partition, int], number: int | None = None) -> None:
        """Pin these offsets, beside what this name pinned before; that it is put again makes it no younger.

        Arguments:
            name: a block's hash.
            places: the offsets, all that it needs. Kept, not copied.
            number: of the block, None where it is not known.

        """
        if name not in self._places:
            self._new[name] = None
        self._places[name] = places
        if number is not None and self._number.get(name) != number:
            self._number[name] = number
            heapq.heappush(self._numbers, (number, name))
            if len(self._numbers) > 2 * len(self._number) + _SLACK:
                self._numbers = sorted((number, name) for name, number in self._number.items())
        for partition, offset in places.items():
            self.reach(partition, offset)
        if len(self._places) > _FADING_MAX:
            self.discard(next(iter(self._places)))

    def __contains__(self, name: bytes) -> bool:
        """Whether this name pins anything."""
        return name in self._places

    def reach(self, partition: Partition, offset: int) -> None:
        """Something that is pinned needs this offset as well."""
        if offset < self._lowest.get(partition, offset + 1):
            self._lowest[partition] = offset

    def discard(self, name: bytes) -> None:
        """Free what this name pinned."""
        if self._places.pop(name, None) is not None:
            self._freed += 1
            self._new.pop(name, None)
            self._since.pop(name, None)
            self._number.pop(name, None)

    def passed(self, number: int) -> None:
        """The chain is past blocks with a lower number: free what they pinned."""
        while self._numbers and self._numbers[0][0] < number:
            below, name = heapq.heappop(self._numbers)
            if self._number.get(name) == below:
                self.discard(name)

    def lowest(self, records: int) -> Mapping[Partition, int]:
        """An offset for every partition, none above the lowest that is pinned, ``records`` after the first of all."""
        self._since |= dict.fromkeys(self._new, records)
        self._new.clear()
        while self._since and records - self._since[oldest := next(iter(self._since))] > self._distance:
            self.discard(oldest)
        if self._freed * _FREED_SHARE > len(self._places):
            self._freed, self._lowest = 0, {}
            for places in self._places.values():
                for partition, offset in places.items():
                    self.reach(partition, offset)
        return self._lowest
