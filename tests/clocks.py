"""Manual clock for timestamps."""

from __future__ import annotations


class Clock:
    """Seconds since 1970."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
