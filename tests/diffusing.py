"""Helpers of the tests of object diffusion: objects, a pool in memory, and bytes between a server and its client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256

from cardinal.protocols.diffusion import ObjectId, Server, Status

INVALID = b"BAD"
"""An object that ends so does not verify."""


def make(number: int, content: bytes = b"", size: int | None = None) -> bytes:
    """An object: its number, and some bytes."""
    return (number.to_bytes(8, "big") + content).ljust(size or 0, b".")


def identify(body: bytes) -> ObjectId | None:
    return ObjectId(int.from_bytes(body[:8], "big"), sha256(body).digest()) if len(body) >= 8 else None


def id_of(body: bytes) -> ObjectId:
    found = identify(body)
    assert found is not None
    return found


def verify(body: bytes) -> bool:
    return not body.endswith(INVALID)


class Pool:
    """Objects in order of arrival. An object is added once; a pinned one cannot be collected."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies: dict[ObjectId, bytes] = {}
        self.arrivals: list[ObjectId | None] = []
        self.pins: Counter[ObjectId] = Counter()
        self.never: set[ObjectId] = set()
        for body in bodies:
            self.add(id_of(body), body)

    def after(self, ticket: int, limit: int) -> Iterator[tuple[int, ObjectId, int]]:
        found = [(at, one) for at, one in enumerate(self.arrivals, 1) if at > ticket and one is not None]
        return ((at, one, len(self.bodies[one])) for at, one in found[:limit])

    def pin(self, one: ObjectId) -> None:
        assert one in self.bodies
        self.pins[one] += 1

    def release(self, one: ObjectId) -> None:
        assert self.pins[one] > 0
        self.pins[one] -= 1

    def body(self, one: ObjectId) -> bytes:
        assert self.pins[one] > 0
        return self.bodies[one]

    def status(self, one: ObjectId) -> Status:
        if one in self.never:
            return Status.NEVER
        return Status.HAVE if one in self.bodies else Status.WANT

    def add(self, one: ObjectId, body: bytes) -> None:
        assert one not in self.bodies
        self.bodies[one] = body
        self.arrivals.append(one)

    def collect(self, one: ObjectId) -> bool:
        """Remove an object, unless it is pinned."""
        if self.pins[one]:
            return False
        del self.bodies[one]
        self.arrivals[self.arrivals.index(one)] = None
        return True

    @property
    def pinned(self) -> int:
        return self.pins.total()


def written(server: Server) -> bytes:
    """Everything that the server has to write now."""
    return b"".join(iter(server.send, None))
