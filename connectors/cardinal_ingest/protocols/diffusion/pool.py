"""The pool of objects, as a server reads it and a fetcher writes it (O13).

The host implements both. Calls of one step are not interleaved with changes of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Protocol

from .types import ObjectId


class Status(Enum):
    """Need for an object."""

    HAVE = auto()
    """It is in the pool."""
    WANT = auto()
    """It is to be fetched."""
    NEVER = auto()
    """It is not needed, any more or at all."""


class PoolReader(Protocol):
    """Pool of objects that a server announces."""

    def after(self, ticket: int, limit: int) -> Iterable[tuple[int, ObjectId, int]]:
        """Ticket, id and size of up to ``limit`` objects with a higher ticket, in order of arrival.

        Tickets are local, begin at 1 and rise strictly with each arrival.
        """
        ...

    def pin(self, one: ObjectId) -> None:
        """Retain the object until it is released as often as it was pinned."""
        ...

    def release(self, one: ObjectId) -> None:
        """Undo one :meth:`pin`."""
        ...

    def body(self, one: ObjectId) -> bytes:
        """The bytes of a pinned object."""
        ...


class PoolWriter(Protocol):
    """Pool that a fetcher fills."""

    def status(self, one: ObjectId) -> Status:
        """Need for the object. After :meth:`add` it is not WANT."""
        ...

    def add(self, one: ObjectId, body: bytes) -> None:
        """Append a verified object."""
        ...
