"""Writer of a folder: opens, recovers, appends, begins new segments, removes old ones.

Rules:

1. Only complete blocks remain. On a full disk an incomplete one is cut off at once: a reader never saw it.
2. Opening cuts a torn tail (bytes after the last complete block, with no marker of the file behind them), which a crash
   leaves: acknowledged records are before it. Other unreadable bytes are damage: refused, or cut with ``recover=cut``.
   A power cut may leave a later block without an earlier one; that is damage too, because the file does not show which
   blocks were acknowledged.
3. A segment is synced before the next one has a record; its name and the folder's are synced before its first record.
4. The writer stops after a failed sync, because only a new read shows which data survived; and when its segment was
   removed or replaced.

One thread at a time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cardinal.errors import LogDamagedError, TransportError

from .container import SYNC_SIZE, BadBytesError, encode_block, encode_header
from .folders import make_folder, numbers_of, path_of, sync_folder
from .lock import WriterLock
from .segments import Segment
from .settings import Recover

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record

    from .settings import FileSettings

_NEW: Final = ".new"
_DAMAGED: Final = ".damaged"
_NONE: Final = -1
_sync_data = getattr(os, "fdatasync", os.fsync)


class LogWriter:
    """Writer of a folder.

    Arguments:
        folder: created where it does not exist.
        settings: a URL's options.

    Attributes:
        offsets: for every partition of the log the next offset.
        latest: the highest time so far, milliseconds.

    Raises:
        LogInUseError: another writer is at work.
        LogDamagedError: the newest segment has damage that no crash explains.
        TransportError: the folder cannot be used.

    """

    def __init__(self, folder: Path, settings: FileSettings) -> None:
        self.folder = folder
        self._settings = settings
        self.offsets: dict[Partition, int] = {}
        self.latest = 0
        self._fd = _NONE
        self._marker = b""
        self._number = self._at = self._written = 0
        self._broken: str | None = None
        make_folder(folder)
        self._lock = WriterLock(folder)
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise TransportError(f"the folder {folder} cannot be opened for writing: {error.strerror}") from None
            raise

    def declare(self, offsets: Mapping[Partition, int]) -> None:
        """Add these partitions, or advance them to these next offsets, in a new segment where anything changes.

        Raises:
            TransportError: there is no room for it.

        """
        ahead = {tp: offset for tp, offset in offsets.items() if offset > self.offsets.get(tp, -1)}
        if ahead:
            try:
                self._begin(self._number + 1, {**self.offsets, **ahead})
            except OSError as error:
                raise TransportError(f"no segment could be begun in {self.folder}: {error.strerror}") from None

    def append(self, blocks: Sequence[Sequence[Record]]) -> tuple[int, OSError | None]:
        """Append these blocks, whose offsets continue :attr:`offsets`, with one write.

        Returns:
            The number of blocks, from the first, that were written completely; and the error that stopped the rest.

        Raises:
            TransportError: the writer stopped for good.

        """
        self._check()
        try:
            if self._at >= self._settings.segment_bytes:
                self._begin(self._number + 1, self.offsets)
            encoded = [encode_block(block, self._marker) for block in blocks]
            failure = self._write(b"".join(encoded))
        except OSError as error:
            return 0, error
        complete, end = 0, self._at
        while complete < len(encoded) and end + len(encoded[complete]) <= self._written:
            end += len(encoded[complete])
            self._count(blocks[complete])
            complete += 1
        if failure is not None:
            self._cut(end)
        self._at = end
        return complete, failure

    def sync(self) -> None:
        """Sync all appended blocks to the disk.

        Raises:
            TransportError: the sync failed; the writer stopped for good.

        """
        self._check()
        if self._fd != _NONE:
            try:
                _sync_data(self._fd)
            except OSError as error:
                # The system may have dropped pages that it could not write.
                self._broken = f"the disk could not keep what was written to {self.folder} ({error.strerror})"
            self._check()

    def close(self) -> None:
        """Release the folder. May be called twice."""
        if self._fd != _NONE:
            with contextlib.suppress(TransportError):
                self.sync()
            os.close(self._fd)
            self._fd = _NONE
        self._lock.release()

    # --- appending -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._fd != _NONE and self._broken is None and os.fstat(self._fd).st_nlink == 0:
            self._broken = f"the segment that was written in {self.folder} was removed or replaced"
        if self._broken is not None:
            raise TransportError(f"{self._broken}; nothing more is written: look at the disk, then reopen the folder")

    def _write(self, data: bytes) -> OSError | None:
        """Write at the end, and set ``_written`` to the end of the written bytes; the error that stopped it."""
        self._written = self._at
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._fd, view, self._written)
            except OSError as error:
                return error
            self._written += count
            view = view[count:]
        return None

    def _cut(self, end: int) -> None:
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            self._broken = f"an incomplete block could not be cut off in {self.folder} ({error.strerror})"

    def _begin(self, number: int, offsets: Mapping[Partition, int]) -> None:
        """Begin a segment; OSError where the disk is full, and then nothing has changed."""
        self.sync()
        path = path_of(self.folder, number)
        new = path.with_name(path.name + _NEW)
        marker = os.urandom(SYNC_SIZE)
        before = None if self._fd == _NONE else self._at
        data = encode_header(marker, offsets, self.latest, before)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
            new.rename(path)
            sync_folder(self.folder)
        except OSError:
            os.close(fd)
            for leftover in (new, path):
                with contextlib.suppress(OSError):
                    leftover.unlink()
            if path.exists():
                self._broken = f"the segment {path} exists and may be lost in a crash"
            raise
        self.offsets = dict(offsets)
        self._append_to(fd, number, marker, len(data))
        self._retain()

    def _append_to(self, fd: int, number: int, marker: bytes, at: int) -> None:
        """Append to this segment from now on."""
        if self._fd != _NONE:
            os.close(self._fd)
        self._fd, self._number, self._marker, self._at = fd, number, marker, at

    def _retain(self) -> None:
        """Remove the oldest segments while their total size exceeds ``retention_bytes``."""
        if self._settings.retention_bytes < 0:
            return
        with contextlib.suppress(OSError, TransportError):  # retried with the next segment
            numbers = numbers_of(self.folder)
            sizes = {number: path_of(self.folder, number).stat().st_size for number in numbers}
            total = sum(sizes.values())
            for number in numbers[:-1]:
                if total <= self._settings.retention_bytes:
                    return
                path_of(self.folder, number).unlink()
                total -= sizes[number]

    # --- opening -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Repair the newest segment and append to it."""
        for leftover in self.folder.glob(f"*{_NEW}"):
            leftover.unlink()
        while numbers := numbers_of(self.folder):
            try:
                segment = Segment(self.folder, numbers[-1])
            except LogDamagedError as error:
                if self._settings.recover is not Recover.CUT:
                    raise
                path = Path(error.path)
                path.rename(path.with_name(path.name + _DAMAGED))
                continue
            with contextlib.closing(segment):
                self._repair(segment)
            return

    def _repair(self, segment: Segment) -> None:
        """Read a segment to its last complete block, cut off a torn tail, and append there."""
        size, at, header = segment.size(), segment.header.size, segment.header
        self.offsets, self.latest = dict(header.offsets), header.latest
        why = "a block is incomplete"
        try:
            while (block := segment.try_read(at, size)) is not None:
                at = block.end
                self._count(block.records)
        except BadBytesError as error:
            why = str(error)
        if at < size and self._settings.recover is not Recover.CUT and segment.has_marker(at, size):
            raise segment.damaged(at, why)
        try:
            fd = os.open(segment.path, os.O_RDWR)
            if at < size:
                os.ftruncate(fd, at)
                os.fsync(fd)
        except OSError as error:
            raise TransportError(f"{segment.path} cannot be written: {error.strerror}") from None
        self._append_to(fd, segment.number, header.sync, at)

    def _count(self, records: Sequence[Record]) -> None:
        for record in records:
            self.offsets[record.topic, record.partition] = record.offset + 1
            self.latest = max(self.latest, record.timestamp_ms)
