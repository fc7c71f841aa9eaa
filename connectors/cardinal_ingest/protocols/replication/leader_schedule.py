"""Turns: who leads, and how long members wait for it.

Rules:

1. The clock is the highest agreed number, common to all through the log; skipped turns are added to it.
2. Work that waits for ``turn_timeout`` without a valid claim skips a turn. The wait doubles until the next valid claim:
   with constant timers, links that are slower than these never see a leader for long enough.
3. Skips of a valid claim are everybody's. Until then each member counts its own, and those of Propose messages.
"""

from __future__ import annotations

from math import inf

from cardinal_ingest.protocols.cbor import WORD_32

from .settings import ReplicationSettings


def doubled(wait: float, times: int, most: float) -> float:
    """A wait after so many failures."""
    return min(most, wait * 2.0 ** min(times, 64))


class Turns:
    """Timers of one member, between two valid claims."""

    __slots__ = ("_proposals", "_settings", "_timeouts", "_waiting_since", "skips")

    def __init__(self, settings: ReplicationSettings, skips: int) -> None:
        self._settings = settings
        self.decided(skips)

    def decided(self, skips: int) -> None:
        """A valid claim was read: all timers begin anew."""
        self.skips = skips
        self._timeouts = self._proposals = 0
        self._waiting_since: float | None = None

    def clock(self, highest: int) -> int:
        """The value that chooses the leader."""
        return highest // self._settings.leader_interval + self.skips

    def adopt(self, skips: int) -> None:
        """Count the skips of another member."""
        self.skips = max(self.skips, skips)

    def deadline(self, *, work: bool, now: float) -> float:
        """Time at which the turn is skipped; infinite without work."""
        if not work:
            self._waiting_since = None
            return inf
        if self._waiting_since is None:
            self._waiting_since = now
        settings = self._settings
        return self._waiting_since + doubled(settings.turn_timeout, self._timeouts, settings.turn_timeout_most)

    def skip(self, now: float) -> None:
        """The turn is over without a claim."""
        self.skips = min(self.skips + 1, WORD_32)
        self._timeouts += 1
        self._waiting_since = now

    def proposed(self) -> None:
        """A round was opened."""
        self._proposals += 1

    @property
    def retry(self) -> float:
        """Wait before the next round of the same number."""
        settings = self._settings
        return doubled(settings.propose_retry, max(self._proposals - 1, 0), settings.propose_retry_most)
