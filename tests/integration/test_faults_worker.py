"""A worker of the drills that is not done in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.server.faults.work import Task
from cardinal.server.faults.worker import StageError, Worker


def test_worker_that_is_not_done_in_time_is_ended(tmp_path: Path) -> None:
    nothing_comes = Task(f"file://{tmp_path}/log", "stem", 1, 3, str(tmp_path))
    worker = Worker("follow", nothing_comes).start()
    with pytest.raises(StageError, match="follow is not done after"):
        worker.end(0.2)
    assert not worker.running
