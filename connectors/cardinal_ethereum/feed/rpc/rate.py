"""Adaptive batch size and rate limit of requests to a node.

Rules:

1. After a request is refused as too large, or times out, the batch size is halved.
2. After some successful full batches the size grows a little, to just below the refused size; long after a refusal that
   bound is reset, since a busy hour passes.
3. Calls per second are spread evenly, in bursts of at most one second's calls.
4. While a node refuses a quarter or more of the calls because of their rate, the rate becomes what it accepts; then it
   grows by a quarter each second, up to the configured one. A rare refusal changes nothing: the call is retried.
5. A pause that the node requests holds all calls.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

STEPS: Final = 8
"""Successful full batches before a larger one is tried."""

FORGETS: Final = 256
"""Successful full batches before a refused size is tried again."""


LONGEST: Final = 3600.0
"""Longest pause in seconds that a node may request."""

WINDOW: Final = 10.0
"""Seconds of calls by which the share of refused ones is judged."""

SHARE: Final = 4
"""One of so many calls has to be refused before the rate is lowered."""

SAMPLE: Final = 20
"""Calls from which on the share of refused ones says something."""

GROWTH: Final = 1.25
FREE: Final = 10_000.0
"""Calls per second from which on a lowered rate is no limit."""


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
    """Adaptive rate limit of calls.

    Arguments:
        rate: most calls per second; None for no limit.
        clock: seconds.

    """

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self._most = rate
        self._rate = rate
        self._clock = clock
        self._due = self._grown = self._since = clock()
        self._held = 0.0
        self._accepted = self._refused = 0

    @property
    def burst(self) -> float:
        """Calls that may be sent at once; infinite without a limit."""
        return inf if self._rate is None else max(1.0, self._rate)

    @property
    def held(self) -> float:
        """Seconds left of the pause that the node requested."""
        return max(0.0, self._held - self._clock())

    def wait(self, calls: int) -> float:
        """Seconds to wait before sending ``calls``, which count from then on."""
        now = self._clock()
        self._grow(now)
        if not self._rate:
            return self.held
        self._due = max(self._due, now) + calls / self._rate
        return max(self.held, self._due - now - 1.0)

    def hold(self, seconds: float) -> None:
        """Hold all calls: the node requests this pause."""
        self._held = max(self._held, self._clock() + min(seconds, LONGEST))

    def record(self, accepted: int, refused: int) -> None:
        """Record the calls of a response; ``refused`` because of their rate.

        A request that is refused as a whole counts as one call: perhaps its size was refused, not its rate.
        """
        now = self._clock()
        if now - self._since > WINDOW:
            self._since, self._accepted, self._refused = now, 0, 0
        self._accepted += accepted
        self._refused += refused
        calls = self._accepted + self._refused
        if refused and self._accepted and calls >= SAMPLE and self._refused * SHARE >= calls:
            # A node that accepts nothing says nothing of a rate: the pauses between attempts are for it.
            slower = self._accepted / max(1.0, now - self._since)
            self._rate = max(1.0, min(slower, self._rate or slower))
            self._since, self._accepted, self._refused, self._grown = now, 0, 0, now

    def _grow(self, now: float) -> None:
        """Raise a lowered rate, and drop it far above what was seen to be refused."""
        if self._rate is None or self._rate == self._most or now - self._grown < 1.0:
            return
        self._rate *= GROWTH ** min(now - self._grown, 60.0)
        self._grown = now
        if self._rate >= (self._most or FREE):
            self._rate = self._most
