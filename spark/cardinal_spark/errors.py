"""Errors of Spark's sources and of lakes."""

from __future__ import annotations

from cardinal.errors import CardinalError


class JavaNotFoundError(CardinalError):
    """No installed Java can run Spark or a broker."""


class LakeError(CardinalError):
    """The lake could not be read or written."""


class LakeDivergedError(LakeError):
    """The stream and the lake name different blocks under one sequence number; nothing was written."""

    def __init__(self, message: str, *, seq: int, expected: bytes, found: bytes) -> None:
        super().__init__(message)
        self.seq = seq
        self.expected = expected
        self.found = found
