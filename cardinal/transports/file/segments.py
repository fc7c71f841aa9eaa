"""Segments of a folder, for reading: ``000000000001.avro`` and on, each an Avro container file.

Rules:

1. A segment appears whole: its header is written under another name first. From then on it only grows.
2. Readable data ends before the first incomplete block. At the tail of the newest segment such a block may still grow.
   In an older segment, or with the file's marker behind it, it is damage, reported after :data:`_SETTLE_SECONDS`; so is
   an older segment that is shorter than it was when the next one was begun.
3. Records are never taken back. A segment that is cut off before a reader's position, removed while it is the newest,
   or replaced, was changed by hand: the reader raises.
4. Readers hold no lock and write nothing: any number of them may read while one process writes.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import LogDamagedError, TransportError

from .container import PREFIX_SIZE, SYNC_SIZE, BadBytesError, Header, decode_block, read_header, read_prefix
from .folders import numbers_of, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams.types import Record

_SETTLE_SECONDS: Final = 1.0
"""While a writer repairs the tail, a reader may briefly see a mixture of old and new bytes."""
_SETTLE_PAUSE: Final = 0.02

_CHUNK: Final = 1 << 20


class Block(NamedTuple):
    """One block of a segment, and its end in the file."""

    records: list[Record]
    end: int


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Map errors of the file system to TransportError."""
    try:
        yield
    except OSError as error:
        raise TransportError(f"the folder {folder} cannot be read: {error.strerror}; look at the disk") from None


class Segment:
    """One segment, open for reading.

    Raises:
        FileNotFoundError: it does not exist.
        LogDamagedError: it has no header of ours.

    """

    def __init__(self, folder: Path, number: int) -> None:
        self.path = path_of(folder, number)
        self.number = number
        try:
            with self.path.open("rb") as file:
                self.header: Header = read_header(file)
                self._fd = os.dup(file.fileno())
        except BadBytesError as error:
            raise self.damaged(0, str(error)) from None
        except PermissionError as error:
            raise TransportError(f"{self.path} cannot be read: {error.strerror}") from None

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def size(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._fd).st_size

    def is_current(self) -> bool:
        """True if the open file still has its name."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def read(self, at: int) -> Block | None:
        """The block at this position; None where none is complete: the end, or a torn tail that the next writer cuts.

        Raises:
            LogDamagedError: the bytes were altered.

        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            size, why = self.size(), "a block is incomplete"
            try:
                if (block := self.try_read(at, size)) is not None:
                    return block
            except BadBytesError as error:
                why = str(error)
            if at >= size or not self.has_marker(at, size):
                return None
            if time.monotonic() > deadline:
                raise self.damaged(at, why)
            time.sleep(_SETTLE_PAUSE)

    def try_read(self, at: int, size: int) -> Block | None:
        """As :meth:`read`; BadBytesError where these bytes are no block."""
        prefix = read_prefix(os.pread(self._fd, min(PREFIX_SIZE, max(0, size - at)), at), at)
        if prefix is None or prefix.end > size:
            return None
        body = os.pread(self._fd, prefix.end - prefix.data, prefix.data)
        if len(body) != prefix.end - prefix.data:
            return None  # truncated during the read
        return Block(decode_block(prefix.records, body, self.header.sync), prefix.end)

    def has_marker(self, at: int, size: int) -> bool:
        """True if the file's marker follows this position: then a complete block was written after it."""
        rest = b""
        while at < size:
            data = os.pread(self._fd, min(_CHUNK, size - at), at)
            if self.header.sync in rest + data:
                return True
            rest = data[-SYNC_SIZE + 1 :]
            at += len(data) or _CHUNK
        return False

    def follows_marker(self, at: int) -> bool:
        """True if a block may begin here."""
        return at == self.header.size or os.pread(self._fd, SYNC_SIZE, at - SYNC_SIZE) == self.header.sync

    def damaged(self, at: int, why: str) -> LogDamagedError:
        """The error for bytes at this position."""
        if any(number > self.number for number in numbers_of(self.path.parent)):
            advice = (
                "move it away with all segments before it (later ones stay) or with all after it (earlier ones stay, "
                "and writing resumes there)"
            )
        else:
            advice = "drop everything from there on by opening the folder for writing with ?recover=cut"
        return LogDamagedError(
            f"{self.path} is damaged at byte {at} ({why}): restore the file from a copy, or {advice}",
            path=str(self.path),
            position=at,
        )
