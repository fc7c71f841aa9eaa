"""Where one JSON text ends and the next begins in a stream of bytes: what a socket without messages of its own needs.

Nodes differ: geth ends every text with a newline, others write one behind the other. Rules:

1. Every byte is looked at once, however the stream is cut.
2. The first text is found by its brackets. Where a newline follows it, newlines count from then on: looking for one
   byte is a hundred times faster than looking for brackets, and no JSON on one line has it inside.
3. What begins with neither a bracket nor white space is no JSON-RPC: NodeAnswerError.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from cardinal.errors import NodeAnswerError

_BLANK: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'["{}\[\]]')
_IN_STRING: Final = re.compile(rb'["\\]')
_OPENING: Final = b"{["


class LongTextError(NodeAnswerError):
    """A text that is longer than any may be."""


class JsonFrames:
    """Cuts a stream.

    Arguments:
        most: bytes that one text may have; a longer one is a LongTextError.

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
        """The texts that are complete now."""
        self._buffer += data
        frames: list[bytes] = []
        while (end := self._line() if self._lines else self._brackets()) is not None:
            if end > self._most:
                break
            frames.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._at, self._first_done = 0, True
        if len(self._buffer) > self._most:
            raise LongTextError(f"The node's answer is longer than {self._most} bytes; ask for less.")
        return frames

    def _line(self) -> int | None:
        self._strip()
        end = self._buffer.find(b"\n", self._at)
        self._at = len(self._buffer) if end < 0 else 0
        return None if end < 0 else end + 1

    def _brackets(self) -> int | None:
        """The end of the text that begins the buffer, None where it is not there yet."""
        if self._depth == 0:
            self._strip()
            if self._lines:
                return self._line()
            if self._buffer and self._buffer[0] not in _OPENING:
                raise NodeAnswerError("The socket answers, but not in JSON-RPC; check that it is a node's.")
        while (found := (_IN_STRING if self._quoted else _TOKEN).search(self._buffer, self._at)) is not None:
            token = found.group()
            if token == b"\\":
                if found.end() == len(self._buffer):
                    self._at = found.start()  # what is escaped has not come yet
                    return None
                self._at = found.end() + 1
                continue
            self._at = found.end()
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
        """White space between texts goes; what it is between the first two says how this node writes."""
        if self._at == 0:
            blank = len(self._buffer) - len(self._buffer.lstrip(_BLANK))
            if self._first_done and self._lines is None and self._buffer:
                self._lines = b"\n" in self._buffer[:blank]
            del self._buffer[:blank]
