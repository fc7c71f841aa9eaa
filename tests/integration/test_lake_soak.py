"""A lake after 20,000 batches of one small block each: it stays as small and as fast as it was.

Times are printed, wall and processor, and nothing depends on them: machines are shared.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import pytest

from cardinal_spark.lake import Snapshot, last_committed
from cardinal_spark.lake.commit import LakeCommitter
from cardinal_spark.lake.decode import write_task
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import clean
from cardinal_spark.rows import raw_batch
from cardinal_spark.testing import Script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMITS: Final = 20_000
WINDOW: Final = 1_000
WARM_UP: Final = 200

LOG_BYTES: Final = 200_000_000
FILES: Final = 1_000
TABLES: Final = ("payload", "events", "canonical")


def log_bytes(lake: Path) -> int:
    return sum(file.stat().st_size for file in lake.glob("*/_delta_log/*"))


def data_files(lake: Path) -> int:
    return sum("_delta_log" not in file.parts for file in lake.rglob("*.parquet"))


def named_files(place: LakeLocation) -> int:
    return sum(len(place.open(name).file_uris()) for name in TABLES)


class Times:
    """The milliseconds of each block of code that it is entered for, on a clock of seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: list[float] = []
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = self._clock()

    def __exit__(self, *_: object) -> None:
        self._times.append((self._clock() - self._begun) * 1000)

    def __str__(self) -> str:
        """The medians of the first ones, after a warm-up, and of the last ones."""
        first, last = (statistics.median(some) for some in (self._times[WARM_UP:][:WINDOW], self._times[-WINDOW:]))
        return f"{first:.0f} and {last:.0f} ms ({last / first:.2f})"


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_lake_of_many_small_batches_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    place, stream = LakeLocation.of(str(lake)), Script()
    committer, wall, processor = LakeCommitter(place), Times(time.perf_counter), Times(time.process_time)
    for number in range(COMMITS):
        batch = raw_batch(stream.update(f"{number}a"))
        with wall, processor:
            committer.commit([write_task([batch], place, committer.settings)])
        if (number + 1) % WINDOW == 0:
            files = f"{named_files(place)} files in tables, {data_files(lake)} on disk"
            with capsys.disabled():
                print(  # noqa: T201 - figures are what it is for
                    f"{number + 1:>6} commits: p50 of the first {WINDOW} and the last {wall}, "
                    f"of processors {processor}; log {log_bytes(lake) / 1e6:.1f} MB, {files}",
                    flush=True,
                )
    assert log_bytes(lake) <= LOG_BYTES
    assert named_files(place) <= FILES
    assert clean(place, retention_hours=0) > 0
    assert data_files(lake) <= FILES
    end = last_committed(str(lake), depth=1)
    assert end is not None
    assert (end.seq, end.head.number) == (COMMITS, COMMITS - 1)
    assert Snapshot.of(place).scan("canonical").read_all().num_rows == COMMITS
