"""When something that is awaited is overdue: counted in blocks that came, never in time or numbers.

Numbers come from the wire and prove nothing. What is awaited is a block, or one producer's copy of a delivered one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_SLACK: Final = 1000


class Due(NamedTuple):
    """When a block is overdue or, where ``producer`` is not None, this producer's copy of it.

    ``seen_at`` tells a block from a later one of the same hash.
    """

    at: int
    block: bytes
    seen_at: int
    producer: int | None = None


class Deadlines:
    """What is awaited, in the order in which it falls due.

    Arguments:
        deadline: blocks that have to come until something is overdue.
        awaited: whether it is still awaited; what is not goes in silence.

    """

    def __init__(self, deadline: int, awaited: Callable[[Due], bool]) -> None:
        self._deadline = max(1, deadline)
        self._awaited = awaited
        self._came = 0
        self._queue: deque[Due] = deque()
        self._most = _SLACK

    def __len__(self) -> int:
        """How many there are, with those that are no longer awaited."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Due]:
        """All that is awaited still, in order; what is done with one must not add another."""
        return filter(self._awaited, self._queue)

    def expect(self, block_hash: bytes, seen_at: int, producer: int | None = None) -> None:
        """Await a block, or one producer's copy of it, from now on."""
        self._queue.append(Due(self._came + self._deadline, block_hash, seen_at, producer))
        if len(self._queue) > self._most:
            self._queue = deque(self)
            self._most = 2 * len(self._queue) + _SLACK

    def progress(self) -> Iterator[Due]:
        """One more block came; gives what is overdue now, each once."""
        self._came += 1
        while self._queue and self._queue[0].at <= self._came:
            due = self._queue.popleft()
            if self._awaited(due):
                yield due
