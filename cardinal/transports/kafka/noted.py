"""What the Kafka client reports beside records, until somebody is told.

Rules:

1. The first report is kept until the records before it are delivered; whoever polls is told once, unless rule 2 or 3
   says otherwise.
2. Of offsets that are gone and of a topic that is gone the client fetches nothing more, and never speaks of it again:
   every poll is told, until another assignment.
3. A permission that is missing is named once by the client, which then asks on in silence. Every poll is told, and
   where that was a while ago the source has to begin anew: the broker says no again, or goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable

ASK_SECONDS: Final = 1.0
"""How long a refusal counts until the broker is asked again."""


class Noted:
    """See the module. Belongs to the thread that polls."""

    def __init__(self) -> None:
        self._why: Callable[[], CardinalError] | None = None
        self._refused: float | None = None

    def __bool__(self) -> bool:
        """Whether there is something to tell."""
        return self._why is not None

    def keep(self, why: Callable[[], CardinalError]) -> None:
        """Keep what this makes, where nothing is kept yet."""
        if self._why is None:
            self._why = why

    def forget(self) -> None:
        """Tell nothing of before any more."""
        self._why = self._refused = None

    def is_stale(self, now: float) -> bool:
        """Whether what is told is a refusal from a while ago, in seconds of any clock that goes forward."""
        return self._refused is not None and now - self._refused >= ASK_SECONDS

    def tell(self, now: float) -> None:
        """Raise what is kept, if anything.

        Raises:
            UnreachableError: what it was cannot be found out just now; the next call tries again.

        """
        if self._why is None:
            return
        error = self._why()
        self._why = (lambda: error) if isinstance(error, CursorExpiredError | TopicError | RefusedError) else None
        if isinstance(error, RefusedError) and self._refused is None:
            self._refused = now
        raise error.with_traceback(None)
