"""Errors of the operating system on files are mapped to one of Cardinal's."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import LogInUseError, TransportError
from cardinal.transports import list_topics
from cardinal.transports.file.segments import Segment
from file_logs import DEADLINE, block, everything, sink_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cardinal.transports.file import FileSource

FAST = "fsync=never"


def broken(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def fill(folder: Path) -> None:
    sink = sink_of(folder, FAST)
    for number in range(5):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda source: source.poll(10, 0.0), id="poll"),
        pytest.param(lambda source: source.assign(dict.fromkeys(source.partitions(), 0)), id="assign"),
        pytest.param(lambda source: source.watermarks(), id="watermarks"),
        pytest.param(lambda source: source.offsets_for_time(0), id="offsets for a time"),
    ],
)
def test_a_disk_that_cannot_be_read_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ask: Callable[[FileSource], object]
) -> None:
    fill(tmp_path)
    source = source_of(tmp_path)
    if request.node.callspec.id == "poll":  # else it has not read to the end yet
        source.assign(dict.fromkeys(source.partitions(), 0))
    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(TransportError, match="cannot be read: Input/output error"):
        ask(source)
    monkeypatch.undo()
    source.assign(dict.fromkeys(source.partitions(), 0))
    assert len(source.poll(100, 0.0)) == len(everything(tmp_path, heartbeats=True))
    source.close()


def test_a_header_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setattr(Segment, "__init__", broken)
    with pytest.raises(TransportError, match="cannot be read: Input/output error"):
        list_topics(f"file://{tmp_path}")
    with pytest.raises(TransportError, match="cannot be read: Input/output error"):
        source_of(tmp_path)
    with pytest.raises(TransportError, match="opened for writing: Input/output error"):
        sink_of(tmp_path)
    monkeypatch.undo()
    sink_of(tmp_path).close()  # and the folder was given free


def test_a_leftover_that_cannot_be_removed_is_an_error_of_ours(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "000000000002.avro.new").mkdir()
    with pytest.raises(TransportError, match="opened for writing"):
        sink_of(tmp_path)


def test_a_file_system_without_locks_is_not_called_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(TransportError, match="a file system that has locks") as caught:
        sink_of(tmp_path)
    assert not isinstance(caught.value, LogInUseError)
