"""Scenario of one case: a stream, its producer and its consumer as processes, and what they have done.

Rules:

1. Faults are injected when the work has come to a point, never after a time: a slow machine sees the same.
2. Only processes that were started here are ever sent a signal.
3. Leaving a scenario ends its processes.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, Self

from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import open_source
from cardinal.transports.read_range import read_all

from . import store
from .history import History, check, content, mined
from .process import END_SECONDS, OVER, ScenarioError, Worker
from .work import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator
    from types import TracebackType

    from cardinal.protocols.streams.types import Partition, Record

_POLL_SECONDS: Final = 0.01
_SLACK: Final = 4.0
_MORE: Final = 8
"""Blocks: so far above the heaviest head that the producer has published the highest one may be, and some."""


class Scenario:
    """One stream and who works on it.

    Arguments:
        folder: for its files; empty.
        url: the transport.
        seed: of the chain.
        blocks: the number of the chain's last head.
        part: how much of the chain is published until :meth:`publish_all`.
        ahead: how far above the consumer's head the producer may be until then, in block numbers.
        pace: blocks a second, at most.
        threshold: the reorg threshold, in blocks.
        over: set when everything is to end: whoever waits here breaks off.

    Attributes:
        injected: how often something was broken, as whoever breaks things says.

    """

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        seed: int,
        blocks: int = 300,
        part: float = 1.0,
        ahead: int | None = None,
        pace: float = 250.0,
        threshold: int = 16,
        over: Event | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"faults-{folder.name}-{seed}"
        self.task = Task(url, stem, seed, blocks, str(folder), pace=pace, threshold=threshold)
        self._over = over or Event()
        self.producer = Worker("publish", replace(self.task, part=part, ahead=ahead), self._over)
        self.consumer = Worker("follow", self.task, self._over)
        self._payloads = self.task.payloads
        self.injected = 0
        self._crashed = 0

    def __enter__(self) -> Self:
        self.producer.start()
        self.consumer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.producer.kill()
        self.consumer.kill()

    @property
    def acknowledged(self) -> int:
        """How many blocks are acknowledged."""
        return len(self.task.ledger)

    @property
    def delivered(self) -> int:
        """How many blocks were delivered."""
        return store.blocks(self.task.database)

    @property
    def mined(self) -> int:
        """How many blocks the node mines in all."""
        return len(self._payloads)

    @property
    def at_work(self) -> bool:
        """Whether producer and consumer both live, and have not come to their end."""
        return self.producer.running and self.consumer.running

    @property
    def crashes(self) -> int:
        """How often the Kafka client brought a worker down (:mod:`.process`)."""
        return self._crashed + self.producer.crashes + self.consumer.crashes

    @property
    def patience(self) -> float:
        """Seconds in which the whole chain is published or followed, on a busy machine too."""
        return END_SECONDS + _SLACK * self.mined / self.task.pace

    def until(self, condition: Callable[[], bool], what: str, within: float = END_SECONDS) -> None:
        """Wait for a point of the work.

        Raises:
            ScenarioError: it did not come, or a worker ended with an error before it, or everything is to end.

        """
        deadline = time.monotonic() + within
        while not condition():
            self.wait(_POLL_SECONDS)
            for worker in (self.producer, self.consumer):
                if worker.status not in (None, 0, -signal.SIGKILL) and not worker.revive():
                    raise ScenarioError(f"{worker.what} ended with status {worker.status} before {what}: {worker.said}")
            if time.monotonic() > deadline:
                raise ScenarioError(
                    f"not {what} after {within:g} s: {self.acknowledged} of {self.mined} blocks are acknowledged, "
                    f"{self.delivered} delivered"
                )

    def wait(self, seconds: float) -> None:
        """Let what was done to the stream last so long; ScenarioError where everything is to end."""
        if self._over.wait(seconds):
            raise ScenarioError(OVER)

    def until_acknowledged(self, part: float) -> None:
        """Wait until this part of the node's blocks, 0 to 1, is acknowledged."""
        self.until(lambda: self.acknowledged >= part * self.mined, f"{part:.0%} acknowledged")

    def until_delivered(self, part: float) -> None:
        """Wait until the consumer's head has come to this part of the chain, 0 to 1."""
        self.until(lambda: store.head(self.task.database) >= part * self.task.blocks, f"{part:.0%} delivered")

    def give_leave(self, part: float) -> None:
        """Let the producer go on until the consumer can come to this part of the chain, and not to its end."""
        self.task.leave.give(min(int(part * self.task.blocks) + _MORE, self.task.blocks - 1))

    def give_more(self, numbers: int) -> int:
        """Let it go on that much farther, again not to the end: how many blocks it may have acknowledged by then."""
        last = self.task.leave.read()
        if last is None:
            return self.mined
        last = min(last + numbers, self.task.blocks - 1)
        self.task.leave.give(last)
        return sum(1 for _ in takewhile(lambda payload: payload.number <= last, self._payloads))

    @contextmanager
    def injecting(self) -> Iterator[None]:
        """What is broken meanwhile counts once, if both are at work before and after it."""
        met = self.at_work
        yield
        self.injected += met and self.at_work

    def publish_all(self) -> None:
        """Publish the rest of the chain.

        Raises:
            RefusedError, ScenarioError: see :meth:`Worker.end`.

        """
        self.producer.end()
        self._crashed += self.producer.crashes
        self.producer = Worker("publish", self.task, self._over).start()
        self.producer.end()

    def follow(self, task: Task) -> None:
        """Let a consumer of its own follow another task to its end.

        Raises:
            RefusedError, ScenarioError: see :meth:`Worker.end`.

        """
        Worker("follow", task, self._over).start().end(self.patience)

    def finish(self) -> list[str]:
        """Wait until both are done: everything that is wrong, empty where all held."""
        self.producer.end(self.patience)
        self.consumer.end(self.patience)
        return self.wrong()

    def wrong(
        self,
        task: Task | None = None,
        *,
        first: int | None = 0,
        audited: bool = True,
        given_up: Collection[bytes] = (),
    ) -> list[str]:
        """Everything that is wrong with what a consumer stored, and with what is on the topics.

        Arguments:
            task: whose consumer; the scenario's own where None.
            first: the number of the block that it must have begun with; None: any.
            audited: whether the topics are read and must hold what was acknowledged.
            given_up: the blocks that it was right to quarantine.

        """
        database = (task or self.task).database
        deliveries = store.deliveries(database)
        history = History(
            mined=mined(self._payloads),
            head=self._payloads[-1].hash,
            acknowledged=self.task.ledger.read() if audited else frozenset(),
            stored=self.stored() if audited else {},
            delivered=deliveries,
            first=first,
        )
        reported = [text for block, text in store.reports(database) if block not in given_up]
        return [*check(history), *(f"reported: {text}" for text in reported)]

    def begin(self, stored: Container[bytes]) -> int:
        """The number of the lowest block above which the node's chain is whole on the topics, and which is so itself.

        Arguments:
            stored: the blocks that are whole on the topics.

        """
        known = {payload.hash: payload for payload in self._payloads}
        block = self._payloads[-1]
        while block.parent in known and block.parent in stored:
            block = known[block.parent]
        return block.number

    def ends(self) -> dict[Partition, int]:
        """The offset after the last record of every partition."""
        source = open_source(self.task.url, self.task.application)
        try:
            return {where: high for where, (_, high) in source.watermarks().items()}
        finally:
            source.close()

    def stored(self) -> dict[bytes, bytes]:
        """The blocks that are whole on the topics, by a reader of its own, with the digests of their content."""
        app = self.task.application
        found: dict[bytes, bytes] = {}
        # Partitions are read one after the other, so every block may be open at once: nothing is given up.
        bounds = Bounds(open_bytes=1 << 33, open_blocks=self.mined + 1, headless_distance=1 << 40)
        reassembler = Reassembler(reorg_threshold=self.mined + 1, prefixes=tuple(app.prefixes), bounds=bounds)

        def take(record: Record) -> None:
            for event in reassembler.receive((record,)):
                if isinstance(event, Completed) and isinstance(event.payload, Payload):
                    found[event.payload.hash] = content(event.payload)

        source = open_source(self.task.url, app)
        try:
            read_all(source, source.watermarks(), take)
        finally:
            source.close()
        return found
