"""Catalogue of the cases: each injects its fault some times into a stream of its own, and checks the history.

Rules:

1. A case counts what was really injected, also where it broke off.
2. Cases that harm nothing but their own stream share an environment and run side by side; a case that harms the
   environment has one for itself. No case can excuse itself with another one's fault.
3. A case that breaks off is wrong, in the words of what broke it off; the others go on.
4. Closing :func:`run_cases` breaks the cases off; whatever was started has ended when that returns.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError

from . import injections
from .environments import ClusterEnvironment, Environment, FileEnvironment, ProxyEnvironment, TransactionEnvironment
from .scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable
    from pathlib import Path

_ENVIRONMENTS: Final = 3
"""How many environments are there at a time: a cluster takes half a gigabyte."""

_TOGETHER: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to.

    Attributes:
        fault: its name.
        injected: how often it was really injected.
        acknowledged: how many blocks the producer was told are safe.
        delivered: how many blocks were removed or added by updates.
        wrong: what did not hold; empty where all did.
        seconds: how long it took.
        crashes: how often the Kafka client brought a worker down, which then went on (:mod:`.process`).

    """

    fault: str
    injected: int
    acknowledged: int
    delivered: int
    wrong: tuple[str, ...]
    seconds: float
    crashes: int


@dataclass(frozen=True, slots=True)
class Case:
    """A fault of the catalogue.

    Attributes:
        fault: its name.
        what: what is done, in words.
        inject: injects it so many times.
        environment: what it runs on.
        alone: whether it harms its environment, so that no other case can run there meanwhile.
        fatal: whether it ends the stream: every time takes another one, half of which is published until it happens.
        blocks: blocks of the chain for each time.
        ahead: how far above the consumer's head the producer may be, where the consumer must still be at work when the
            fault is injected; None: as far as it comes.
        pace: blocks a second, at most.
        threshold: the reorg threshold, in blocks. A side block that is not whole so many blocks later is given up: it
            is to take longer to publish so many than to notice what was done.

    """

    fault: str
    what: str
    inject: Callable[[Environment, Scenario, int], list[str]]
    environment: type[Environment] = Environment
    alone: bool = False
    fatal: bool = False
    blocks: int = 120
    ahead: int | None = None
    pace: float = 250.0
    threshold: int = 16

    def run(self, environment: Environment, folder: Path, *, times: int, seed: int, over: Event) -> Outcome:
        """Run it on this environment, which runs and serves again when it is over.

        Arguments:
            environment: of the kind that :attr:`environment` says.
            folder: for the scenario' files.
            times: how often the fault is injected.
            seed: of the chain and of what is random.
            over: set when everything is to end.

        Raises:
            ScenarioError: everything is to end.

        """
        begun = time.monotonic()
        rounds = [1] * times if self.fatal else [times]
        found = [self._round(environment, folder, each, seed + at, over) for at, each in enumerate(rounds)]
        return Outcome(
            self.fault,
            sum(one.injected for one in found),
            sum(one.acknowledged for one in found),
            sum(one.delivered for one in found),
            tuple(line for one in found for line in one.wrong),
            time.monotonic() - begun,
            sum(one.crashes for one in found),
        )

    def _round(self, environment: Environment, folder: Path, times: int, seed: int, over: Event) -> Outcome:
        """Run it on one stream."""
        begun = time.monotonic()
        part = 0.5 if self.fatal else 1.0
        folder = folder / f"{self.fault}-{seed}"
        blocks = self.blocks * max(times, 2)
        with Scenario(
            folder,
            environment.url,
            seed=seed,
            blocks=blocks,
            part=part,
            ahead=self.ahead,
            pace=self.pace,
            threshold=self.threshold,
            over=over,
        ) as scenario:
            try:
                wrong = self.inject(environment, scenario, times)
            except CardinalError as error:
                if over.is_set():
                    raise
                wrong = [f"broke off: {type(error).__name__}: {error}"]
                environment.start()  # what is not running any more
            seconds = time.monotonic() - begun
            done = scenario.injected, scenario.acknowledged, scenario.delivered
        environment.clear(scenario.task)
        return Outcome(self.fault, *done, tuple(wrong), seconds, scenario.crashes)


CASES: Final = (
    Case(
        "leader-loss",
        "SIGKILL to the leading one of three brokers",
        injections.lose_leader,
        ClusterEnvironment,
        alone=True,
    ),
    Case("broker-pause", "SIGSTOP to the broker for 5 s", injections.pause_broker, alone=True),
    Case("broker-kill", "SIGKILL to the broker, started again", injections.kill_broker, alone=True),
    Case(
        "transactions",
        "SIGKILL, SIGSTOP for 3 s, transactions open",
        injections.break_transactions,
        TransactionEnvironment,
        alone=True,
        blocks=60,
    ),
    Case("connection-reset", "all connections reset", injections.reset_connections, ProxyEnvironment, alone=True),
    Case("bad-network", "latency, blackholes, cuts", injections.slow_network, ProxyEnvironment, alone=True),
    Case("disk-full", "the disk of a file transport full", injections.fill_disk, FileEnvironment, alone=True),
    Case("topic-deleted", "a topic deleted under the consumer", injections.delete_topic, fatal=True, blocks=60),
    Case("retention-beyond", "retention beyond a stopped consumer", injections.trim_beyond, fatal=True, blocks=60),
    Case("retention-behind", "retention below a running consumer", injections.trim_behind, ahead=60),
    Case("producer-kill", "SIGKILL to the producer", injections.kill_producer),
    Case("consumer-kill", "SIGKILL to the consumer, cursor in SQLite", injections.kill_consumer),
    Case("partitions-added", "partitions added to every topic", injections.widen_topics, pace=60, threshold=1_024),
    Case("clock-back", "record times jump back by a day", injections.turn_clock_back),
)
"""Every fault; what takes longest comes first."""


def run_cases(
    folder: Path, faults: Collection[str], *, times: int, seed: int, environments: int = _ENVIRONMENTS
) -> Generator[tuple[Case, Outcome]]:
    """Run the cases of these faults, several side by side; gives what each came to as soon as it is known.

    Arguments:
        folder: for data; empty.
        faults: names of the catalogue.
        times: how often each fault is injected.
        seed: of chains and of what is random.
        environments: how many environments there are at a time.

    Raises:
        EmbeddedBrokerError, …: a environment cannot be had.

    """
    wanted = [case for case in CASES if case.fault in faults]
    sharing = [case for case in wanted if not case.alone]
    parties = [sharing] if sharing else []
    parties += [[case] for case in wanted if case.alone]
    over = Event()
    pool = ThreadPoolExecutor(environments)
    try:
        running = [pool.submit(_party, folder, party, times, seed, over) for party in parties]
        for done in as_completed(running):
            yield from done.result()
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


def _party(folder: Path, cases: list[Case], times: int, seed: int, over: Event) -> Iterable[tuple[Case, Outcome]]:
    """Run cases side by side on one environment."""
    with (
        cases[0].environment(folder / f"environment-of-{cases[0].fault}") as environment,
        ThreadPoolExecutor(_TOGETHER) as pool,
    ):
        running = [pool.submit(case.run, environment, folder, times=times, seed=seed, over=over) for case in cases]
        return [(case, done.result()) for case, done in zip(cases, running, strict=True)]
