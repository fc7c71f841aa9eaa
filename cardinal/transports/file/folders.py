"""Folder of a log: names of its segments, and syncing of names to the disk.

A file that is synced is lost with a name that is not. A folder with very many names is listed when it changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path


_NAME: Final = re.compile(r"(\d{12})\.avro")
_LIST_SECONDS: Final = 1.0


def path_of(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"{number:012}.avro"


def numbers_of(folder: Path) -> list[int]:
    """The numbers of all segments that are there, ascending. TransportError where the folder cannot be read."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a path for each of very many names is what costs
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TransportError(f"the folder {folder} cannot be read: {error.strerror}") from None
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


class Listing:
    """The numbers of a folder's segments, to one who asks again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: list[int] = []
        self._changed: tuple[int, int] | None = None
        self._listed = -_LIST_SECONDS

    def numbers(self) -> list[int]:
        """The numbers of the segments that are there."""
        self._changed, self._listed = self._last_change(), time.monotonic()
        self._numbers = numbers_of(self._folder)
        return self._numbers

    def lately(self) -> list[int]:
        """As :meth:`numbers`, listed anew when the folder has changed, and when a second is over.

        Two changes may come within what the file system's clock tells apart.
        """
        if self._changed != self._last_change() or time.monotonic() - self._listed > _LIST_SECONDS:
            return self.numbers()
        return self._numbers

    def _last_change(self) -> tuple[int, int] | None:
        try:
            state = self._folder.stat()
        except FileNotFoundError:
            return None
        return state.st_ino, state.st_mtime_ns


def make_folder(folder: Path) -> None:
    """Make a folder and those above it where they are not there, and have their names on the disk.

    Raises:
        TransportError: it cannot be made.

    """
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new or (folder,):  # whoever made it may have died before its name was on the disk
            with contextlib.suppress(PermissionError):  # who may not look into the folder above cannot sync it
                sync_folder(path.parent)
    except OSError as error:
        reason = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise TransportError(
            f"the folder {folder} cannot be made: {reason}; name one that this user may write"
        ) from None


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
