"""The catalogue of faults: each is played some times on one stream, and the history of it is checked.

A drill is a function of the ground, a stage and how often. It returns when the stream has come to its end, with
everything that is wrong: no sentence means that it held. What is random comes from the stage's seed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.protocols.streams.cursor import Cursor
from cardinal.testing.proxy import Link

from . import clock, work
from .ground import BadNetwork, ClusterGround, Ground
from .stage import Stage, StageError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

_SOON: Final = 20.0
_G = TypeVar("_G", bound=Ground)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a drill came to.

    Attributes:
        fault: its name.
        injected: how often.
        acknowledged: how many blocks the producer was told are safe.
        delivered: how many blocks were removed or added by updates.
        wrong: what did not hold; empty where all did.
        seconds: how long it took.

    """

    fault: str
    injected: int
    acknowledged: int
    delivered: int
    wrong: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault of the catalogue.

    Attributes:
        fault: its name.
        what: what is done, in words.
        ground: what it is played on.
        play: plays it so many times.
        blocks: blocks of the chain for each time.

    """

    fault: str
    what: str
    ground: type[Ground]
    play: Callable[[Ground, Stage, int], list[str]]
    blocks: int = 120

    def run(self, ground: Ground, folder: Path, *, times: int, seed: int) -> Outcome:
        """Play it on this ground, which runs and serves again when it is over.

        Arguments:
            ground: of the kind that :attr:`ground` says.
            folder: for the stage's files.
            times: how often the fault is injected.
            seed: of the chain and of what is random.

        Raises:
            StageError: the stream did not come to its end.

        """
        begun = time.monotonic()
        folder = folder / f"{self.fault}-{seed}"
        with Stage(folder, ground.url, seed=seed, blocks=self.blocks * max(times, 2)) as stage:
            wrong = self.play(ground, stage, times)
            seconds = time.monotonic() - begun
            return Outcome(self.fault, times, stage.acknowledged, stage.delivered, tuple(wrong), seconds)


def _points(stage: Stage, times: int) -> Iterator[float]:
    """Parts of the chain, growing, one for each injection; the first may come before any block, none near the end."""
    source = random.Random(stage.task.seed)  # noqa: S311 - repeatable, no secret
    for index in range(times):
        yield 0.9 * (index + source.random()) / times


def _expect(ground: Ground, kind: type[_G]) -> _G:
    if not isinstance(ground, kind):
        raise StageError(f"this fault is played on a {kind.__name__}")
    return ground


def kill_broker(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the broker, and a start on the same data."""
    for point in _points(stage, times):
        stage.until_delivered(point)
        ground.broker.kill()
        ground.broker.start()
    return stage.finish()


