"""The wall clock of broker, producer and consumer jumps back by a day, and again, while they work.

The clock is moved for these processes alone, by a library that is loaded before libc (`wrong_clock.c`): what they ask
the system for the time is answered wrongly from one moment to the next, monotonic clocks go on. So the broker stamps
records a day, two and three days ago, and whatever Python, librdkafka and the JVM make of their own clocks is in it.
Not covered: a JVM's or interpreter's reading of the time without libc, and time zones.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from cardinal.protocols.streams.types import Partition, Record
from cardinal.server.faults.ground import Ground
from cardinal.server.faults.stage import Stage
from cardinal.transports import open_source
from cardinal.transports.read_range import read_range

DAY = 24 * 3600
SEED = 20_261_121

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a process's clock is moved by way of glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the library that moves clocks needs a C compiler"),
]


class Clock:
    """The clock of every process that is started from now on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = folder / "wrong_clock.so"
        source = Path(__file__).parents[1] / "wrong_clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        self._file = folder / "shift"
        self.set(0)
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("CARDINAL_CLOCK_SHIFT", str(self._file))

    def set(self, seconds: int) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))


def stamps(stage: Stage) -> dict[Partition, list[int]]:
    """The times of all records, in the order of each partition, in seconds."""
    found: dict[Partition, list[int]] = {}

    def take(record: Record) -> None:
        found.setdefault((record.topic, record.partition), []).append(record.timestamp_ms // 1000)

    source = open_source(stage.task.url, stage.task.application)
    try:
        marks = source.watermarks()
        read_range(source, {p: low for p, (low, _) in marks.items()}, {p: high for p, (_, high) in marks.items()}, take)
    finally:
        source.close()
    return found


def test_clocks_that_jump_back_by_a_day_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path, monkeypatch)
    with (
        Ground(tmp_path / "ground") as ground,
        Stage(tmp_path / "stage", ground.url, seed=SEED, blocks=360) as stage,
    ):
        for day, part in enumerate((0.2, 0.45, 0.7), 1):
            stage.until_acknowledged(part)
            clock.set(-day * DAY)
            worker = (stage.producer, stage.consumer)[day % 2]
            worker.kill()
            worker.start()  # which goes on from what an hour of another day has left
        assert stage.finish() == []
        clocks = [sys.executable, "-c", "import time; print(time.time())"]
        said = float(subprocess.run(clocks, capture_output=True, check=True, text=True).stdout)
        assert abs(time.time() - 3 * DAY - said) < DAY / 2
        jumps = {
            partition: sum(before - after > DAY / 2 for before, after in pairwise(times))
            for partition, times in stamps(stage).items()
        }
    # A jump is seen where records were written before and after it.
    assert 2 <= max(jumps.values()) <= 3
    assert sum(count > 0 for count in jumps.values()) > len(jumps) / 2
