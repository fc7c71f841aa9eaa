"""The catalogue of faults: each is played some times on a stream of its own, and the history of it is checked.

Rules:

1. A drill counts what was really injected, also where it broke off.
2. Drills that harm nothing but their own stream share a ground and are played side by side; whoever harms the ground
   has one for itself. No drill can excuse itself with another one's fault.
3. A drill that breaks off is wrong, in the words of what broke it off; the others go on.
4. Whoever has heard enough closes :func:`play`: plays break off, and what was started has ended when that returns.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError

from . import plays
from .ground import BadNetwork, ClusterGround, FileGround, Ground, TransactionGround
from .stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable
    from pathlib import Path

_GROUNDS: Final = 3
"""How many grounds are there at a time: a cluster takes half a gigabyte."""

_TOGETHER: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a drill came to.

    Attributes:
        fault: its name.
        injected: how often it was really injected.
        acknowledged: how many blocks the producer was told are safe.
        delivered: how many blocks were removed or added by updates.
        wrong: what did not hold; empty where all did.
        seconds: how long it took.
        crashes: how often the Kafka client brought a worker down, which then went on (:mod:`.worker`).

    """

    fault: str
    injected: int
    acknowledged: int
    delivered: int
    wrong: tuple[str, ...]
    seconds: float
    crashes: int


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault of the catalogue.

    Attributes:
        fault: its name.
        what: what is done, in words.
        play: plays it so many times.
        ground: what it is played on.
        alone: whether it harms its ground, so that nobody else can play there meanwhile.
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
    play: Callable[[Ground, Stage, int], list[str]]
    ground: type[Ground] = Ground
    alone: bool = False
    fatal: bool = False
    blocks: int = 120
    ahead: int | None = None
    pace: float = 250.0
    threshold: int = 16

    def run(self, ground: Ground, folder: Path, *, times: int, seed: int, over: Event) -> Outcome:
        """Play it on this ground, which runs and serves again when it is over.

        Arguments:
            ground: of the kind that :attr:`ground` says.
            folder: for the stages' files.
            times: how often the fault is injected.
            seed: of the chain and of what is random.
            over: set when everything is to end.

        Raises:
            StageError: everything is to end.

        """
        begun = time.monotonic()
        rounds = [1] * times if self.fatal else [times]
        found = [self._round(ground, folder, each, seed + at, over) for at, each in enumerate(rounds)]
        return Outcome(
            self.fault,
            sum(one.injected for one in found),
            sum(one.acknowledged for one in found),
            sum(one.delivered for one in found),
            tuple(line for one in found for line in one.wrong),
            time.monotonic() - begun,
            sum(one.crashes for one in found),
        )

    def _round(self, ground: Ground, folder: Path, times: int, seed: int, over: Event) -> Outcome:
        """Play it on one stream."""
        begun = time.monotonic()
        part = 0.5 if self.fatal else 1.0
        folder = folder / f"{self.fault}-{seed}"
        blocks = self.blocks * max(times, 2)
        with Stage(
            folder,
            ground.url,
            seed=seed,
            blocks=blocks,
            part=part,
            ahead=self.ahead,
            pace=self.pace,
            threshold=self.threshold,
            over=over,
        ) as stage:
            try:
                wrong = self.play(ground, stage, times)
            except CardinalError as error:
                if over.is_set():
                    raise
                wrong = [f"broke off: {type(error).__name__}: {error}"]
                ground.start()  # what is not running any more
            seconds = time.monotonic() - begun
            done = stage.injected, stage.acknowledged, stage.delivered
        ground.clear(stage.task)
        return Outcome(self.fault, *done, tuple(wrong), seconds, stage.crashes)


DRILLS: Final = (
    Drill("leader-loss", "SIGKILL to the leading one of three brokers", plays.lose_leader, ClusterGround, alone=True),
    Drill("broker-pause", "SIGSTOP to the broker for 5 s", plays.pause_broker, alone=True),
    Drill("broker-kill", "SIGKILL to the broker, started again", plays.kill_broker, alone=True),
    Drill(
        "transactions",
        "SIGKILL, SIGSTOP for 3 s, transactions open",
        plays.break_transactions,
        TransactionGround,
        alone=True,
        blocks=60,
    ),
    Drill("connection-reset", "all connections reset", plays.reset_connections, BadNetwork, alone=True),
    Drill("bad-network", "latency, blackholes, cuts", plays.slow_network, BadNetwork, alone=True),
    Drill("disk-full", "the disk of a file transport full", plays.fill_disk, FileGround, alone=True),
    Drill("topic-deleted", "a topic deleted under the consumer", plays.delete_topic, fatal=True, blocks=60),
    Drill("retention-beyond", "retention beyond a stopped consumer", plays.trim_beyond, fatal=True, blocks=60),
    Drill("retention-behind", "retention below a running consumer", plays.trim_behind, ahead=60),
    Drill("producer-kill", "SIGKILL to the producer", plays.kill_producer),
    Drill("consumer-kill", "SIGKILL to the consumer, cursor in SQLite", plays.kill_consumer),
    Drill("partitions-added", "partitions added to every topic", plays.widen_topics, pace=60, threshold=1_024),
    Drill("clock-back", "record times jump back by a day", plays.turn_clock_back),
)
"""Every fault; what takes longest comes first."""


def play(
    folder: Path, faults: Collection[str], *, times: int, seed: int, grounds: int = _GROUNDS
) -> Generator[tuple[Drill, Outcome]]:
    """Play these faults, several side by side; gives what each came to as soon as it is known.

    Arguments:
        folder: for data; empty.
        faults: names of the catalogue.
        times: how often each fault is injected.
        seed: of chains and of what is random.
        grounds: how many grounds there are at a time.

    Raises:
        EmbeddedBrokerError, …: a ground cannot be had.

    """
    wanted = [drill for drill in DRILLS if drill.fault in faults]
    sharing = [drill for drill in wanted if not drill.alone]
    parties = [sharing] if sharing else []
    parties += [[drill] for drill in wanted if drill.alone]
    over = Event()
    pool = ThreadPoolExecutor(grounds)
    try:
        played = [pool.submit(_party, folder, party, times, seed, over) for party in parties]
        for done in as_completed(played):
            yield from done.result()
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)


def _party(folder: Path, drills: list[Drill], times: int, seed: int, over: Event) -> Iterable[tuple[Drill, Outcome]]:
    """Play drills side by side on one ground."""
    with (
        drills[0].ground(folder / f"ground-of-{drills[0].fault}") as ground,
        ThreadPoolExecutor(_TOGETHER) as pool,
    ):
        played = [pool.submit(drill.run, ground, folder, times=times, seed=seed, over=over) for drill in drills]
        return [(drill, done.result()) for drill, done in zip(drills, played, strict=True)]