def pause_broker(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGSTOP to the broker for 5 s; for 30 s at every tenth time. Its session ends meanwhile, and it is fenced."""
    for index, point in enumerate(_points(stage, times), 1):
        stage.until_delivered(point)
        ground.broker.pause()
        time.sleep(5.0 if index % 10 else 30.0)  # that nobody answers for so long is the fault
        ground.broker.resume()
    return stage.finish()


def lose_leader(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the node that leads; the stream goes on without it; it comes back."""
    cluster = _expect(ground, ClusterGround).cluster
    for point in _points(stage, times):
        stage.until_delivered(point)
        node = cluster.node(ground.leader(stage.task.application.default_topic))
        node.kill()
        more = min(stage.acknowledged + 10, stage.mined)
        stage.until(partial(_reached, stage, more), "acknowledged by the two that are left")
        node.start()
    return stage.finish()


def _reached(stage: Stage, blocks: int) -> bool:
    return stage.acknowledged >= blocks


def kill_producer(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the producer at a random point, and a start with its ledger."""
    del ground
    for point in _points(stage, times):
        stage.until_acknowledged(point)
        stage.producer.kill()
        stage.producer.start()
    return stage.finish()


def kill_consumer(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the consumer at a random point, and a start with the cursor beside its data."""
    del ground
    for point in _points(stage, times):
        stage.until_delivered(point)
        stage.consumer.kill()
        stage.consumer.start()
    return stage.finish()


def reset_connections(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Every connection reset, the producer's and the consumer's."""
    proxy = _expect(ground, BadNetwork).proxy
    reset = 0
    for point in _points(stage, times):
        stage.until_delivered(point)
        reset += proxy.reset()
    wrong = stage.finish()
    return wrong if reset else [*wrong, "nothing was connected when connections were reset"]


def slow_network(ground: Ground, stage: Stage, times: int) -> list[str]:
    """In turn: 30 ms each way; a cable that is out for a second; connections that end after some kilobytes."""
    proxy = _expect(ground, BadNetwork).proxy
    try:
        for index, point in enumerate(_points(stage, times)):
            stage.until_delivered(point)
            proxy.impair((Link(latency=0.03), Link(blackhole=True), Link(cut_after=20_000 + 10_000 * index))[index % 3])
            time.sleep(1.0)  # how long the network is bad
            proxy.heal()
        return stage.finish()
    finally:
        proxy.heal()


def widen_topics(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Partitions are added to every topic while both work; a producer that starts then uses them at once."""
    for index, point in enumerate(_points(stage, times)):
        stage.until_delivered(point)
        ground.widen(stage.task, 5 + index)
        stage.producer.kill()
        stage.producer.start()
    return stage.finish()


def trim_behind(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Retention takes everything below the cursor's floors, behind a consumer that reads."""
    for point in _points(stage, times):
        stage.until_delivered(point)
        if cursor := work.cursor(stage.task.database):
            ground.trim(Cursor.parse(cursor).floor)
    stage.producer.end()
    stage.consumer.end()
    return stage.wrong(audited=False)


def trim_beyond(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Retention takes what a stopped consumer has not read: refused by name; begun anew, it follows what is kept."""
    del times
    stage.until_delivered(0.3)
    stage.consumer.kill()
    stage.producer.end()
    ground.trim({where: end * 2 // 3 for where, end in stage.ends().items()})
    wrong = _refused(stage.consumer.start(), "CursorExpiredError", "are gone from")
    anew = stage.task.anew()
    Worker("follow", anew).start().end()
    return wrong + stage.wrong(anew, first=None, audited=False)


def delete_topic(ground: Ground, stage: Stage, times: int) -> list[str]:
    """One of the stream's topics is deleted under a consumer: told by name, and what was delivered stands."""
    del times
    stage.until_delivered(0.4)
    stage.producer.kill()
    topic = stage.task.application.all_topics[-1]
    ground.delete(topic)
    wrong = _refused(stage.consumer, "TopicError", topic)
    return wrong + [line for line in stage.wrong(audited=False) if not line.startswith("chain:")]


def turn_clock_back(ground: Ground, stage: Stage, times: int) -> list[str]:
    """The clock that stamps the records jumps back by a day, so many times, and once in each partition elsewhere."""
    del ground
    stage.finish()
    copied = clock.copy(stage.task, jumps=times)
    Worker("follow", copied).start().end()
    return stage.wrong(copied)


def _refused(worker: Worker, kind: str, says: str) -> list[str]:
    """A worker ends soon with this error."""
    deadline = time.monotonic() + _SOON
    while worker.running and time.monotonic() < deadline:
        time.sleep(0.01)
    if worker.running:
        return [f"silent: after {_SOON:.0f} s {worker.what} has not said what is wrong"]
    if worker.status != work.REFUSED or not worker.said.startswith(kind) or says not in worker.said:
        return [f"unclear: {worker.what} ended with status {worker.status}: {worker.said}"]
    return []


DRILLS: Final = (
    Drill("broker-kill", "SIGKILL to the broker, started again", Ground, kill_broker),
    Drill("broker-pause", "SIGSTOP to the broker for 5 s", Ground, pause_broker),
    Drill("leader-loss", "SIGKILL to the leading one of three brokers", ClusterGround, lose_leader),
    Drill("producer-kill", "SIGKILL to the producer", Ground, kill_producer),
    Drill("consumer-kill", "SIGKILL to the consumer, cursor in SQLite", Ground, kill_consumer),
    Drill("connection-reset", "all connections reset", BadNetwork, reset_connections),
    Drill("bad-network", "latency, blackholes, cuts", BadNetwork, slow_network),
    Drill("topic-deleted", "a topic deleted under the consumer", Ground, delete_topic),
    Drill("partitions-added", "partitions added to every topic", Ground, widen_topics),
    Drill("retention-behind", "retention below a running consumer", Ground, trim_behind),
    Drill("retention-beyond", "retention beyond a stopped consumer", Ground, trim_beyond),
    Drill("clock-back", "record times jump back by a day", Ground, turn_clock_back),
)
"""Every fault."""


def play(folder: Path, faults: Collection[str], *, times: int, seed: int) -> Iterator[tuple[Drill, Outcome]]:
    """Play these faults one after the other, each ground started once; a drill that did not come to its end is wrong.

    Arguments:
        folder: for data; empty.
        faults: names of the catalogue.
        times: how often each fault is injected.
        seed: of chains and of what is random.

    Raises:
        EmbeddedBrokerError, …: a ground cannot be had.

    """
    wanted = [drill for drill in DRILLS if drill.fault in faults]
    for kind in dict.fromkeys(drill.ground for drill in wanted):
        with kind(folder / kind.__name__) as ground:
            for drill in wanted:
                if drill.ground is kind:
                    yield drill, _played(drill, ground, folder, times, seed)


def _played(drill: Drill, ground: Ground, folder: Path, times: int, seed: int) -> Outcome:
    begun = time.monotonic()
    try:
        return drill.run(ground, folder, times=times, seed=seed)
    except StageError as error:
        ground.start()
        return Outcome(drill.fault, times, 0, 0, (str(error),), time.monotonic() - begun)
