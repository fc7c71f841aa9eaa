"""Splitter of a byte stream into JSON texts, for a Unix socket without message boundaries.

Nodes differ: geth ends every text with a newline, others write texts without a separator. Rules:

1. Every byte is scanned once, however the stream is cut.
2. The first text is split by its brackets. If a newline follows it, newlines split the rest: a hundred times faster,
   and JSON on one line contains none.
3. A text that begins with neither a bracket nor white space is not JSON-RPC: NoNodeError.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from .faults import NoNodeError

_BLANK: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'["{}\[\]]')
_IN_STRING: Final = re.compile(rb'["\\]')
_OPENING: Final = b"{["


class LongTextError(NoNodeError):
    """A text exceeds the size limit."""


class JsonFrames:
    """Splits a stream into JSON texts.

    Arguments:
        most: maximum size of a text in bytes; a longer one raises LongTextError.

    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._at = 0
        self._depth = 0
        self._quoted = False
        self._first_done = False
        self._lines: bool | None = None

    def receive(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the texts that are now complete."""
        self._buffer += data
        frames: list[bytes] = []
        while (end := self._line() if self._lines else self._brackets()) is not None:
            if end > self._most:
                break
            frames.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._at, self._first_done = 0, True
        if len(self._buffer) > self._most:
            raise LongTextError(f"the node's answer is longer than {self._most} bytes; request less")
        return frames

    def _line(self) -> int | None:
        self._strip()
        end = self._buffer.find(b"\n", self._at)
        self._at = len(self._buffer) if end < 0 else 0
        return None if end < 0 else end + 1

    def _brackets(self) -> int | None:
        """End of the first text in the buffer; None if it is incomplete."""
        if self._depth == 0:
            self._strip()
            if self._lines:
                return self._line()
            if self._buffer and self._buffer[0] not in _OPENING:
                raise NoNodeError("the socket answers, but not in JSON-RPC; check that it is a node's")
        while (match := (_IN_STRING if self._quoted else _TOKEN).search(self._buffer, self._at)) is not None:
            token = match.group()
            if token == b"\\":
                if match.end() == len(self._buffer):
                    self._at = match.start()  # the escaped character is still missing
                    return None
                self._at = match.end() + 1
                continue
            self._at = match.end()
            if token == b'"':
                self._quoted = not self._quoted
            elif token in (b"{", b"["):
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self._at
        self._at = len(self._buffer)
        return None

    def _strip(self) -> None:
        """Remove white space between texts; a newline between the first two selects splitting by newlines."""
        if self._at == 0:
            blank = len(self._buffer) - len(self._buffer.lstrip(_BLANK))
            if self._first_done and self._lines is None and self._buffer:
                self._lines = b"\n" in self._buffer[:blank]
            del self._buffer[:blank]
