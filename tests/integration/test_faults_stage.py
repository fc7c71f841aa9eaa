"""How a drill meets those whom it is about: on a stream of files, with brokers of which nothing is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import pytest

from cardinal.server.faults import plays
from cardinal.server.faults.ground import ClusterGround, FileGround, Ground
from cardinal.server.faults.stage import Stage

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


class FileCluster(ClusterGround):
    def leader(self, topic: str) -> int:
        return len([topic])

    @property
    def url(self) -> str:
        return f"file://{self.folder}/log"


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
