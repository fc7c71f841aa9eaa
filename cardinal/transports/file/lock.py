"""Lock of a folder's writer: the operating system releases it when its process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

from cardinal.errors import LogInUseError, TransportError

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = "writer.lock"
_PID_MAX: Final = 32


class WriterLock:
    """Held from its making to :meth:`release`. The file stays: to remove it would let two hold it.

    Raises:
        LogInUseError: another writer holds it; also another one of this process.
        TransportError: the folder cannot be written, or its file system has no locks.

    """

    def __init__(self, folder: Path) -> None:
        try:
            fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise TransportError(f"the folder {folder} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, _PID_MAX, 0)
            pid = int(text) if text.isdigit() else None
            os.close(fd)
            who = "another process" if pid is None else f"process {pid}"
            raise LogInUseError(
                f"{who} writes to {folder} already: stop it, or choose another folder (any number may read it)", pid=pid
            ) from None
        except OSError as error:
            os.close(fd)
            raise TransportError(
                f"the folder {folder} cannot be locked: {error.strerror}; name one on a file system that has locks"
            ) from None
        self._fd: int | None = fd
        with contextlib.suppress(OSError):  # a full disk: then errors lack the process id
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let others write. May be called twice."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
