"""The file transport's promises under kills, and with several processes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cardinal.errors import LogInUseError
from file_logs import everything, sink_of

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from file_logs import block, sink_of

pytestmark = pytest.mark.process

def tell(number):
    return lambda done: print("acknowledged", number, flush=True) if done.exception() is None else None

sink = sink_of(Path({folder!r}), {options!r})
print("ready", flush=True)
number = int(sys.argv[1])
while True:
    sink.send(*block(number, messages=6, size=200)).add_done_callback(tell(number))
    number += 1
"""

KEYS = 7
KILLS_OF_A_LOG = 10
"""All of a log is read after each of them, so a longer one costs the square."""


def writer(folder: Path, options: str, first: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    script = WRITER.format(tests=tests, folder=str(folder), options=options)
    return subprocess.Popen([sys.executable, "-c", script, str(first)], stdout=subprocess.PIPE, text=True)


def kill_while_it_writes(folder: Path, options: str, first: int, rng: random.Random) -> list[int]:
    """What was acknowledged until then."""
    process = writer(folder, options, first)
    assert process.stdout is not None
    acknowledged: list[int] = []
    until = rng.randrange(1, 150)
    try:
        assert process.stdout.readline() == "ready\n"
        while len(acknowledged) < until:
            acknowledged.append(int(process.stdout.readline().split()[1]))
        spin = time.perf_counter() + rng.random() * 0.02
        while time.perf_counter() < spin:
            pass  # anywhere within a group, not only right after an acknowledgement
    finally:
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
    # The last line may be half of one.
    return acknowledged + [int(line.split()[1]) for line in said.splitlines(keepends=True)[:-1]]


def survives(folder: Path, options: str, kills: int, rng: random.Random) -> None:
    """One log, whose writer is killed again and again; all of it is read after each time."""
    acknowledged: list[int] = []
    first = 0
    for _ in range(kills):
        acknowledged += kill_while_it_writes(folder, f"{options}&segment.bytes=30000", first, rng)
        first = 1_000_000 * (1 + len(acknowledged))
        records = everything(folder)  # offsets without a hole are checked there
        keys = [record.key for record in records]
        assert len(set(keys)) == len(keys)
        found: dict[bytes, int] = {}
        for record in records:
            found[record.key[1:33]] = found.get(record.key[1:33], 0) + 1
            if record.key[0] == 0:  # a seal that can be read means a whole block
                assert found[record.key[1:33]] == KEYS
        assert all(found.get(number.to_bytes(32, "big")) == KEYS for number in acknowledged)
    sink_of(folder).close()


@pytest.mark.timeout(1800)  # a hundred kills
@pytest.mark.parametrize("options", ["fsync=always", "fsync=never"])
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_a_writer_killed_at_random_points_loses_nothing_that_it_acknowledged(
    tmp_path: Path, options: str, kills: int
) -> None:
    rng = random.Random(kills)
    for log in range(0, kills, KILLS_OF_A_LOG):
        folder = tmp_path / f"{log}"
        survives(folder, options, min(KILLS_OF_A_LOG, kills - log), rng)
        shutil.rmtree(folder)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    process = writer(tmp_path, "", 0)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(LogInUseError, match=f"process {process.pid} ") as caught:
            sink_of(tmp_path)
        assert caught.value.pid == process.pid
    finally:
        process.kill()
        process.communicate()
    sink_of(tmp_path).close()
