"""Bounded containers: a heap with lazy deletion, and a dictionary that evicts its oldest entry."""

from __future__ import annotations

import heapq
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P", bound=Any)

_SLACK: Final = 64


class LazyHeap(Generic[P, K]):
    """Keys by priority, lowest first, of equal ones the first put first.

    Removing a key costs nothing until its entry reaches the top of the heap.
    """

    __slots__ = ("_heap", "_live", "_ticks")

    def __init__(self) -> None:
        self._heap: list[tuple[P, int, K]] = []
        self._live: dict[K, int] = {}
        self._ticks = 0

    def __contains__(self, key: K) -> bool:
        """True when a key is present."""
        return key in self._live

    def put(self, key: K, priority: P) -> None:
        """Add a key, or change its priority."""
        self._ticks = tick = self._ticks + 1
        self._live[key] = tick
        heapq.heappush(self._heap, (priority, tick, key))
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = sorted(each for each in self._heap if self._live.get(each[2]) == each[1])

    def discard(self, key: K) -> None:
        """Remove a key, if it is present."""
        self._live.pop(key, None)

    @property
    def lowest(self) -> P | None:
        """The lowest priority; None when empty."""
        heap = self._heap
        while heap and self._live.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self) -> K:
        """Remove and return the key of the lowest priority; there is one."""
        while True:
            _, tick, key = heapq.heappop(self._heap)
            if self._live.get(key) == tick:
                del self._live[key]
                return key

    def pop_below(self, priority: P) -> list[K]:
        """Remove and return all keys of a lower priority, in order."""
        found: list[K] = []
        heap, live = self._heap, self._live
        while heap and heap[0][0] < priority:
            _, tick, key = heapq.heappop(heap)
            if live.get(key) == tick:
                del live[key]
                found.append(key)
        return found


class BoundedDict(dict[K, V]):
    """Dictionary of at most ``most`` entries; setting one makes it the newest, and the oldest is evicted."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]
