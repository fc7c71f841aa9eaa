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

from . import index
from .container import PREFIX_SIZE, SYNC_SIZE, BadBytesError, Header, decode_block, read_header, read_prefix
from .folders import Listing, numbers_of, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Record

_SETTLE_SECONDS: Final = 1.0
"""While a writer repairs the tail, a reader may briefly see a mixture of old and new bytes."""

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
        self._bad: tuple[int, float] | None = None
        self._torn: tuple[int, int, int] | None = None

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
        """The block at this position; None where none is complete (yet).

        Raises:
            LogDamagedError: the bytes were altered.

        """
        state = os.fstat(self._fd)
        size, seen = state.st_size, (at, state.st_size, state.st_mtime_ns)
        if self._torn == seen:
            return None
        why = "a block is incomplete"
        try:
            if (block := self.try_read(at, size)) is not None:
                self._bad = None
                return block
        except BadBytesError as error:
            why = str(error)
        if at < size and self.has_marker(at, size):
            self._doubt(at, why)
        else:
            self._bad = None
            self._torn = seen  # the end, or a torn tail that the next writer cuts: read again when the file changes
        return None

    def in_doubt(self, at: int) -> bool:
        """True if the last :meth:`read` found damage here that a writer may still repair."""
        return self._bad is not None and self._bad[0] == at

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

    def _doubt(self, at: int, why: str) -> None:
        """Raise for bytes that stay damaged for longer than a repair takes."""
        now = time.monotonic()
        if self._bad is None or self._bad[0] != at:
            self._bad = (at, now)
        elif now - self._bad[1] > _SETTLE_SECONDS:
            raise self.damaged(at, why)


class Segments:
    """All segments of a folder; the last used one is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: Segment | None = None
        self._headers: dict[int, Header] = {}
        self._first = 0
        self._listing = Listing(folder)

    def numbers(self) -> list[int]:
        """The numbers of the existing segments."""
        return self._prune(self._listing.numbers())

    def recent_numbers(self) -> list[int]:
        """The numbers of the existing segments, at most a second old."""
        return self._prune(self._listing.recent())

    def get(self, number: int) -> Segment | None:
        """A segment; None where it does not exist."""
        if self._open is None or self._open.number != number:
            try:
                segment = Segment(self.folder, number)
            except FileNotFoundError:
                return None
            self.close()
            self._open = segment
            self._headers[number] = segment.header
        return self._open

    def header(self, number: int) -> Header | None:
        """A segment's header; None where the segment does not exist."""
        header = self._headers.get(number)
        if header is None and (segment := self.get(number)) is not None:
            header = segment.header
        return header

    def read(self, number: int, at: int) -> Block | None:
        """The block at a position of a segment; None where none is complete yet, or the segment does not exist."""
        segment = self.get(number)
        return None if segment is None else segment.read(at)

    def in_doubt(self, number: int, at: int) -> bool:
        """True if the last :meth:`read` found damage here that a writer may still repair."""
        segment = self._open
        return segment is not None and segment.number == number and segment.in_doubt(at)

    def nearest_mark(self, number: int, positions: Mapping[Partition, int]) -> int:
        """A position in a segment before every record at or above these offsets, by the index where the data agrees."""
        segment = self.get(number)
        if segment is None:
            return 0
        best = segment.header.size
        for mark in index.read(segment.path, segment.header):
            if mark.at > segment.size() or any(mark.offsets.get(tp, 0) > at for tp, at in positions.items()):
                break
            if not self._agrees(segment, mark):
                break
            best = mark.at
        return best

    def newest_mark(self, number: int) -> index.Mark | None:
        """The last mark of a segment's index with which the data agrees; else a mark at its first block."""
        segment = self.get(number)
        if segment is None:
            return None
        size = segment.size()
        for mark in reversed(index.read(segment.path, segment.header)):
            if mark.at <= size and self._agrees(segment, mark):
                return mark
        return index.Mark(segment.header.size, segment.header.latest, segment.header.offsets)

    def close(self) -> None:
        """Release every file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _prune(self, numbers: list[int]) -> list[int]:
        """Remove the headers of expired segments: a long read passes very many of them."""
        if numbers and numbers[0] > self._first:
            self._first = numbers[0]
            self._headers = {number: header for number, header in self._headers.items() if number >= self._first}
        return numbers

    def _agrees(self, segment: Segment, mark: index.Mark) -> bool:
        """True if a block with the mark's offsets begins at the mark."""
        if not segment.follows_marker(mark.at):
            return False
        block = self.read(segment.number, mark.at)
        return block is not None and all(
            mark.offsets.get(tp) == offset for tp, offset in index.first_offsets(block.records).items()
        )
