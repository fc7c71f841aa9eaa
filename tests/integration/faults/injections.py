"""Faults of the cases: functions that break something while a producer and a consumer work.

Each takes the environment, a scenario and how often the fault is injected. It returns when the stream has come to its
end, with everything that is wrong: no sentence means that it held. What is random comes from the scenario's seed.
``scenario.injected`` counts what was really done to a producer and a consumer at work: one that had come to
the end of its work before, or does not work afterwards, was not met.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.protocols.streams.cursor import Cursor
from cardinal_devkit.testing.proxy import Link

from . import clock, store, work
from .environments import ClusterEnvironment, Environment, FileEnvironment, ProxyEnvironment, TransactionEnvironment
from .process import ScenarioError, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .scenario import Scenario

_SOON: Final = 60.0
_STILL: Final = 0.5
"""Seconds without a new acknowledgement of a chain that goes on: many blocks' time."""
_AWAY: Final = 3.0
"""Seconds: longer than :class:`TransactionEnvironment`'s ``transaction.timeout.ms``."""
_WITHOUT: Final = 10
"""Blocks that are to be acknowledged without a leader that is lost."""
_LAST: Final = 0.85
"""The part of the chain after which nothing is injected: whoever is to be killed must still be at work."""
_BEYOND: Final = 0.95
"""How far the producer comes before the last injection is over."""

_G = TypeVar("_G", bound=Environment)


def _points(scenario: Scenario, times: int) -> list[float]:
    """The parts of the chain where something is injected, each in the first half of its share; 0 may be the first."""
    source = random.Random(scenario.task.seed)
    return [_LAST * (index + source.random() / 2) / times for index in range(times)]


def _each(scenario: Scenario, times: int) -> Iterator[int]:
    """The numbers of the injections, each when its point of the chain is delivered and the producer publishes.

    The producer comes no farther than the next one's point, however long an injection takes: both are at work before
    it, while it lasts and after it.
    """
    points = _points(scenario, times)
    scenario.give_leave(points[0])
    for index, point in enumerate(points):
        scenario.until_delivered(point)
        flowing = scenario.acknowledged + 1
        scenario.give_leave(points[index + 1] if index + 1 < times else _BEYOND)
        scenario.until(partial(_reached, scenario, flowing), "flowing")
        with scenario.injecting():
            yield index
    scenario.task.leave.give_all()


def _each_acknowledged(scenario: Scenario, times: int) -> Iterator[int]:
    """The numbers of the injections, each when its point of the chain is acknowledged, whatever is delivered."""
    for index, point in enumerate(_points(scenario, times)):
        scenario.until_acknowledged(point)
        yield index


def _expect(environment: Environment, kind: type[_G]) -> _G:
    if not isinstance(environment, kind):
        raise ScenarioError(f"this fault needs a {kind.__name__}")
    return environment


