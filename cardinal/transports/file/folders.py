"""Making a log's folder, and having names on the disk: a file that is synced is lost with a name that is not."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from cardinal.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path


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
