"""How a drill meets those whom it is about: on a stream of files, with brokers of which nothing is broken."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import Partition
from cardinal.server.faults import delivered, plays
from cardinal.server.faults.ground import ClusterGround, FileGround, Ground, TransactionGround
from cardinal.server.faults.stage import Stage
from cardinal.server.faults.worker import Worker
from cardinal.transports import parse_url

TIMES = 4


class SlowBroker:
    """It takes as long to start as the producer still publishes; notes whether both were at work all the time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.met: list[bool] = []

    def node(self, number: int) -> SlowBroker:
        assert number == 1
        return self

    def kill(self) -> None:
        self.met.append(self.stage.at_work)

    def start(self) -> None:
        self.stage.until(self._nothing_more, "without anything to publish")
        self.met.append(self.stage.at_work)

    def _nothing_more(self) -> bool:
        last = self.stage.task.leave.read()
        may = list(takewhile(lambda payload: last is None or payload.number <= last, self.stage.task.payloads))
        return self.stage.acknowledged >= len(may) or not self.stage.producer.running


class SlowToDie(SlowBroker):
    """When it is gone, everything is published that there was leave for."""

    def kill(self) -> None:
        self.stage.until(self._nothing_more, "without anything to publish")
        super().kill()


class FileCluster(ClusterGround):
    def leader(self, topic: str) -> int:
        return len([topic])

    @property
    def url(self) -> str:
        return f"file://{self.folder}/log"


class Untouched(FileGround):
    """Nothing is removed; notes what was to be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.trimmed: list[Mapping[Partition, int]] = []

    def trim(self, floors: Mapping[Partition, int]) -> None:
        self.trimmed.append(dict(floors))


class Sabotage(FileGround):
    """Who begins anew has delivered the last block and nothing else."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        super().__init__(folder)
        self.task = stage.task.anew()

    def trim(self, floors: Mapping[Partition, int]) -> None:
        del floors
        Worker("follow", self.task).start().end()
        last = delivered.deliveries(self.task.database)[-1].added[-1]
        with sqlite3.connect(self.task.database) as store:
            store.execute("delete from updates")
            added = json.dumps([[last.number, last.hash.hex(), last.digest.hex()]])
            store.execute("insert into updates (seq, first_seq, removed, added) values (1, 1, '[]', ?)", (added,))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "stage", f"file://{tmp_path}/log", seed=3, blocks=60 * TIMES, pace=2_000) as stage:
        yield stage


@pytest.mark.parametrize(
    ("play", "kind"), [(plays.kill_broker, FileGround), (plays.lose_leader, FileCluster)], ids=["kill", "lose"]
)
def test_whoever_is_met_by_a_fault_has_still_work_to_do_however_long_it_takes(
    play: Callable[[Ground, Stage, int], list[str]], kind: type[Ground], stage: Stage, tmp_path: Path
) -> None:
    ground = kind(tmp_path)
    broker = SlowBroker(stage)
    ground.broker = cast("Any", broker)
    if isinstance(ground, ClusterGround):
        ground.cluster = cast("Any", broker)
    assert play(ground, stage, TIMES) == []
    assert broker.met == [True] * 2 * TIMES
    assert stage.injected == TIMES
    assert stage.acknowledged == stage.mined


@pytest.mark.slow
def test_a_leader_is_lost_after_everything_was_published_that_there_was_leave_for(stage: Stage, tmp_path: Path) -> None:
    ground = FileCluster(tmp_path)
    ground.cluster = cast("Any", SlowToDie(stage))
    assert plays.lose_leader(ground, stage, TIMES) == []
    assert stage.injected == TIMES


def test_a_fault_that_meets_nobody_does_not_count(stage: Stage) -> None:
    stage.give_leave(0.5)
    with stage.injecting():
        pass
    assert stage.injected == 1
    with stage.injecting():
        stage.consumer.kill()
    with stage.injecting():
        stage.consumer.start()
    assert stage.injected == 1


@pytest.mark.slow
def test_a_consumer_goes_on_from_the_very_cursor_whose_floors_were_trimmed(stage: Stage, tmp_path: Path) -> None:
    ground = Untouched(tmp_path)
    assert plays.trim_behind(ground, stage, TIMES) == []
    with sqlite3.connect(stage.task.database) as store:
        starts = [cursor for (cursor,) in store.execute("select cursor from starts order by rowid")]
    assert starts[0] == "start"
    assert [Cursor.parse(cursor).floor for cursor in starts[1:]] == ground.trimmed[1::2]
    assert len(starts) == TIMES + 1


@pytest.mark.slow
def test_who_begins_anew_has_to_begin_with_the_lowest_block_that_is_whole(stage: Stage, tmp_path: Path) -> None:
    wrong = plays.trim_beyond(Sabotage(tmp_path, stage), stage, 1)
    assert [line for line in wrong if line.startswith("chain: it begins with ") and line.endswith("not with number 0")]


def test_what_is_whole_begins_above_the_highest_block_that_is_not(stage: Stage) -> None:
    payloads = {payload.hash: payload for payload in stage.task.payloads}
    assert stage.begin(payloads) == 0
    chain = [stage.task.payloads[-1]]
    while chain[-1].parent in payloads:
        chain.append(payloads[chain[-1].parent])
    cut = {chain[5].hash, chain[30].hash}
    assert stage.begin(payloads.keys() - cut) == chain[4].number


def test_a_broker_is_away_for_longer_than_a_transaction_may_be_open(tmp_path: Path) -> None:
    ground = TransactionGround(tmp_path)
    ground.broker = cast("Any", SimpleNamespace(bootstrap="127.0.0.1:9092"))
    options = parse_url(ground.url).options
    assert options["transactional"] == "update"
    assert int(options["transaction.timeout.ms"]) < 1_000 * plays._AWAY
