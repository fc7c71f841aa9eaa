"""Segments of a folder, for reading: ``000000000001.avro`` and on, each an Avro container file.

Rules:

1. A segment appears whole: its header is written under another name first. From then on it only grows.
2. What can be read ends before the first block that is not whole. In the newest segment more may come there; in an
   older one, or where the marker of the file stands behind it, it is damage and said so: who reads is told after a
   moment, and who asks where the log ends waits that moment out. An older one that is shorter than it was when the next
   one was begun is damaged, too.
3. What was read is never taken back. A segment that is cut off before a reader's place, or removed while it is the
   newest, or replaced, was changed by hand: nothing comes there any more, and the reader is told.
4. A reader holds no lock and writes nothing, so any number of them may read while one process writes.
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
"""While a writer mends the tail, a reader may see half of the old and half of the new bytes, for a moment."""

_CHUNK: Final = 1 << 20


class Block(NamedTuple):
    """One block of a segment, and where it ends in the file."""

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
        FileNotFoundError: it is gone.
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

    def is_there(self) -> bool:
        """Whether this is still the file of its name."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def read(self, at: int) -> Block | None:
        """The block at this position; None where none is whole (yet).

        Raises:
            LogDamagedError: what stands here was altered.

        """
        state = os.fstat(self._fd)
        size, seen = state.st_size, (at, state.st_size, state.st_mtime_ns)
        if self._torn == seen:
            return None
        why = "a block is not whole"
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
            self._torn = seen  # the end, or the tail of a crash that the next writer cuts: asked again when it changes
        return None

    def in_doubt(self, at: int) -> bool:
        """Whether the last :meth:`read` found here what is damage, if it is still here in a moment."""
        return self._bad is not None and self._bad[0] == at

    def try_read(self, at: int, size: int) -> Block | None:
        """As :meth:`read`; BadBytesError where these bytes are no block."""
        prefix = read_prefix(os.pread(self._fd, min(PREFIX_SIZE, max(0, size - at)), at), at)
        if prefix is None or prefix.end > size:
            return None
        body = os.pread(self._fd, prefix.end - prefix.data, prefix.data)
        if len(body) != prefix.end - prefix.data:
            return None  # cut in this moment
        return Block(decode_block(prefix.records, body, self.header.sync), prefix.end)

    def has_marker(self, at: int, size: int) -> bool:
        """Whether the file's marker stands anywhere from this position on: then a whole block was there."""
        rest = b""
        while at < size:
            data = os.pread(self._fd, min(_CHUNK, size - at), at)
            if self.header.sync in rest + data:
                return True
            rest = data[-SYNC_SIZE + 1 :]
            at += len(data) or _CHUNK
        return False

    def follows_marker(self, at: int) -> bool:
        """Whether a block may begin here."""
        return at == self.header.size or os.pread(self._fd, SYNC_SIZE, at - SYNC_SIZE) == self.header.sync

    def damaged(self, at: int, why: str) -> LogDamagedError:
        """The error for bytes at this position."""
        if any(number > self.number for number in numbers_of(self.path.parent)):
            advice = (
                "move it away with all segments before it (what is later stays) or with all after it (what is earlier "
                "stays, and writing goes on there)"
            )
        else:
            advice = "drop everything from there on by opening the folder for writing with ?recover=cut"
        return LogDamagedError(
            f"{self.path} is damaged at byte {at} ({why}): restore the file from a copy, or {advice}",
            path=str(self.path),
            position=at,
        )

    def _doubt(self, at: int, why: str) -> None:
        """Give a writer that mends the tail a moment; then it is damage."""
        now = time.monotonic()
        if self._bad is None or self._bad[0] != at:
            self._bad = (at, now)
        elif now - self._bad[1] > _SETTLE_SECONDS:
            raise self.damaged(at, why)


class Segments:
    """All segments of a folder; the one that was used last is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: Segment | None = None
        self._headers: dict[int, Header] = {}
        self._first = 0
        self._listing = Listing(folder)

    def numbers(self) -> list[int]:
        """The numbers of the segments that are there."""
        return self._there(self._listing.numbers())

    def numbers_lately(self) -> list[int]:
        """The numbers of the segments that were there within the last second."""
        return self._there(self._listing.lately())

    def get(self, number: int) -> Segment | None:
        """A segment; None where it is gone."""
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
        """A segment's header; None where the segment is gone."""
        found = self._headers.get(number)
        if found is None and (segment := self.get(number)) is not None:
            found = segment.header
        return found

    def read(self, number: int, at: int) -> Block | None:
        """The block at a position of a segment; None where none is whole yet, or the segment is gone."""
        segment = self.get(number)
        return None if segment is None else segment.read(at)

    def in_doubt(self, number: int, at: int) -> bool:
        """Whether what :meth:`read` found no block in is damage, if it is still there in a moment."""
        segment = self._open
        return segment is not None and segment.number == number and segment.in_doubt(at)

    def nearest_mark(self, number: int, wanted: Mapping[Partition, int]) -> int:
        """A position in a segment from which on nothing is missed of what lies at these offsets or above.

        The index beside the segment is a hint: what it says is used where the data agrees, else reading begins at
        the segment's first block.
        """
        segment = self.get(number)
        if segment is None:
            return 0
        best = segment.header.size
        for mark in index.read(segment.path, segment.header):
            if mark.at > segment.size() or any(mark.offsets.get(tp, 0) > at for tp, at in wanted.items()):
                break
            if not self._agrees(segment, mark):
                break
            best = mark.at
        return best

    def newest_mark(self, number: int) -> index.Mark | None:
        """The last place of a segment that its index knows and the data agrees with; else its beginning."""
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

    def _there(self, numbers: list[int]) -> list[int]:
        """Forget what retention has removed: who reads for a year meets very many segments."""
        if numbers and numbers[0] > self._first:
            self._first = numbers[0]
            self._headers = {number: header for number, header in self._headers.items() if number >= self._first}
        return numbers

    def _agrees(self, segment: Segment, mark: index.Mark) -> bool:
        """Whether a block begins at the mark, with the mark's offsets."""
        if not segment.follows_marker(mark.at):
            return False
        block = self.read(segment.number, mark.at)
        return block is not None and all(
            mark.offsets.get(tp) == offset for tp, offset in index.first_offsets(block.records).items()
        )
