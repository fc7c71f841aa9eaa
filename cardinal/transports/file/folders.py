"""Folder of a log: names of its segments, and syncing of names to the disk.

A synced file is lost where its name is not synced.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from cardinal.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path


_NAME: Final = re.compile(r"(\d{12})\.avro")


def path_of(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"{number:012}.avro"


def numbers_of(folder: Path) -> list[int]:
    """The numbers of all existing segments, ascending. TransportError where the folder cannot be read."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a path for each of very many names is what costs
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TransportError(f"the folder {folder} cannot be read: {error.strerror}") from None
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and sync their names to the disk.

    Raises:
        TransportError: it cannot be made.

    """
    try:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new or (folder,):  # a process that made it may have died before it synced the name
            with contextlib.suppress(PermissionError):  # the folder above may be unreadable, and then cannot be synced
                sync_folder(path.parent)
    except OSError as error:
        reason = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise TransportError(
            f"the folder {folder} cannot be made: {reason}; name one that this user may write"
        ) from None


def sync_folder(folder: Path) -> None:
    """Sync the names of a folder's files to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
