"""Scenarios, faults and processes of the cases, on a stream of files: what a fault meets, and how a worker ends."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import pytest
from faults import injections
from faults.environments import ClusterEnvironment, Environment, FileEnvironment
from faults.process import ScenarioError, Worker, variables
from faults.scenario import Scenario
from faults.work import Task

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import Partition

TIMES = 4


class SlowBroker:
    """It takes as long to start as the producer still publishes; notes whether both were at work all the time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.met: list[bool] = []

    def node(self, number: int) -> SlowBroker:
        assert number == 1
        return self

    def kill(self) -> None:
        self.met.append(self.scenario.at_work)

    def start(self) -> None:
        self.scenario.until(self._nothing_more, "without anything to publish")
        self.met.append(self.scenario.at_work)

    def _nothing_more(self) -> bool:
        last = self.scenario.task.leave.read()
        may = list(takewhile(lambda payload: last is None or payload.number <= last, self.scenario.task.payloads))
        return self.scenario.acknowledged >= len(may) or not self.scenario.producer.running


class FileCluster(ClusterEnvironment):
    def leader(self, topic: str) -> int:
        return len([topic])

    @property
    def url(self) -> str:
        return f"file://{self.folder}/log"


class Untouched(FileEnvironment):
    """Nothing is removed; notes what was to be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.trimmed: list[Mapping[Partition, int]] = []

    def trim(self, floors: Mapping[Partition, int]) -> None:
        self.trimmed.append(dict(floors))


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    with Scenario(tmp_path / "scenario", f"file://{tmp_path}/log", seed=3, blocks=60 * TIMES, pace=2_000) as scenario:
        yield scenario


@pytest.mark.process
@pytest.mark.parametrize(
    ("inject", "kind"),
    [(injections.kill_broker, FileEnvironment), (injections.lose_leader, FileCluster)],
    ids=["kill", "lose"],
)
def test_a_process_hit_by_a_fault_has_work_left(
    inject: Callable[[Environment, Scenario, int], list[str]],
    kind: type[Environment],
    scenario: Scenario,
    tmp_path: Path,
) -> None:
    environment = kind(tmp_path)
    broker = SlowBroker(scenario)
    environment.broker = cast("Any", broker)
    if isinstance(environment, ClusterEnvironment):
        environment.cluster = cast("Any", broker)
    assert inject(environment, scenario, TIMES) == []
    assert broker.met == [True] * 2 * TIMES
    assert scenario.injected == TIMES
    assert scenario.acknowledged == scenario.mined


@pytest.mark.process
def test_a_fault_that_hits_no_process_does_not_count(scenario: Scenario) -> None:
    scenario.give_leave(0.5)
    with scenario.injecting():
        pass
    assert scenario.injected == 1
    with scenario.injecting():
        scenario.consumer.kill()
    with scenario.injecting():
        scenario.consumer.start()
    assert scenario.injected == 1


@pytest.mark.slow
def test_a_consumer_continues_from_the_very_cursor_whose_floors_were_trimmed(
    scenario: Scenario, tmp_path: Path
) -> None:
    environment = Untouched(tmp_path)
    assert injections.trim_behind(environment, scenario, TIMES) == []
    with closing(sqlite3.connect(scenario.task.database)) as store:
        starts = [cursor for (cursor,) in store.execute("select cursor from starts order by rowid")]
    assert starts[0] == "earliest"
    assert [Cursor.parse(cursor).floor for cursor in starts[1:]] == environment.trimmed[1::2]
    assert len(starts) == TIMES + 1


@pytest.mark.process
def test_what_is_whole_begins_above_the_highest_block_that_is_not(scenario: Scenario) -> None:
    payloads = {payload.hash: payload for payload in scenario.task.payloads}
    assert scenario.begin(payloads) == 0
    chain = [scenario.task.payloads[-1]]
    while chain[-1].parent in payloads:
        chain.append(payloads[chain[-1].parent])
    cut = {chain[5].hash, chain[30].hash}
    assert scenario.begin(payloads.keys() - cut) == chain[4].number


@pytest.mark.process
def test_worker_that_is_not_done_in_time_is_ended(tmp_path: Path) -> None:
    nothing_comes = Task(f"file://{tmp_path}/log", "stem", 1, 3, str(tmp_path))
    worker = Worker("follow", nothing_comes).start()
    with pytest.raises(ScenarioError, match="follow is not done after"):
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
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("faults.process.PROGRAM", "falls")
    return Worker("publish", task).start()


@pytest.mark.process
def test_worker_that_the_client_brought_down_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = falling(BY_A_LIBRARY, tmp_path, monkeypatch)
    worker.end()
    assert worker.crashes == 1


@pytest.mark.process
def test_worker_that_python_brought_down_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = falling(BY_PYTHON, tmp_path, monkeypatch)
    with pytest.raises(ScenarioError, match=f"publish ended with status -{signal.SIGSEGV.value}"):
        worker.end()
    assert worker.crashes == 0


@pytest.mark.process
def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"kafka://127.0.0.1:{silent.getsockname()[1]}"
        task = Task(url, "nobody", 1, 10, str(tmp_path))
        for what in ("publish", "follow"):
            command = [sys.executable, "-m", "faults.work", what, task.text()]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables())
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == -signal.SIGKILL
