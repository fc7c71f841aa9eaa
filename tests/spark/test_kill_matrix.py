"""SIGKILL for the parts of a running pipeline at random points; however it goes on, its lake is the undisturbed one.

A lake follows two producers' stream of a reorging chain through a series of points. At each point drivers are started,
a part of one of them is killed when the lake has a drawn number of new files, and what must survive that survives.
Then the drivers are killed, too, and the next point starts them in one of three ways. A seed repeats a series, but for
the moment within a file that a kill meets.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest
from pipeline_processes import Driver, Process, living
from published_chain import PublishedChain

from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal_spark.lake.check import Check, stream_chain
from cardinal_spark.lake.decode import key_columns, payload_rows
from cardinal_spark.lake.ledger import event_rows
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.query import Snapshot
from cardinal_spark.lake.state import find_state
from cardinal_spark.lake.tables import CANONICAL, CURRENT, EVENTS, PAYLOAD, LakeSettings
from cardinal_spark.lake.typed import typed_rows
from cardinal_spark.pipeline import PipelineJob, start
from cardinal_spark.rows import ADDED, AppSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cardinal_devkit.kafka import EmbeddedKafka
    from cardinal_spark.lake.state import LakeState

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("ps") is None, reason="processes are found by ps"),
]

CLUSTER: Final = "local-cluster[2,1,1024]"
PATIENCE: Final = 600.0
"""Seconds for whatever must happen; a busy machine takes half a minute to start Spark."""

OPTIONS: Final = {"reorgThreshold": "8", "maxBlocksPerTrigger": "3", "compactEvery": "5"}
REFUSED: Final = re.compile("another query committed|new checkpoint")
"""How a query ends beside a second one, or on the checkpoint of one that lost."""

ADVICE: Final = re.compile(
    "error: (Spark did not start: "
    "|(a Python worker died, .*|Spark's Java process ended): restart the query, it resumes from its checkpoint)"
)
"""How it ends without a part that Spark does not replace."""


@dataclass(frozen=True)
class Victim:
    """A part of the pipeline.

    Attributes:
        command: a pattern of the command lines of the processes; empty: the driver.
        forked: whether they are children of a process with the same command.
        files: a pattern of the paths that are counted until the kill: what this part writes.
        most: how many of them at most.
        survived: the query goes on without it.
        master: of the session.

    """

    command: str = ""
    forked: bool = False
    files: str = ""
    most: int = 40
    survived: bool = False
    master: str = ""

    def parts(self, below: Mapping[Process, int]) -> list[Process]:
        """Those that it is, of the processes below a driver, whose parents are given."""
        found = {process: parent for process, parent in below.items() if re.search(self.command, process.command)}
        pids = {process.pid for process in found}
        return [process for process, parent in found.items() if (parent in pids) == self.forked]


COMMITS: Final = r"(?<!canonical)/_delta_log/\d+\.json$"
"""Of every table but the one that ends a batch."""

VICTIMS: Final = {
    "driver": Victim(),
    "java": Victim(r"pyspark-shell$"),
    "worker": Victim(r"pyspark\.daemon pyspark\.worker", forked=True, files=r"\.parquet$", most=12, survived=True),
    "planner": Victim(r"python_streaming_source_runner"),
    "committer": Victim(r"pyspark\.daemon .*python_streaming_sink_runner", forked=True, files=COMMITS, most=12),
    "daemon": Victim(r"pyspark\.daemon pyspark\.worker", files=r"\.parquet$", most=12, survived=True, master=CLUSTER),
    "executor": Victim(r"CoarseGrainedExecutorBackend", survived=True, master=CLUSTER),
}
STARTS: Final = ("plain", "checkpoint lost", "two drivers")

RUNS_ON: Final = "no restart"
"""Of a point whose driver the one before has left."""

ONCE_EACH: Final = [
    ("worker", "plain"),
    ("committer", RUNS_ON),
    ("driver", "two drivers"),
    ("planner", RUNS_ON),
    ("executor", "checkpoint lost"),
    ("daemon", RUNS_ON),
    ("java", RUNS_ON),
]
"""Few starts: each costs more than the points of its run."""


class KilledLake:
    """A lake whose pipeline is killed again and again."""

    def __init__(self, folder: Path, chain: PublishedChain) -> None:
        self.path = folder / "lake"
        self._folder = folder
        self._chain = chain
        self._started: list[Driver] = []
        self._two_wrote = False  # so the lake may hold another order of updates than its checkpoint
        self._drivers: list[Driver] = []
        self._at: list[str] = []
        self._below: set[Process] = set()

    @property
    def state(self) -> LakeState | None:
        return find_state(LakeLocation.of(str(self.path)))

    @property
    def seq(self) -> int:
        return 0 if (state := self.state) is None else state.seq

    def point(self, random_: random.Random, victim: Victim, how: str) -> str:
        """One kill, and what comes of it, in words."""
        before, due = self._files(victim.files), random_.randint(1, victim.most)
        which = random_.random()
        if how != RUNS_ON:
            self.kill_all()
            self._start_all(how, victim.master)
        two_wrote = self._two_wrote  # a lone driver that follows two refused ones ends it
        hit = self.wait(lambda: self._strike(victim, before, due, which))
        seq = self.seq
        if not victim.survived:
            self.wait(lambda: self._is_over(hit, victim, which))
            if victim.command:
                self._need_advice(hit, two_wrote)
        if self._drivers:
            self.wait(lambda: self.seq > seq + 3)
        if after := self.seq:
            assert [str(found) for found in Check(Snapshot.at(str(self.path))).tables()] == []
        return f"killed at new file {due} and seq {seq}, {'without a restart ' if victim.survived else ''}then {after}"

    def run_to_end(self, spark: SparkSession) -> None:
        """Everything that is on the topics, undisturbed."""
        self.kill_all()
        self.wait(lambda: self._below.isdisjoint(living(process.pid for process in self._below)))
        if self._two_wrote:
            self._lose_checkpoint()
        written(spark, self._chain, self.path)

    def wait(self, done: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is waited for
        """Wait until ``done`` returns a true value, and return it; until then drivers run that may."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := done():
                return found
            self._look_after_drivers()
            self._feed()
            time.sleep(0.03)  # between two looks; the deadline decides
        pytest.fail("not in time:\n" + "\n".join(driver.output for driver in self._drivers))

    def kill_all(self) -> None:
        for driver in self._started:
            if driver.code is None:
                self._kill(driver)
        self._drivers = []

    # --- inside ----------------------------------------------------------------------------------------------

    def _start_all(self, how: str, master: str) -> None:
        self._at = ["--master", master] if master else []
        if how == "checkpoint lost":
            self._lose_checkpoint()
        self._drivers = [self._start()]
        if how == "two drivers":
            self._two_wrote = True
            self._drivers.append(self._start("--checkpoint", str(self._folder / f"other{len(self._started)}")))

    def _start(self, *more: str) -> Driver:
        options = [part for name, value in OPTIONS.items() for part in ("--option", f"{name}={value}")]
        ends = ["--from", self._chain.url, "--chain-id", str(self._chain.chain_id), "--to", str(self.path)]
        log = self._folder / f"run{len(self._started)}.log"
        self._started.append(Driver([*ends, *options, "--trigger", "0 seconds", *self._at, *more], log))
        return self._started[-1]

    def _feed(self) -> None:
        """Publish before a live query has read everything."""
        if (state := self.state) is not None and state.number >= self._chain.chain[-1].number - 3:
            assert self._chain.publish_to_next_reorg(), "the chain is too short for this"

    def _lose_checkpoint(self) -> None:
        shutil.rmtree(self.path / "_checkpoint", ignore_errors=True)
        self._two_wrote = False

    def _look_after_drivers(self) -> None:
        """A query may refuse to go on beside another; the last one is started as its sentence says."""
        for driver in [driver for driver in self._drivers if driver.code]:
            assert self._two_wrote, driver.output
            assert REFUSED.search(driver.output), driver.output
            self._drivers.remove(driver)
            if not self._drivers:
                self._lose_checkpoint()
                self._drivers = [self._start()]

    def _strike(self, victim: Victim, before: set[str], due: int, which: float) -> Driver | None:
        """Kill, if it is time; returns the driver that was hit, which is looked after only if it survives."""
        if len(self._files(victim.files) - before) < due:
            return None
        driver = self._drivers[int(which * len(self._drivers))]
        if not victim.command:
            self._kill(driver)
        elif not self._kill_part(driver, victim, which):
            return None
        if not victim.survived:
            self._drivers.remove(driver)
        return driver

    def _is_over(self, driver: Driver, victim: Victim, which: float) -> bool:
        """Nobody misses a committer between two batches: then the next one is killed, too."""
        if driver.code is None:
            self._kill_part(driver, victim, which)
        return driver.code is not None

    def _kill_part(self, driver: Driver, victim: Victim, which: float) -> bool:
        parts = victim.parts(self._remembered(driver))
        with suppress(ProcessLookupError):  # it ended meanwhile
            if parts:
                os.kill(parts[int(which * len(parts))].pid, signal.SIGKILL)
                return True
        return False

    def _need_advice(self, driver: Driver, two_wrote: bool) -> None:  # noqa: FBT001 - what the point was
        """The query ended as a part of it died: it says so, and what to do."""
        assert driver.code == 1, driver.output
        said = ADVICE.search(driver.output) or (two_wrote and REFUSED.search(driver.output))
        assert said, driver.output

    def _kill(self, driver: Driver) -> None:
        self._remembered(driver)
        driver.kill()

    def _remembered(self, driver: Driver) -> Mapping[Process, int]:
        below = driver.below()
        self._below.update(below)
        return below

    def _files(self, pattern: str) -> set[str]:
        """The files of the lake with such a path. Old commits are removed: only new ones can be counted."""
        paths = (f"{folder}/{name}" for folder, _, names in os.walk(self.path) for name in names)
        return {path for path in paths if re.search(pattern, path)}


