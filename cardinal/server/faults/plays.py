"""What is done to a stream in each drill.

A play is a function of the ground, a stage and how often the fault is injected. It returns when the stream has come to
its end, with everything that is wrong: no sentence means that it held. What is random comes from the stage's seed.
``stage.injected`` counts what was really done to a producer and a consumer at work: whoever had come to the end of its
work before, or does not work afterwards, was not met.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.protocols.streams.cursor import Cursor
from cardinal.testing.proxy import Link

from . import clock, delivered, work
from .ground import BadNetwork, ClusterGround, FileGround, Ground, TransactionGround
from .worker import StageError, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .stage import Stage

_SOON: Final = 20.0
_STILL: Final = 0.5
"""Seconds without a new acknowledgement of a chain that goes on: many blocks' time."""
_AWAY: Final = 3.0
"""Seconds: longer than :class:`TransactionGround`'s ``transaction.timeout.ms``."""
_WITHOUT: Final = 10
"""Blocks that are to be acknowledged without a leader that is lost."""
_LAST: Final = 0.85
"""The part of the chain after which nothing is injected: whoever is to be killed must still be at work."""
_BEYOND: Final = 0.95
"""How far the producer comes before the last injection is over."""

_G = TypeVar("_G", bound=Ground)


def _points(stage: Stage, times: int) -> list[float]:
    """The parts of the chain where something is injected, each in the first half of its share; 0 may be the first."""
    source = random.Random(stage.task.seed)  # noqa: S311 - repeatable, no secret
    return [_LAST * (index + source.random() / 2) / times for index in range(times)]


def _each(stage: Stage, times: int) -> Iterator[int]:
    """The numbers of the injections, each when its point of the chain is delivered and the producer publishes.

    The producer comes no farther than the next one's point, however long an injection takes: both are at work before
    it, while it lasts and after it.
    """
    points = _points(stage, times)
    stage.give_leave(points[0])
    for index, point in enumerate(points):
        stage.until_delivered(point)
        flowing = stage.acknowledged + 1
        stage.give_leave(points[index + 1] if index + 1 < times else _BEYOND)
        stage.until(partial(_reached, stage, flowing), "flowing")
        with stage.injecting():
            yield index
    stage.task.leave.give_all()


def _each_acknowledged(stage: Stage, times: int) -> Iterator[int]:
    """The numbers of the injections, each when its point of the chain is acknowledged, whatever is delivered."""
    for index, point in enumerate(_points(stage, times)):
        stage.until_acknowledged(point)
        yield index


def _expect(ground: Ground, kind: type[_G]) -> _G:
    if not isinstance(ground, kind):
        raise StageError(f"this fault is played on a {kind.__name__}")
    return ground


