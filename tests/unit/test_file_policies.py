"""When the disk is asked, and who else reads the files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from cardinal.transports.file import writer
from file_logs import DEADLINE, block, everything, sink_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Disk:
    """Asks the real disk, and keeps when, and how much had been written by then."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.asked: list[tuple[float, int]] = []

    def __call__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        self._sync(fd)
        self.asked.append((time.monotonic(), size))

    @property
    def keeps(self) -> int:
        """Bytes of the segment that are on the disk."""
        return self.asked[-1][1] if self.asked else 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(writer._sync_data)
    monkeypatch.setattr(writer, "_sync_data", disk)
    return disk


@pytest.mark.parametrize("policy", ["fsync=always", "fsync=interval&fsync.interval.ms=40"])
def test_nothing_is_acknowledged_that_the_disk_does_not_keep(disk: Disk, tmp_path: Path, policy: str) -> None:
    sink = sink_of(tmp_path, policy)
    sizes = []
    for number in range(5):
        sink.send(*block(number)).result(DEADLINE)
        sizes.append((disk.keeps, (tmp_path / "000000000001.avro").stat().st_size))
    sink.close()
    assert all(kept == written for kept, written in sizes)
    assert [written for _, written in sizes] == sorted({written for _, written in sizes})


def test_at_intervals_the_disk_is_asked_once_for_all_that_came_in_one(disk: Disk, tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=interval&fsync.interval.ms=100")
    began, before = time.monotonic(), len(disk.asked)
    futures = [sink.send(*block(number)) for number in range(100)]
    for future in futures:
        future.result(DEADLINE)
    took, asked = time.monotonic() - began, len(disk.asked) - before
    assert took >= 0.1  # acknowledgements wait for it
    assert 1 <= asked <= 1 + took / 0.1
    sink.close()


def test_never_means_that_the_operating_system_is_trusted(disk: Disk, tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=never")
    opening = len(disk.asked)
    for number in range(20):
        sink.send(*block(number)).result(DEADLINE)
    assert len(disk.asked) == opening
    assert len(everything(tmp_path)) == 100
    sink.close()


def test_an_avro_reader_of_other_makers_reads_the_segments(tmp_path: Path) -> None:
    """Rust's, in Polars; Java's, on which Spark's stands, reads them in tests/spark."""
    polars = pytest.importorskip("polars")
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    for number in range(30):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    segments = sorted(tmp_path.glob("*.avro"))
    assert len(segments) > 2
    rows = [row for segment in segments for row in polars.read_avro(segment).iter_rows(named=True)]
    ours = everything(tmp_path, heartbeats=True)
    assert [(row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        (one.topic, one.partition, one.offset, one.key, one.value) for one in ours
    ]
    assert [tuple((each["name"], each["value"]) for each in row["headers"]) for row in rows] == [
        one.headers for one in ours
    ]
