"""The benchmark of the way over Kafka runs from end to end; what its figures are is not looked at here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.broker

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "kafka.py"
DEADLINE = 240.0
"""Far more than the few seconds that it takes on a machine of its own."""

ROWS = [
    *(rf"[\d,]+ messages of {size} B in blocks of {blocks}" for size in ("300", "3000") for blocks in (200, 10)),
    *(rf"  {leg} +[\d,]+ msg/s +[\d.]+ us/msg" for leg in ("raw", "raw, sealing", "Producer", "split")),
    r"  1 block an update +[\d,]+ msg/s .* of without",
    r"  10 blocks an update +[\d,]+ msg/s .* of without",
    r"Consumer to ChainUpdates",
    r" 10 blocks/s, add to ChainUpdate +p50 +[\d.]+ ms",
    r" 1000 blocks/s, add to ChainUpdate +p50 +[\d.]+ ms",
    r"resident memory while [\d,]+ messages of 300 B are produced",
    r"resident memory while [\d,]+ messages are caught up with",
]


@pytest.mark.slow
def test_one_command_prints_every_row_of_the_kafka_benchmark() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick"], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    for row in ROWS:
        assert re.search(row, done.stdout), f"{row!r} is not in\n{done.stdout}"


def test_one_part_can_be_asked_for_by_its_name() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "producer" in done.stderr
