"""Frames of HTTP/2 as they come, before they are read: header blocks that do not end.

h2 keeps 64 frames of a block, a mebibyte, before it refuses it. No client of gRPC needs a second one.
"""

from __future__ import annotations

from typing import Final

_HEADER_BYTES: Final = 9
_CONTINUATION: Final = 9
_CONTINUATIONS_MOST: Final = 2
"""Frames by which a header block is continued: with the first, 48 KiB."""


class FrameScanner:
    """Counts the frames that continue a header block.

    Arguments:
        preface: bytes before the first frame.

    """

    def __init__(self, preface: int) -> None:
        self._skip = preface
        self._header = bytearray()
        self._continuations = 0

    def feed(self, data: bytes) -> bool:
        """Bytes came; False where a header block is continued too often."""
        at = 0
        while at < len(data):
            step = min(self._skip, len(data) - at)
            self._skip -= step
            at += step
            part = data[at : at + _HEADER_BYTES - len(self._header)]
            self._header += part
            at += len(part)
            if len(self._header) == _HEADER_BYTES:
                self._skip = int.from_bytes(self._header[:3])
                is_continuation = self._header[3] == _CONTINUATION
                self._continuations = self._continuations + 1 if is_continuation else 0
                self._header.clear()
                if self._continuations > _CONTINUATIONS_MOST:
                    return False
        return True
