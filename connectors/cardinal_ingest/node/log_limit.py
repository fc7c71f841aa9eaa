"""Limit of log lines: a few of one cause in a minute, and then how many were left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOW_SECONDS: Final = 60.0
_LINES_MOST: Final = 10
"""Lines of one cause in a window: a publisher that does everything wrong writes 0.2 MB of log a day, of each kind."""
_CAUSES_MOST: Final = 1_024


class LogLimit:
    """Counts lines by their cause, such as an event's kind and its publisher.

    Arguments:
        now: a monotonic clock.

    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[tuple[str, ...], tuple[float, int]] = {}
        """The begin of each cause's window, and its lines."""

    def take(self, *cause: str) -> int | None:
        """Take a line: how many were left out before it. None: it is left out."""
        if cause not in self._windows and len(self._windows) >= _CAUSES_MOST:
            cause = ("others",)
        now = self._now()
        begin, lines = self._windows.get(cause, (now, 0))
        left_out = 0
        if now - begin >= _WINDOW_SECONDS:
            begin, lines, left_out = now, 0, max(0, lines - _LINES_MOST)
        self._windows[cause] = begin, lines + 1
        return None if lines >= _LINES_MOST else left_out
