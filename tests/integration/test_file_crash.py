"""The file transport's promises, by really killing, filling and running several processes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cardinal.errors import DeliveryError, LogInUseError
from file_logs import DEADLINE, block, everything, sink_of

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from file_logs import block, sink_of

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


FULL = """
import resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from cardinal.errors import CardinalError
from file_logs import block, everything, sink_of

folder = Path({folder!r})
sink = sink_of(folder, "fsync=always&cardinal.partitions=1")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
futures = [sink.send(*block(number, messages=5, size=300)) for number in range(60)]
failed = []
for number, future in enumerate(futures):
    try:
        future.result(20)
    except CardinalError as error:
        assert error.retriable and error.hash == number.to_bytes(32, "big"), error
        failed.append(number)
        said = str(error)
assert failed and len(failed) < 60, failed
print(said)
readable = len(everything(folder))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for number in failed:
    sink.send(*block(number, messages=5, size=300)).result(20)
assert len(everything(folder)) > readable
sink.close()
"""


@pytest.mark.parametrize("limit", [6_000, 6_001, 6_700, 7_777])
def test_a_full_disk_fails_those_blocks_alone_and_writing_goes_on_when_there_is_room(
    tmp_path: Path, limit: int
) -> None:
    tests = str(Path(__file__).parents[1])
    script = FULL.format(tests=tests, folder=str(tmp_path), limit=limit)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not be written" in done.stdout
    assert "make room and send it again" in done.stdout
    keys = [record.key for record in everything(tmp_path)]
    assert {key[1:33] for key in keys} == {number.to_bytes(32, "big") for number in range(60)}
    assert len(set(keys)) == 60 * 6


def test_no_room_for_the_next_segment_is_said_and_tried_again(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "segment.bytes=1000")
    sink.send(*block(1, messages=20, size=100)).result(DEADLINE)
    in_the_way = tmp_path / "000000000002.avro.new"
    in_the_way.mkdir()  # nobody, root neither, can make a file of this name
    with pytest.raises(DeliveryError, match="make room and send it again") as caught:
        sink.send(*block(2)).result(DEADLINE)
    assert caught.value.hash == (2).to_bytes(32, "big")
    in_the_way.rmdir()
    sink.send(*block(2)).result(DEADLINE)
    sink.close()
    assert {record.key[1:33] for record in everything(tmp_path)} == {n.to_bytes(32, "big") for n in (1, 2)}
    assert len(list(tmp_path.glob("*.avro"))) == 2
