"""Capacity: the bytes that connections may send before they are read, across all connections.

A connection's window is *lent*: its peer may send that much. What came and was not taken is *held*. Their sum, with
what the host has in use, is bounded, but for the least window of each connection, and one message: where there is no
capacity, connections have it in turns, so that something always moves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_BYTES: Final = (1 << 16) - 1
"""Window of a connection for which there is no capacity: HTTP/2 opens each with it."""
WINDOW_BYTES: Final = 4 << 20
_SHARES: Final = 128
"""Connections that may have the largest window at once: half of the publishers that a node serves by default."""
_TURN_SECONDS: Final = 0.05
"""Pause before connections that wait are served: the host's use falls without a notice."""
_STALL_SECONDS: Final = 5.0
_STALL_BYTES: Final = 1 << 16
"""While connections wait, a message must come with 13 kB/s: half messages would hold capacity for ever."""


class Borrower(Protocol):
    """A connection.

    Attributes:
        received: bytes that came, ever.

    """

    received: int

    @property
    def eager(self) -> bool:
        """True while a message is awaited, and may be read."""

    @property
    def stalls(self) -> bool:
        """True while a peer may send the rest of a message."""

    def evict(self) -> None:
        """Give up the messages that wait for their rest."""

    def replenish(self) -> None:
        """Take what there is now."""


class Capacity:
    """Capacity of a server or client.

    Arguments:
        limit: bytes, lent and held and in use.
        in_use: bytes that the host holds of messages that were taken.

    Attributes:
        taken: bytes, lent and held.
        window: the largest of a connection.

    """

    def __init__(self, limit: int, in_use: Callable[[], int] = int) -> None:
        self._limit = limit
        self._in_use = in_use
        self.window = max(LEAST_BYTES, min(WINDOW_BYTES, limit // _SHARES))
        self._connections: dict[Borrower, int] = {}
        """All of them, with what they had received when the last look for stalls was taken."""
        self._waiting: dict[Borrower, None] = {}
        self._turn: Borrower | None = None
        """The connection that has capacity though there is none."""
        self._next: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self.taken = 0

    def add(self, borrower: Borrower) -> None:
        """Count a new connection."""
        self._connections[borrower] = 0
        self.taken += LEAST_BYTES

    def remove(self, borrower: Borrower, size: int) -> None:
        """A connection has ended; ``size``: what it had."""
        del self._connections[borrower]
        self.took(borrower, size)

    def lend(self, borrower: Borrower, size: int, *, waits: bool) -> int:
        """Bytes that a connection may have of those that it could use; one that ``waits`` gets the rest later."""
        lent = max(0, min(size, self._limit - self._in_use() - self.taken))
        if lent == size or not waits:
            self.leave(borrower)
            return lent
        self._waiting[borrower] = None
        if self._next is None:
            self._looked_at = 0.0
            self._next = asyncio.get_running_loop().call_later(0, self._serve)
        return size if borrower is self._turn else lent

    def leave(self, borrower: Borrower) -> None:
        """A connection waits no more; a turn lasts until its message was taken."""
        self._waiting.pop(borrower, None)

    def took(self, borrower: Borrower, size: int) -> None:
        """Bytes that were held were taken; the turn passes on."""
        self.taken -= size
        if borrower is self._turn:
            self._turn = None
        self.leave(borrower)
        if self._waiting:
            self._serve()

    def close(self) -> None:
        """Serve nobody any more."""
        if self._next is not None:
            self._next.cancel()

    def _serve(self) -> None:
        """Lend what there is to those that wait, in order; the first that may be read gets what it can use."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._turn is None or not self._turn.eager:
            self._turn = next((borrower for borrower in self._waiting if borrower.eager), None)
        for borrower in list(self._waiting):
            if borrower is self._turn or self.taken + self._in_use() < self._limit:
                borrower.replenish()  # waits on, or leaves
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._look(loop.time())
            self._next = loop.call_later(_TURN_SECONDS, self._serve)

    def _look(self, now: float) -> None:
        """Evict messages that could come, and do not."""
        if now < self._looked_at + _STALL_SECONDS:
            return
        is_first, self._looked_at = self._looked_at == 0.0, now
        for borrower, before in list(self._connections.items()):
            self._connections[borrower] = borrower.received
            if not is_first and borrower.stalls and borrower.received - before < _STALL_BYTES:
                borrower.evict()
