"""A worker of the drills that is not done in time, and one that falls."""

from __future__ import annotations

import signal
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


BY_PYTHON = "import ctypes; ctypes.string_at(0)"
BY_A_LIBRARY = """
import ctypes, threading
thread, nowhere = ctypes.c_ulong(), ctypes.c_void_p(8)
ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, nowhere, None)
threading.Event().wait()
"""


def falling(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that falls at its first start, and has nothing to do at its second."""
    task = Task(f"file://{folder}/log", "stem", 1, 3, str(folder))
    once = f"import pathlib, sys\nsys.exit() if pathlib.Path({str(folder)!r}, 'publish.again').exists() else None\n"
    once += f"pathlib.Path({str(folder)!r}, 'publish.again').touch()\n"
    Path(folder, "falls.py").write_text(once + program)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr("cardinal.server.faults.worker.PROGRAM", "falls")
    return Worker("publish", task).start()


def test_worker_that_the_client_brought_down_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = falling(BY_A_LIBRARY, tmp_path, monkeypatch)
    worker.end()
    assert worker.crashes == 1


def test_worker_that_python_brought_down_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = falling(BY_PYTHON, tmp_path, monkeypatch)
    with pytest.raises(StageError, match=f"publish ended with status -{signal.SIGSEGV.value}"):
        worker.end()
    assert worker.crashes == 0
