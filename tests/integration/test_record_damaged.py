"""Recording of a folder: in its own order, and of a damaged one everything before the damage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line
from cardinal.copying.recording import Recorder
from cardinal.errors import LogDamagedError
from damaged_logs import COUNT, LATER, middle, read_before, recording, torn
from recordings import record_all, records_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _step(recorder: Recorder) -> None:
    """Until the recording ends, or something ends it."""
    deadline = time.monotonic() + DEADLINE
    while not recorder.at_end:
        assert time.monotonic() < deadline, recorder.progress
        recorder.step(0.05)


@pytest.mark.parametrize("damaged", [middle, torn])
def test_records_before_a_damage_are_recorded_before_it_is_reported(
    tmp_path: Path, damaged: Callable[[Path], Path]
) -> None:
    url, copy = recording(tmp_path / "one", Blocks(), line(1, 2 * COUNT)), f"file://{tmp_path}/two"
    path = damaged(tmp_path / "one")
    before = read_before(url, Blocks())
    assert len(before) > LATER
    for _ in range(2):
        recorder = Recorder(url, copy, Blocks())
        with pytest.raises(LogDamagedError, match=str(path)):
            _step(recorder)
        recorder.close()
        assert [record for record in records_of(copy) if record.key] == before


def test_a_copy_of_a_folder_keeps_its_order(tmp_path: Path) -> None:
    url = recording(tmp_path / "one", Blocks(), line(1, 2 * COUNT))
    record_all(url, tmp_path / "two")
    assert records_of(f"file://{tmp_path}/two") == records_of(url)
