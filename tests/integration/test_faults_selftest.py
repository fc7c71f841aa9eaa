"""`cardinal selftest --faults` as people run it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_the_table_says_what_was_injected_and_that_it_held() -> None:
    code = "from cardinal.cli import main; main()"
    command = [sys.executable, "-c", code, "selftest", "--faults", "--times", "2", "--only", "connection-reset"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    head, row = done.stdout.splitlines()
    assert head.split()[0] == "fault"
    fields = row.split()
    assert (fields[0], fields[-1]) == ("connection-reset", "yes")
    times, acknowledged, delivered = map(int, fields[-5:-2])
    assert times == 2
    assert acknowledged > 240, "every block of the chain, and those that lost"
    assert delivered >= 241
