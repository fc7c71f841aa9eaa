"""The benchmarks over Kafka and of ingest nodes run from end to end; their figures are not looked at here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.broker

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
DEADLINE = 480.0
"""Several times what it takes on a machine of its own."""

KAFKA = [
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
INGEST = [
    *(rf"blocks of {count} items of {size} B, 10 a second" for count, size in ((10, 300), (200, 1500))),
    *(rf"  last item to {what} +p50 +[\d.]+ +p99 +[\d.]+" for what in ("acknowledgement", "ChainUpdate")),
    r"  direct, transactional: add to ChainUpdate +p50 +[\d.]+",
    r"  ingest, to ChainUpdates +[\d.]+ MB/s +\d+% of direct",
    *(rf"  diffusion, {legs} +[\d.]+ MB/s +\d+% of raw" for legs in ("memory to memory", "disk to disk")),
]
CLUSTER = [
    *(rf"  n = {n}, batches of +{size}: +[\d,]+ blocks/s" for n in (1, 3, 5) for size in (1, 10, 100, 500)),
    r"  direct, to ChainUpdates +[\d.]+ MB/s",
    *(rf"  n = {n}, to ChainUpdates +[\d.]+ MB/s +\d+% of direct" for n in (1, 3)),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "rows"), [("kafka.py", KAFKA), ("ingest.py", INGEST), ("cluster.py agreement throughput", CLUSTER)]
)
def test_one_command_prints_every_row_of_the_benchmark(command: str, rows: list[str]) -> None:
    name, *parts = command.split()
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, "--quick", *parts],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in rows:
        assert re.search(row, done.stdout), f"{row!r} is not in\n{done.stdout}"


def test_one_part_can_be_selected_by_its_name() -> None:
    command = [sys.executable, str(BENCHMARKS / "kafka.py"), "--quick", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "producer" in done.stderr