def kill_broker(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """SIGKILL to the broker, and a start on the same data."""
    for _ in _each(scenario, times):
        environment.broker.kill()
        environment.broker.start()
    return scenario.finish()


def pause_broker(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """SIGSTOP to the broker for 5 s; for 30 s at every tenth time. Its session ends meanwhile, and it is fenced."""
    for index in _each(scenario, times):
        environment.broker.pause()
        scenario.wait(30.0 if index % 10 == 9 else 5.0)
        environment.broker.resume()
    return scenario.finish()


def break_transactions(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """In turn: the broker killed and away for 3 s; paused for 3 s. Either way the open transaction's time is over."""
    broker = _expect(environment, TransactionEnvironment).broker
    for index in _each(scenario, times):
        if index % 2:
            broker.pause()
            scenario.wait(_AWAY)
            broker.resume()
        else:
            broker.kill()
            scenario.wait(_AWAY)
            broker.start()
    return scenario.finish()


def lose_leader(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """SIGKILL to the node that leads; the stream goes on without it; it comes back."""
    cluster = _expect(environment, ClusterEnvironment).cluster
    for _ in _each(scenario, times):
        node = cluster.node(environment.leader(scenario.task.application.default_topic))
        node.kill()
        more = min(scenario.acknowledged + _WITHOUT, scenario.give_more(_WITHOUT))
        scenario.until(partial(_reached, scenario, more), "acknowledged by the two that are left")
        node.start()
    return scenario.finish()


def _reached(scenario: Scenario, blocks: int) -> bool:
    return scenario.acknowledged >= blocks


def kill_producer(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """SIGKILL to the producer at a random point, and a start with its ledger."""
    del environment
    for _ in _each_acknowledged(scenario, times):
        scenario.injected += scenario.producer.kill()
        scenario.producer.start()
    return scenario.finish()


def kill_consumer(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """SIGKILL to the consumer at a random point, and a start with the cursor beside its data."""
    del environment
    for _ in _each(scenario, times):
        scenario.consumer.kill()
        scenario.consumer.start()
    return scenario.finish()


def fill_disk(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """The disk of the producer's folder is full until nothing more is acknowledged; then there is room again."""
    files = _expect(environment, FileEnvironment)

    def stands_still() -> bool:
        before = scenario.acknowledged
        scenario.wait(_STILL)
        return scenario.acknowledged == before

    for _ in _each_acknowledged(scenario, times):
        with files.full(scenario.producer.process):
            scenario.until(stands_still, "refused for want of room")
        if scenario.acknowledged == scenario.mined:
            raise ScenarioError("the chain ended before the disk was full")
        scenario.until(partial(_reached, scenario, scenario.acknowledged + 1), "acknowledged, with room again")
        scenario.injected += 1
    return scenario.finish()


def reset_connections(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """Every connection reset, the producer's and the consumer's."""
    proxy = _expect(environment, ProxyEnvironment).proxy
    for _ in _each(scenario, times):
        scenario.until(lambda: proxy.reset() > 0, "connected")
    return scenario.finish()


def slow_network(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """In turn: 30 ms each way; a cable that is out for a second; connections that end after some kilobytes."""
    proxy = _expect(environment, ProxyEnvironment).proxy
    try:
        for index in _each(scenario, times):
            proxy.impair((Link(latency=0.03), Link(blackhole=True), Link(cut_after=20_000 + 10_000 * index))[index % 3])
            scenario.wait(1.0)  # how long the network is bad
            proxy.heal()
        return scenario.finish()
    finally:
        proxy.heal()


def widen_topics(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """Partitions are added to every topic while both work; a producer that starts then uses them at once."""
    for index in _each(scenario, times):
        environment.widen(scenario.task, 5 + index)
        scenario.producer.kill()
        scenario.producer.start()
    return scenario.finish()


def trim_behind(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """Retention takes everything below the cursor's floors, behind a consumer that reads and before it starts again."""
    trimmed = 0

    def more() -> bool:
        """Whether the cursor leaves more behind than the last one did."""
        return sum(_floors(scenario).values()) > trimmed

    for _ in _each(scenario, times):
        scenario.until(more, "farther than what was trimmed")
        environment.trim(_floors(scenario))
        scenario.consumer.kill()
        floors = _floors(scenario)
        environment.trim(floors)
        trimmed = sum(floors.values())
        scenario.consumer.start()
    scenario.producer.end(scenario.patience)
    scenario.consumer.end(scenario.patience)
    return scenario.wrong(audited=False)


def _floors(scenario: Scenario) -> dict[tuple[str, int], int]:
    """What the cursor still needs begins here."""
    cursor = store.cursor(scenario.task.database)
    return dict(Cursor.parse(cursor).floor) if cursor else {}


def trim_beyond(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """Retention takes what a stopped consumer has not read: refused by name; begun anew, it has all that is whole."""
    del times
    scenario.until_delivered(0.3)
    scenario.consumer.kill()
    scenario.publish_all()
    environment.trim({where: end * 2 // 3 for where, end in scenario.ends().items()})
    scenario.injected += 1
    wrong = _refused(scenario.consumer.start(), "CursorExpiredError", "are missing from")
    anew = scenario.task.anew()
    scenario.follow(anew)
    # Retention cuts blocks in two: those are rightly given up, and only those.
    stored = scenario.stored()
    given_up = store.given_up(anew.database) - stored.keys()
    return wrong + scenario.wrong(anew, first=scenario.begin(stored), audited=False, given_up=given_up)


def delete_topic(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """One of the stream's topics is deleted under a consumer: the error names it, and delivered blocks stay."""
    del times
    scenario.until_delivered(0.3)
    scenario.producer.end()
    topic = scenario.task.application.all_topics[-1]
    environment.delete(topic)
    scenario.injected += 1
    wrong = _refused(scenario.consumer, "TopicError", topic)
    return wrong + [line for line in scenario.wrong(audited=False) if not line.startswith("chain:")]


def turn_clock_back(environment: Environment, scenario: Scenario, times: int) -> list[str]:
    """The clock that stamps the records jumps back by a day, so many times, and once in each partition elsewhere."""
    del environment
    scenario.finish()
    copied = clock.copy(scenario.task, jumps=times)
    scenario.injected += times
    scenario.follow(copied)
    return scenario.wrong(copied)


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
