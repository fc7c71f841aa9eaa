"""Bounded containers: a heap with lazy deletion, and a dictionary that evicts its oldest entry."""

from __future__ import annotations

import heapq
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P", bound=Any)

_SLACK: Final = 64


class LazyHeap(Generic[P, K]):
    """Keys by priority, lowest first. Removing a key costs nothing until its entry reaches the top of the heap."""

    def __init__(self) -> None:
        self._live: dict[K, P] = {}
        self._heap: list[tuple[P, K]] = []

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._live)

    def put(self, key: K, priority: P) -> None:
        """Add a key, or change its priority."""
        self._live[key] = priority
        heapq.heappush(self._heap, (priority, key))
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(priority, key) for key, priority in self._live.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Remove a key, if it is present."""
        self._live.pop(key, None)

    def lowest(self) -> tuple[P, K] | None:
        """The lowest priority and its key; None when empty."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


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
