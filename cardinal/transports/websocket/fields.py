"""Texts and numbers of a frame as bytes, one after the other.

Numbers are big-endian; a text is its length in two bytes and then UTF-8, bytes that are none kept by surrogateescape. A
long text has its length in four.
"""

from __future__ import annotations

import struct
from typing import Final

from cardinal.errors import RemoteProtocolError

COUNT: Final = struct.Struct(">I")
LENGTH: Final = struct.Struct(">H")


def text(value: str) -> bytes:
    """A text as it is on the wire."""
    raw = value.encode("utf-8", "surrogateescape")
    return LENGTH.pack(len(raw)) + raw


def sized(value: bytes) -> bytes:
    """Bytes behind their length."""
    return COUNT.pack(len(value)) + value


def long_text(value: str) -> bytes:
    """A text of any length as it is on the wire."""
    return sized(value.encode("utf-8", "surrogateescape"))


class Cursor:
    """Takes fields from a frame, one after the other. RemoteProtocolError where it ends too early."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.at = 0

    def take(self, size: int) -> memoryview:
        """So many bytes."""
        end = self.at + size
        if end > len(self.data):
            raise RemoteProtocolError("a frame of a websocket stream ends too early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        """Some numbers."""
        return shape.unpack(self.take(shape.size))

    def text(self) -> str:
        """A text."""
        (length,) = self.unpack(LENGTH)
        return bytes(self.take(length)).decode("utf-8", "surrogateescape")

    def sized(self) -> memoryview:
        """Bytes behind their length."""
        (length,) = self.unpack(COUNT)
        return self.take(length)

    def long_text(self) -> str:
        """A text of any length."""
        return bytes(self.sized()).decode("utf-8", "surrogateescape")

    def count(self, smallest: int) -> int:
        """How many items follow, each of at least so many bytes: never more than the frame can hold."""
        (count,) = self.unpack(COUNT)
        if count * smallest > len(self.data) - self.at:
            raise RemoteProtocolError(f"a frame of a websocket stream announces {count} items and ends before them")
        return count

    def end(self) -> None:
        """Nothing may follow."""
        if self.at != len(self.data):
            raise RemoteProtocolError(f"{len(self.data) - self.at} bytes stand behind a frame of a websocket stream")
