"""Segments that are removed, replaced or cut while they are read or written: reader and writer raise."""

from __future__ import annotations

import shutil
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, line, publish
from cardinal.copying.recording import Recorder
from cardinal.errors import CursorExpiredError, LogDamagedError, TransportError
from cardinal.testing.memory import MemoryBroker
from file_logs import DEADLINE, block, everything, sink_of, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.transports.file import FileSink, FileSource

SEGMENT = "000000000001.avro"


def fill(folder: Path, first: int, last: int, options: str = "fsync=never") -> FileSink:
    sink = sink_of(folder, options)
    for number in range(first, last):
        sink.send(*block(number)).result(DEADLINE)
    return sink


def at_the_end(folder: Path) -> FileSource:
    source = source_of(folder)
    source.assign({where: high for where, (_, high) in source.watermarks().items()})
    assert source.poll(10, 0.0) == []
    return source


def read_on(source: FileSource) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        source.poll(100, 0.1)


def step_until(recorder: Recorder, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < count:
        assert time.monotonic() < deadline
        recorder.step(0.05)


@pytest.mark.parametrize("options", ["fsync=always", "fsync=never"])
def test_nothing_is_acknowledged_into_a_segment_that_was_removed(tmp_path: Path, options: str) -> None:
    sink = fill(tmp_path, 0, 5, options)
    (tmp_path / SEGMENT).unlink()
    error = sink.send(*block(5)).exception(DEADLINE)
    assert isinstance(error, TransportError)
    assert "removed or replaced" in str(error)
    sink.close()
    fill(tmp_path, 5, 7, options).close()
    assert {int.from_bytes(record.key[1:33]) for record in everything(tmp_path)} == {5, 6}


def test_a_recording_whose_segment_is_removed_says_so(tmp_path: Path) -> None:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        publish(broker, line(1, 5))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        step_until(recorder, len(broker.records()))
        for segment in tmp_path.glob("*.avro"):
            segment.unlink()
        publish(broker, line(6, 9))
        with pytest.raises(TransportError, match="removed or replaced"):
            step_until(recorder, len(broker.records()))
        recorder.close()


def test_a_reader_is_told_that_retention_has_overtaken_it(tmp_path: Path) -> None:
    fill(tmp_path, 0, 100, "fsync=never&segment.bytes=5000").close()
    oldest, *others = sorted(tmp_path.glob("*.avro"))
    reader = source_of(tmp_path)
    reader.assign({where: low for where, (low, _) in reader.watermarks().items()})
    first = reader.poll(1, 0.0)
    assert first
    for segment in (oldest, *others[:2]):
        segment.unlink()
    with pytest.raises(CursorExpiredError, match="retention"):
        read_on(reader)
    reader.close()


def test_a_reader_is_told_that_a_segment_in_the_middle_is_missing(tmp_path: Path) -> None:
    fill(tmp_path, 0, 100, "fsync=never&segment.bytes=5000").close()
    sorted(tmp_path.glob("*.avro"))[1].unlink()
    reader = source_of(tmp_path)
    reader.assign({where: low for where, (low, _) in reader.watermarks().items()})
    with pytest.raises(LogDamagedError, match="segment 2 is missing, and later ones are there"):
        read_on(reader)
    reader.close()


def test_a_reader_is_told_that_the_folder_was_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    fill(folder, 0, 20).close()
    reader = at_the_end(folder)
    shutil.rmtree(folder)
    sink = fill(folder, 100, 200, "fsync=never&segment.bytes=5000")
    with pytest.raises(CursorExpiredError, match="replaced"):
        read_on(reader)
    reader.close()
    sink.close()


def test_a_reader_is_told_that_the_newest_segment_was_removed(tmp_path: Path) -> None:
    fill(tmp_path, 0, 40, "fsync=never&segment.bytes=3000").close()
    reader = at_the_end(tmp_path)
    max(tmp_path.glob("*.avro")).unlink()
    with pytest.raises(CursorExpiredError, match="removed"):
        read_on(reader)
    sink = fill(tmp_path, 100, 200, "fsync=never&segment.bytes=3000")  # the number is given again
    with pytest.raises(CursorExpiredError, match="replaced"):
        read_on(reader)
    reader.close()
    sink.close()


@pytest.mark.parametrize("more", [0, 10, 100])
def test_a_reader_is_told_that_damage_was_cut_off_before_its_place(tmp_path: Path, more: int) -> None:
    fill(tmp_path, 0, 40).close()
    reader = at_the_end(tmp_path)
    data = bytearray((tmp_path / SEGMENT).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / SEGMENT).write_bytes(data)
    sink = fill(tmp_path, 1_000, 1_000 + more, "fsync=never&recover=cut")
    with pytest.raises(CursorExpiredError, match="cut off"):
        read_on(reader)
    reader.close()
    sink.close()
