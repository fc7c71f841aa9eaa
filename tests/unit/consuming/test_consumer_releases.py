"""A closed consumer holds nothing open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from blocks import DEADLINE, Blocks, line, publish, until
from cardinal.consumer import Consumer


def test_a_closed_consumer_has_no_file_of_the_stream_open(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    publish(url, line(1, 9))
    consumer = Consumer(url, Blocks(), idle_timeout=DEADLINE)
    until(consumer, "9a")
    assert _open_in(tmp_path / "log"), "it reads from files"
    consumer.close()
    assert not _open_in(tmp_path / "log")


def _open_in(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    inodes = {path.stat().st_ino: path.name for path in folder.iterdir()}
    found = []
    for fd in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the listing's own is closed by now
            found.append(os.fstat(int(fd.name)).st_ino)
    return [inodes[inode] for inode in found if inode in inodes]
