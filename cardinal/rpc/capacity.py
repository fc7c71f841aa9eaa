"""Capacity: the bytes that connections may send before they are read, across all connections.

A connection's window is *lent*: its peer may send that much. What came and was not taken is *held*. Their sum, with
what the host has in use, is bounded. Only a small window of each connection, and the first message that waits for its
rest, are never held back, so that something always moves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_BYTES: Final = (1 << 16) - 1
"""Window of a connection for which there is no capacity: HTTP/2 opens each with it."""
_RETRY_SECONDS: Final = 0.05
"""Pause before connections that wait are served: the host's use falls without a notice."""


_STILL_SECONDS: Final = 10.0
"""Without capacity, and without a message that was taken, for this long: the connection that holds the most loses its
half message. The first to wait sends the largest message in this time where it has 13 MB/s.
"""


class Borrower(Protocol):
    """A connection that waits for capacity; ``held``: its bytes that came and were not taken."""

    held: int

    def evict(self) -> None:
        """Give up what is held."""

    def replenish(self) -> None:
        """Take what there is now."""


class Capacity:
    """Capacity of a server or client.

    Arguments:
        limit: bytes, lent and held and in use.
        in_use: bytes that the host holds of messages that were taken.

    """

    def __init__(self, limit: int, in_use: Callable[[], int] = int) -> None:
        self._limit = limit
        self._in_use = in_use
        self._waiting: dict[Borrower, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._moved_at = 0.0
        self.taken = 0

    @property
    def free(self) -> int:
        """Bytes that may be lent."""
        return self._limit - self._in_use() - self.taken

    def first(self, borrower: Borrower) -> bool:
        """True if no connection has waited for longer."""
        return next(iter(self._waiting), borrower) is borrower

    def wait(self, borrower: Borrower) -> None:
        """Serve a connection when there is capacity; the first to wait comes first."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._moved_at = loop.time()
        self._waiting[borrower] = None
        if self._retry is None:
            self._retry = loop.call_later(_RETRY_SECONDS, self._serve)

    def took(self, size: int) -> None:
        """Bytes that were held were taken."""
        self.taken -= size
        if self._waiting:
            self._moved_at = asyncio.get_running_loop().time()

    def leave(self, borrower: Borrower) -> None:
        """A connection waits no more."""
        self._waiting.pop(borrower, None)

    def close(self) -> None:
        """Serve nobody any more."""
        if self._retry is not None:
            self._retry.cancel()

    def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        if self._waiting and loop.time() - self._moved_at > _STILL_SECONDS:
            self._moved_at = loop.time()
            max(self._waiting, key=lambda borrower: borrower.held).evict()
        for borrower in list(self._waiting):
            borrower.replenish()  # waits on, or leaves
        self._retry = loop.call_later(_RETRY_SECONDS, self._serve) if self._waiting else None