def need_node(lake: str, chain: PublishedChain) -> None:
    """Every table holds what the node says of the blocks that the ledger names, row by row."""
    snapshot = Snapshot.at(lake)
    mined = {block.hash: as_read(block) for block in chain.mined}
    joined = [row for row in event_rows(snapshot.dataset(EVENTS).to_table()) if row.change == ADDED]
    due: dict[str, Counter[str]] = {}
    for row in joined:
        keys, block = key_columns([row]), mined[row.hash]
        assert (row.number, row.parent, int.from_bytes(row.weight)) == (block.number, block.parent, block.weight)
        typed = typed_rows(AppSpec.parse(snapshot.state.app), [block], keys, LakeSettings())
        for table, rows in (*typed.items(), (PAYLOAD, payload_rows([block], keys))):
            due.setdefault(table, Counter()).update(as_text(rows))
    assert due.keys() == snapshot.state.versions.keys() - {EVENTS}
    for table, rows in due.items():
        assert Counter(as_text(snapshot.scan(table).read_all())) == rows, table
    canonical = snapshot.scan(CANONICAL).read_all().to_pylist()
    assert sorted((row["number"], row["hash"]) for row in canonical) == [(b.number, b.hash) for b in chain.chain]


def as_read(block: Payload) -> Payload:
    """A block as it comes from a stream, its paths in bytes."""
    updates = PathMap({path.encode(): value for path, value in block.updates.items()})
    return Payload(block.number, block.hash, block.parent, block.weight, updates, block.deletes)


