"""In which order the disk is asked for segments: what a power cut leaves is a log without a gap."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cardinal.transports.file import writer
from cardinal.transports.file.folders import numbers_of, path_of
from file_logs import DEADLINE, block, sink_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Asked(NamedTuple):
    """What the system was asked: to ``sync`` or ``write`` a file; and how large that was before."""

    what: str
    inode: int
    size: int


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Everything that the writer asks of the real disk, in order."""
    asked: list[Asked] = []

    def note(what: str, call: Callable[..., int | None]) -> Callable[..., int | None]:
        def noted(fd: int, *rest: object) -> int | None:
            stat = os.fstat(fd)
            asked.append(Asked(what, stat.st_ino, stat.st_size))
            return call(fd, *rest)

        return noted

    monkeypatch.setattr(writer, "_sync_data", note("sync", writer._sync_data))
    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "pwrite", note("write", os.pwrite))
    return asked


@pytest.mark.parametrize("policy", ["always", "never"])
def test_a_segment_and_the_name_of_the_next_are_on_the_disk_before_that_has_a_record(
    asked: list[Asked], tmp_path: Path, policy: str
) -> None:
    sink = sink_of(tmp_path, f"segment.bytes=2000&fsync={policy}")
    for number in range(30):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    segments = [path_of(tmp_path, number).stat() for number in numbers_of(tmp_path)]
    folder = tmp_path.stat().st_ino
    assert len(segments) > 3
    for before, after in pairwise(segments):
        first_record = next(at for at, one in enumerate(asked) if one[:2] == ("write", after.st_ino))
        synced = [at for at, one in enumerate(asked[:first_record]) if one.what == "sync"]
        header = [at for at in synced if asked[at].inode == after.st_ino]
        assert ("sync", before.st_ino, before.st_size) in asked[:first_record], "the one before is not whole"
        assert header, "its header may be lost"
        assert any(asked[at].inode == folder for at in synced if at > header[-1]), "its name may be lost"


@pytest.mark.parametrize("there", ["", "new", "new/log"])
def test_the_names_of_the_folders_are_on_the_disk_before_there_is_a_record(
    asked: list[Asked], tmp_path: Path, there: str
) -> None:
    """Also of one that is there: whoever made it may have died before its name was on the disk."""
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    sink_of(tmp_path / "new" / "log").close()
    first_record = next(at for at, one in enumerate(asked) if one.what == "write" and one.size)
    synced = {one.inode for one in asked[:first_record] if one.what == "sync"}
    made = ["new"] if there else ["", "new"]
    assert synced >= {(tmp_path / above).stat().st_ino for above in made}
