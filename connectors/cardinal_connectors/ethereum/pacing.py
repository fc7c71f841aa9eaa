"""How much a node is asked for at once, and how often: learned from what it refuses, or set by whoever pays for it.

Rules:

1. A request that was refused as too large, or not answered in time, is cut in half at once; so are those that follow.
2. What was borne is tried a little larger after some full requests, up to just below what was refused; long after a
   refusal that bound is forgotten, since a busy hour passes.
3. Calls per second are spread evenly, with at most one second's worth at once.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEPS: Final = 8
"""Full requests that are borne before a larger one is tried."""

FORGETS: Final = 256
"""Full requests that are borne before a size that was refused is tried again."""


class Bearing:
    """How many calls in one request a node bears.

    Arguments:
        most: calls that are never exceeded.

    """

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self._ceiling = most
        self._borne = 0
        self._since_refused = 0

    def refused(self, calls: int) -> None:
        """A request of so many calls was too much; of many under way at once, each may say so."""
        self.size = min(self.size, max(1, calls // 2))
        self._ceiling = max(self.size, min(self._ceiling, calls - 1))
        self._borne = self._since_refused = 0

    def bore(self, calls: int) -> None:
        """A request of so many calls was answered."""
        if calls < self.size or self.size == self._most:
            return
        self._borne += 1
        self._since_refused += 1
        if self._since_refused >= FORGETS:
            self._ceiling, self._since_refused = self._most, 0
        if self._borne >= STEPS:
            self._borne = 0
            self.size = min(self._ceiling, self.size + max(1, self.size // 4))


class Throttle:
    """When the next calls may be made.

    Arguments:
        rate: calls a second; None: at once.
        clock: seconds.

    """

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock() if rate else 0.0

    def wait(self, calls: int) -> float:
        """Seconds to wait before so many calls, which are counted as made then."""
        if not self._rate:
            return 0.0
        now = self._clock()
        self._due = max(self._due, now) + calls / self._rate
        return max(0.0, self._due - now - 1.0)