def kill_broker(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the broker, and a start on the same data."""
    for _ in _each(stage, times):
        ground.broker.kill()
        ground.broker.start()
    return stage.finish()


def pause_broker(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGSTOP to the broker for 5 s; for 30 s at every tenth time. Its session ends meanwhile, and it is fenced."""
    for index in _each(stage, times):
        ground.broker.pause()
        stage.wait(30.0 if index % 10 == 9 else 5.0)  # noqa: PLR2004 - that nobody answers for so long is the fault
        ground.broker.resume()
    return stage.finish()


def break_transactions(ground: Ground, stage: Stage, times: int) -> list[str]:
    """In turn: the broker killed and away for 3 s; paused for 3 s. Either way the open transaction's time is over."""
    broker = _expect(ground, TransactionGround).broker
    for index in _each(stage, times):
        if index % 2:
            broker.pause()
            stage.wait(_AWAY)
            broker.resume()
        else:
            broker.kill()
            stage.wait(_AWAY)
            broker.start()
    return stage.finish()


def lose_leader(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the node that leads; the stream goes on without it; it comes back."""
    cluster = _expect(ground, ClusterGround).cluster
    for _ in _each(stage, times):
        node = cluster.node(ground.leader(stage.task.application.default_topic))
        node.kill()
        more = min(stage.acknowledged + _WITHOUT, stage.give_more(_WITHOUT))
        stage.until(partial(_reached, stage, more), "acknowledged by the two that are left")
        node.start()
    return stage.finish()


def _reached(stage: Stage, blocks: int) -> bool:
    return stage.acknowledged >= blocks


def kill_producer(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the producer at a random point, and a start with its ledger."""
    del ground
    for _ in _each_acknowledged(stage, times):
        stage.injected += stage.producer.kill()
        stage.producer.start()
    return stage.finish()


def kill_consumer(ground: Ground, stage: Stage, times: int) -> list[str]:
    """SIGKILL to the consumer at a random point, and a start with the cursor beside its data."""
    del ground
    for _ in _each(stage, times):
        stage.consumer.kill()
        stage.consumer.start()
    return stage.finish()


def fill_disk(ground: Ground, stage: Stage, times: int) -> list[str]:
    """The disk of the producer's folder is full until nothing more is acknowledged; then there is room again."""
    files = _expect(ground, FileGround)

    def stands_still() -> bool:
        before = stage.acknowledged
        stage.wait(_STILL)
        return stage.acknowledged == before

    for _ in _each_acknowledged(stage, times):
        with files.full(stage.producer.process):
            stage.until(stands_still, "refused for want of room")
        if stage.acknowledged == stage.mined:
            raise StageError("the chain ended before the disk was full")
        stage.until(partial(_reached, stage, stage.acknowledged + 1), "acknowledged, with room again")
        stage.injected += 1
    return stage.finish()


def reset_connections(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Every connection reset, the producer's and the consumer's."""
    proxy = _expect(ground, BadNetwork).proxy
    for _ in _each(stage, times):
        stage.until(lambda: proxy.reset() > 0, "connected")
    return stage.finish()


def slow_network(ground: Ground, stage: Stage, times: int) -> list[str]:
    """In turn: 30 ms each way; a cable that is out for a second; connections that end after some kilobytes."""
    proxy = _expect(ground, BadNetwork).proxy
    try:
        for index in _each(stage, times):
            proxy.impair((Link(latency=0.03), Link(blackhole=True), Link(cut_after=20_000 + 10_000 * index))[index % 3])
            stage.wait(1.0)  # how long the network is bad
            proxy.heal()
        return stage.finish()
    finally:
        proxy.heal()


def widen_topics(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Partitions are added to every topic while both work; a producer that starts then uses them at once."""
    for index in _each(stage, times):
        ground.widen(stage.task, 5 + index)
        stage.producer.kill()
        stage.producer.start()
    return stage.finish()


def trim_behind(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Retention takes everything below the cursor's floors, behind a consumer that reads and before it starts again."""
    trimmed = 0

    def more() -> bool:
        """Whether the cursor leaves more behind than the last one did."""
        return sum(_floors(stage).values()) > trimmed

    for _ in _each(stage, times):
        stage.until(more, "farther than what was trimmed")
        ground.trim(_floors(stage))
        stage.consumer.kill()
        floors = _floors(stage)
        ground.trim(floors)
        trimmed = sum(floors.values())
        stage.consumer.start()
    stage.producer.end(stage.patience)
    stage.consumer.end(stage.patience)
    return stage.wrong(audited=False)


def _floors(stage: Stage) -> dict[tuple[str, int], int]:
    """What the cursor still needs begins here."""
    cursor = delivered.cursor(stage.task.database)
    return dict(Cursor.parse(cursor).floor) if cursor else {}


def trim_beyond(ground: Ground, stage: Stage, times: int) -> list[str]:
    """Retention takes what a stopped consumer has not read: refused by name; begun anew, it has all that is whole."""
    del times
    stage.until_delivered(0.3)
    stage.consumer.kill()
    stage.publish_all()
    ground.trim({where: end * 2 // 3 for where, end in stage.ends().items()})
    stage.injected += 1
    wrong = _refused(stage.consumer.start(), "CursorExpiredError", "are gone from")
    anew = stage.task.anew()
    stage.follow(anew)
    # Retention cuts blocks in two: those are rightly given up, and only those.
    stored = stage.stored()
    given_up = delivered.given_up(anew.database) - stored.keys()
    return wrong + stage.wrong(anew, first=stage.begin(stored), audited=False, given_up=given_up)


def delete_topic(ground: Ground, stage: Stage, times: int) -> list[str]:
    """One of the stream's topics is deleted under a consumer: told by name, and what was delivered stands."""
    del times
    stage.until_delivered(0.3)
    stage.producer.end()
    topic = stage.task.application.all_topics[-1]
    ground.delete(topic)
    stage.injected += 1
    wrong = _refused(stage.consumer, "TopicError", topic)
    return wrong + [line for line in stage.wrong(audited=False) if not line.startswith("chain:")]


def turn_clock_back(ground: Ground, stage: Stage, times: int) -> list[str]:
    """The clock that stamps the records jumps back by a day, so many times, and once in each partition elsewhere."""
    del ground
    stage.finish()
    copied = clock.copy(stage.task, jumps=times)
    stage.injected += times
    stage.follow(copied)
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
