"""`cardinal demo` from beginning to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE = 900

pytestmark = pytest.mark.timeout(DEADLINE + 60)


def demo(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cardinal", "demo", "--dir", str(folder / "demo"), *arguments]


def left_running(folder: Path) -> list[str]:
    """Command lines of processes that name the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


@pytest.mark.broker
@pytest.mark.parametrize(
    "through", [(), pytest.param(("--ingest",), marks=pytest.mark.slow)], ids=["producers", "publishers"]
)
def test_the_consumer_ends_at_the_nodes_chain(tmp_path: Path, through: tuple[str, ...]) -> None:
    arguments = demo(tmp_path, "--no-spark", "--blocks", "24", "--rate", "30", *through)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the consumer's chain equals the node's chain" in done.stdout
    assert not left_running(tmp_path)


@pytest.mark.soak  # the lake at a cluster is the same with more
@pytest.mark.broker
def test_the_consumer_ends_at_the_nodes_chain_though_a_clusters_leader_and_a_publisher_are_killed(
    tmp_path: Path,
) -> None:
    arguments = demo(tmp_path, "--cluster", "--no-spark", "--blocks", "24", "--rate", "30")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the consumer's chain equals the node's chain" in done.stdout
    assert_killed(done.stdout)
    assert not left_running(tmp_path)


def assert_killed(said: str) -> None:
    """The leader and a publisher were killed, the chain went on without them, and they are back."""
    line = r"killed +(\S+), [\w ]+, at block (\d+); restarted at block (\d+), back after [\d.]+ s"
    (leader, *first), (publisher, *second) = re.findall(line, said)
    assert leader in {"ingest-a", "ingest-b", "ingest-c"}
    assert publisher == "publisher-a"
    for killed_at, resumed_at in (first, second):
        assert int(resumed_at) >= int(killed_at)


@pytest.mark.spark
@pytest.mark.parametrize(
    "through",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("--ingest",), marks=pytest.mark.soak),
        pytest.param(("--cluster",), marks=pytest.mark.slow),
    ],
    ids=["producers", "publishers", "cluster"],
)
def test_the_lake_equals_the_nodes_chain_after_reorgs(tmp_path: Path, through: tuple[str, ...]) -> None:
    done = subprocess.run(demo(tmp_path, *through), capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "consumer and lake equal the node's chain" in done.stdout
    depths = [tuple(map(int, pair)) for pair in re.findall(r"(\d+)→(\d+)", done.stdout)]
    assert len(depths) >= 3
    assert any(removed >= 3 for removed, _ in depths)
    if not through:  # ingest nodes leave out forks that are over when they promote, on a busy machine more of them
        assert any(added < removed for removed, added in depths)
    crossing = re.search(r"(\d+) across a boundary of Spark batches", done.stdout)
    assert crossing
    assert int(crossing[1]) >= 1
    if "--cluster" in through:
        assert_killed(done.stdout)
    assert not left_running(tmp_path)


@pytest.mark.broker
@pytest.mark.parametrize(
    "ending",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL],
)
def test_the_demo_leaves_nothing_behind_however_it_ends(tmp_path: Path, ending: signal.Signals) -> None:
    process = subprocess.Popen(
        demo(tmp_path, "--no-spark", "--blocks", "400", "--rate", "2"),  # for longer than any machine takes to begin
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("+ "):
            break
    process.send_signal(ending)
    process.stdout.read()
    assert process.wait(60) != 0
    process.stdout.close()
    deadline = time.monotonic() + 30
    while left_running(tmp_path):
        assert time.monotonic() < deadline, left_running(tmp_path)
        time.sleep(0.05)
