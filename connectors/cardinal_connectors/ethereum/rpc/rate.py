"""Adaptive batch size and rate limit of requests to a node.

Rules:

1. After a request is refused as too large, or times out, the batch size is halved.
2. After some successful full batches the size grows a little, to just below the refused size; long after a refusal that
   bound is reset, since a busy hour passes.
3. Calls per second are spread evenly, in bursts of at most one second's calls.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEPS: Final = 8
"""Successful full batches before a larger one is tried."""

FORGETS: Final = 256
"""Successful full batches before a refused size is tried again."""


class BatchSize:
    """Adaptive number of calls per batch.

    Arguments:
        most: maximum number of calls.

    """

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self._ceiling = most
        self._successes = 0
        self._since_refused = 0

    def refused(self, calls: int) -> None:
        """Record that a batch of ``calls`` was refused; of several in flight, each may be."""
        self.size = min(self.size, max(1, calls // 2))
        self._ceiling = max(self.size, min(self._ceiling, calls - 1))
        self._successes = self._since_refused = 0

    def succeeded(self, calls: int) -> None:
        """Record that a batch of ``calls`` succeeded."""
        if calls < self.size or self.size == self._most:
            return
        self._successes += 1
        self._since_refused += 1
        if self._since_refused >= FORGETS:
            self._ceiling, self._since_refused = self._most, 0
        if self._successes >= STEPS:
            self._successes = 0
            self.size = min(self._ceiling, self.size + max(1, self.size // 4))


class RateLimit:
    """Rate limit of calls.

    Arguments:
        rate: calls per second; None for no limit.
        clock: seconds.

    """

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock() if rate else 0.0

    def wait(self, calls: int) -> float:
        """Seconds to wait before sending ``calls``, which count from then on."""
        if not self._rate:
            return 0.0
        now = self._clock()
        self._due = max(self._due, now) + calls / self._rate
        return max(0.0, self._due - now - 1.0)
