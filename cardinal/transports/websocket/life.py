"""Whether the other side of a connection is alive: whatever comes from it says so, not only the answer to a ping.

On a slow link a ping waits behind the data, and so does its answer. A ping is only there to make the other side say
something. Both sides ask, also while they receive much: who sends much may hear nothing else.

The clock is an argument. No I/O.
"""

from __future__ import annotations


class Life:
    """See the module.

    Arguments:
        interval: seconds between two pings; the other side is gone when nothing came for two of them.
        now: seconds on the monotonic clock.

    """

    __slots__ = ("_asked", "_heard", "_pings", "interval")

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self._heard = self._asked = now
        self._pings = 0

    @property
    def patience(self) -> float:
        """Seconds of silence after which it is gone."""
        return 2 * self.interval

    def hear(self, now: float) -> None:
        """Bytes came."""
        self._heard = now

    def gone(self, now: float) -> bool:
        """Whether nothing came for too long."""
        return now - self._heard >= self.patience

    def ask(self, now: float) -> bool:
        """Whether to ping now; it counts as done."""
        due = now - self._asked >= self.interval
        if due:
            self._asked = now
            self._pings += 1
        return due

    @property
    def payload(self) -> bytes:
        """Content of the ping that is due: its number. The library would draw it from the global ``random``."""
        return self._pings.to_bytes(4, "big")

    def rest(self, now: float) -> float:
        """Seconds until there may be something to do."""
        return max(0.0, min(self._asked + self.interval, self._heard + self.patience) - now)
