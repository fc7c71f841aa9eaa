"""`cardinal selftest --faults` as people run it, and who works for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cardinal.server.faults.work import Task

DEADLINE = 60.0


@pytest.mark.broker
@pytest.mark.slow
def test_the_table_says_what_was_injected_and_that_it_held() -> None:
    code = "from cardinal.cli import main; main()"
    command = [sys.executable, "-c", code, "selftest", "--faults", "--times", "2"]
    command += ["--only", "connection-reset", "--only", "topic-deleted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[0] == "fault"
    found = {row.split()[0]: row.split() for row in rows}
    assert set(found) == {"connection-reset", "topic-deleted"}
    for fields in found.values():
        assert fields[-1] == "yes"
        times, acknowledged, delivered = map(int, fields[-5:-2])
        assert times == 2, "what was really injected"
        assert acknowledged > delivered / 2 > 0
    assert int(found["connection-reset"][-4]) > 240, "every block of the chain, and those that lost"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("disk-full", marks=pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux")),
        pytest.param("broker-pause", marks=[pytest.mark.broker, pytest.mark.slow]),
    ],
)
def test_a_selftest_that_is_told_to_end_leaves_nothing_behind(fault: str, tmp_path: Path) -> None:
    code = "from cardinal.cli import main; main()"
    command = [sys.executable, "-c", code, "selftest", "--faults", "--only", fault, "--times", "50"]
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as selftest:
        deadline = time.monotonic() + DEADLINE
        while not list(tmp_path.glob(f"cardinal-faults-*/{fault}-0/acknowledged")):
            assert selftest.poll() is None
            assert time.monotonic() < deadline
        selftest.terminate()
        assert selftest.wait(DEADLINE) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_who_works_in_a_drill_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"kafka://127.0.0.1:{silent.getsockname()[1]}"
        task = Task(url, "nobody", 1, 10, str(tmp_path))
        for what in ("publish", "follow"):
            command = [sys.executable, "-m", "cardinal.server.faults.work", what, task.text()]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(DEADLINE) == -signal.SIGKILL