def as_text(table: pa.Table) -> list[str]:
    """Rows as text, whatever order the columns and Arrow's kinds of text and bytes have."""
    return [repr(sorted(row.items())) for row in table.to_pylist()]


def need_equal(lake: str, undisturbed: str) -> None:
    """Both lakes have the same tables, and the same rows in those that follow the chain, but for the seqs."""
    one, other = Snapshot.at(lake), Snapshot.at(undisturbed)
    assert one.tables == other.tables
    for table in one.tables:
        if table.startswith(CURRENT) or table == CANONICAL:
            columns = [name for name in one.schema(table).names if name not in ("seq", "_seq")]
            rows = [Counter(as_text(lake.scan(table, columns=columns).read_all())) for lake in (one, other)]
            assert rows[0] == rows[1], table


def written(spark: SparkSession, chain: PublishedChain, lake: Path) -> None:
    """Write what is on the topics, into a new lake or behind what it has."""
    options = {**OPTIONS, "maxBlocksPerTrigger": "50", "chainId": str(chain.chain_id)}
    query = start(spark, PipelineJob(chain.url, str(lake), exit_at_end=True, options=options))
    assert query.awaitTermination(PATIENCE)


SEEDS: Final = [pytest.param(0, ONCE_EACH, marks=pytest.mark.slow, id="each-kind-once")] + [
    pytest.param(seed, random.Random(seed).choices(list(product(VICTIMS, STARTS)), k=10), marks=pytest.mark.soak)
    for seed in range(1, 11)
]


@pytest.mark.parametrize(("seed", "points"), SEEDS)
def test_a_lake_survives_whatever_is_killed(
    seed: int, points: list[tuple[str, str]], cardinal_broker: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=4000, seed=seed, reorg_threshold=8)
    lake = KilledLake(tmp_path, chain)
    try:
        chain.publish(10)
        for number, (name, how) in enumerate(points, 1):
            print(f"seed {seed} point {number}: {name}, {how}: ", end="", flush=True)  # noqa: T201 - to repeat it
            begun = time.monotonic()
            print(lake.point(random_, VICTIMS[name], how), f"({time.monotonic() - begun:.0f} s)", flush=True)  # noqa: T201
        lake.run_to_end(spark)
        undisturbed = tmp_path / "undisturbed"
        written(spark, chain, undisturbed)
    finally:
        lake.kill_all()
        chain.close()
    assert len(chain.depths) >= 2
    need_node(str(lake.path), chain)
    need_node(str(undisturbed), chain)
    need_equal(str(lake.path), str(undisturbed))
    snapshot = Snapshot.at(str(lake.path))
    checking = Check(snapshot)
    assert [str(found) for found in checking.tables()] == []
    assert [str(found) for found in checking.stream(stream_chain(chain.url, snapshot.state.app))] == []
    assert checking.stream_blocks == len(chain.chain)
