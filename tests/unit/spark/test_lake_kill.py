"""A driver that is really killed: SIGKILL in a process of its own, at random moments of its commits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from cardinal_spark.lake import last_committed
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.state import find_state
from cardinal_spark.testing import image, image_of, script

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal_spark.rows import RawRow

UPDATES = (
    "1a 2a | 3a | -3a -2a 2b 3b | 4b | 5b | -5b -4b -3b 3c | 4c 5c | 6c | -6c 6d | 7d | -7d -6d 6c 7c 8c | 9c | 10c | "
    "-10c -9c 9e | 10e 11e | 12e | -12e -11e -10e -9e 9c 10c 11c"
)

DRIVER = """
import os, sys
from pathlib import Path
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.testing import commit_batch, script
place, checkpoint = LakeLocation.of(sys.argv[1]), Path(sys.argv[3])
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("ready", flush=True)
for number, update in enumerate(script(sys.argv[2])):
    if number >= done:
        commit_batch(place, [update[::2], update[1::2]])
        checkpoint.with_suffix(".new").write_text(str(number + 1))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
"""
"""A driver with a checkpoint of its own: a number of batches, written after each commit."""


def drive(folder: Path, kill_after: float | None) -> bool:
    """Run a driver over all updates; False where it was killed, ``kill_after`` seconds after it was ready."""
    command = [sys.executable, "-c", DRIVER, str(folder / "lake"), UPDATES, str(folder / "checkpoint")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        try:
            driver.wait(kill_after)
        except subprocess.TimeoutExpired:
            driver.send_signal(signal.SIGKILL)
            return False
        assert driver.returncode == 0
        return True


@pytest.mark.slow
def test_a_killed_driver_leaves_what_an_uninterrupted_one_leaves(tmp_path: Path) -> None:
    rows = list(chain.from_iterable(script(UPDATES)))
    moments = random.Random(7)
    kills = 0
    while kills < 8 and not drive(tmp_path, moments.uniform(0.005, 0.16)):
        kills += 1
        assert_some_state(tmp_path, rows)
    assert kills >= 4
    assert drive(tmp_path, None)
    assert image(str(tmp_path / "lake")) == image_of(rows)


def assert_some_state(folder: Path, rows: list[RawRow]) -> None:
    lake = str(folder / "lake")
    if find_state(LakeLocation.of(lake)) is None:  # killed before canonical's first commit
        return
    seen = image(lake)
    assert seen == image_of([row for row in rows if row.seq <= seen.ledger[-1][0]])
    held = last_committed(lake)
    assert held is not None
    assert held.seq >= seen.ledger[-1][0]
