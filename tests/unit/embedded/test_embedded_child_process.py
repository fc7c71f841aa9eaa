import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cardinal._directories import is_locked
from cardinal_devkit.kafka.child_process import ChildProcess

OWNER = """
import os, sys, threading
from pathlib import Path
from cardinal._directories import try_lock
from cardinal._directories import is_locked
from cardinal_devkit.kafka.child_process import ChildProcess

pytestmark = pytest.mark.process
here = Path(sys.argv[1])
def start():
    lock = try_lock(here / "lock")
    child = ChildProcess(["/bin/sleep", "300"], log=here / "log", folder=here, keep=lock)
    os.close(lock)
    if sys.argv[2] == "release":
        child.release()
    print(child.process.pid, flush=True)
thread = threading.Thread(target=start)  # the thread ends, the process does not
thread.start()
thread.join()
sys.stdin.read()
"""


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def lives(folder: Path) -> bool:
    """Whether the child lives: it holds the lock for as long."""
    return is_locked(folder / "lock")


def owner(folder: Path, what: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_child_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    process, _ = owner(tmp_path, "hold")
    assert lives(tmp_path)
    end(process)
    assert within(10, lambda: not lives(tmp_path))


def test_a_paused_child_dies_with_its_owner_too(tmp_path: Path) -> None:
    process, child = owner(tmp_path, "hold")
    os.kill(child, signal.SIGSTOP)
    end(process)
    assert within(10, lambda: not lives(tmp_path))


def test_a_released_child_outlives_its_owner(tmp_path: Path) -> None:
    process, child = owner(tmp_path, "release")
    end(process)
    try:
        assert not within(0.3, lambda: not lives(tmp_path))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_does_not_exist_leaves_no_guard_behind(tmp_path: Path) -> None:
    kept = os.open(tmp_path / "kept", os.O_CREAT)
    with pytest.raises(FileNotFoundError):
        ChildProcess(["true"], log=tmp_path / "log", folder=tmp_path / "nowhere", keep=kept)
    os.close(kept)
