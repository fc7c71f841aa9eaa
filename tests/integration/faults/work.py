"""Programs of the cases: a producer and a consumer, processes that may be killed at any moment.

    python -m faults.work publish TASK     a producer: the chain of a seed, block by block
    python -m faults.work follow TASK      a consumer: updates and cursor in one SQLite transaction

``TASK`` is the JSON of a :class:`Task`. Both go on where their files say that they were; both end by themselves when
their work is done, with status 0. An error of Cardinal's own ends them with status 3 and its class and sentence on
standard error. Both are killed when standard input ends: it is a pipe from whoever started them.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from cardinal.consumer import Consumer
from cardinal.consuming.options import ConsumerOptions
from cardinal.errors import CardinalError, ClientStoppedError, DeliveryError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams.events import Divergence, Quarantined, Rejected, Surplus
from cardinal_devkit.testing.generator import ChainGenerator

from . import store
from .history import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from cardinal.apps import Application
    from cardinal.protocols.streams.payload import Payload

REFUSED: Final = 3
"""The exit status after an error of Cardinal's own."""

_AGAIN_SECONDS: Final = 0.05
_UNDERWAY: Final = 64
_REPORT: Final = 500
_EVERYTHING: Final = (".",)
_TOPICS_SECONDS: Final = 60.0
"""Producer and consumer are started together, and a busy machine may let either wait."""


class Leave:
    """A file with the number of the last block that a producer may publish by now; where it is missing, all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def give(self, number: int) -> None:
        """Let it publish blocks up to this number."""
        new = self.path.with_suffix(".new")
        new.write_text(str(number))
        new.replace(self.path)

    def give_all(self) -> None:
        """Let it publish everything."""
        self.path.unlink(missing_ok=True)

    def read(self) -> int | None:
        """The number; None where it may publish everything."""
        try:
            return int(self.path.read_text())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Task:
    """What both work on.

    Attributes:
        url: the transport.
        stem: begins the names of the topics, which are this task's alone.
        seed: of the chain.
        blocks: the number of the chain's last head.
        folder: where ledger and database are.
        pace: blocks a second, at most.
        threshold: the reorg threshold, in blocks.
        part: how much of the chain the producer publishes.
        ahead: how far above the consumer's head the producer may be, in block numbers; None: as far as it comes.
        resume: whether the consumer goes on from its cursor; else from the start of what is kept, into a database of
            its own.

    """

    url: str
    stem: str
    seed: int
    blocks: int
    folder: str
    pace: float = 250.0
    threshold: int = 16
    part: float = 1.0
    ahead: int | None = None
    resume: bool = True

    @property
    def ledger(self) -> Ledger:
        """What was acknowledged."""
        return Ledger(Path(self.folder, "acknowledged"))

    @property
    def leave(self) -> Leave:
        """How far the producer may go by now."""
        return Leave(Path(self.folder, "leave"))

    @property
    def database(self) -> Path:
        """What was delivered."""
        return Path(self.folder, "delivered.sqlite" if self.resume else "delivered-anew.sqlite")

    @property
    def application(self) -> Application:
        """How the blocks travel."""
        app = ChainGenerator(self.seed).application
        topics = {expression: f"{self.stem}-{topic}" for expression, topic in app.topics.items()}
        return app.model_copy(
            update={
                "default_topic": f"{self.stem}-{app.default_topic}",
                "topics": topics,
                "reorg_threshold": self.threshold,
            }
        )

    @property
    def payloads(self) -> list[Payload]:
        """The node's blocks, in the order in which they are mined; the last one leads in the end."""
        return ChainGenerator(self.seed).payloads(self.blocks)

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def anew(self) -> Task:
        """The same for a consumer that begins again with what is kept."""
        return replace(self, resume=False)


def publish(task: Task) -> None:
    """Publish every block that the ledger does not hold, with a new producer where a client has stopped."""
    while True:
        try:
            return _publish_missing(task)
        except (ClientStoppedError, UnreachableError):  # as `cardinal produce` does
            continue


def _publish_missing(task: Task) -> None:
    """Publish with one producer; a block that fails is sent again."""
    known = task.ledger.read()
    mined = task.payloads
    waiting = [payload for payload in mined[: int(len(mined) * task.part)] if payload.hash not in known]
    with Producer(task.url, task.application, producer_id="faults", max_blocks=_UNDERWAY) as producer:
        publishing = _Publishing(producer, task.ledger)
        for payload in _paced(waiting, task.pace):
            while not _may(task, payload):
                publishing.again(_AGAIN_SECONDS)
            publishing.add(payload)
            publishing.again(0)
        while publishing.acknowledged < len(waiting):
            publishing.again(_AGAIN_SECONDS)


def _may(task: Task, payload: Payload) -> bool:
    """Whether it is the block's turn."""
    if task.ahead is not None and payload.number > store.head(task.database) + task.ahead:
        return False
    last = task.leave.read()
    return last is None or payload.number <= last


class _Publishing:
    """Blocks on their way, and those that go again."""

    def __init__(self, producer: Producer, ledger: Ledger) -> None:
        self._producer = producer
        self._ledger = ledger
        self._failed: SimpleQueue[tuple[Payload, BaseException]] = SimpleQueue()
        self._done = SimpleQueue[None]()

    @property
    def acknowledged(self) -> int:
        return self._done.qsize()

    def add(self, payload: Payload) -> None:
        while True:
            try:
                future = self._producer.add(payload)
            except ClientStoppedError:
                raise
            except DeliveryError:  # there is no room, because another one has failed
                self.again(_AGAIN_SECONDS)
            else:
                future.add_done_callback(partial(self._ended, payload))
                return

    def again(self, seconds: float) -> None:
        """Send what has failed again; wait so many seconds for something to fail."""
        try:
            payload, error = self._failed.get(timeout=seconds) if seconds else self._failed.get_nowait()
        except Empty:
            return
        if isinstance(error, ClientStoppedError) or not (isinstance(error, CardinalError) and error.retriable):
            raise error
        self.add(payload)

    def _ended(self, payload: Payload, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            self._failed.put((payload, error))
            return
        self._ledger.write(payload.hash)
        self._done.put(None)


def follow(task: Task) -> None:
    """Store every update and its cursor in one transaction, until the node's last head is delivered."""
    with closing(store.opened(task.database)) as database:
        _follow(task, database)


def _follow(task: Task, database: sqlite3.Connection) -> None:
    last = task.payloads[-1].hash
    reports: list[tuple[bytes | None, str]] = []

    def told(event: object) -> None:
        if isinstance(event, Divergence | Quarantined | Rejected | Surplus):
            block = event.block if isinstance(event, Quarantined) else None
            reports.append((block, repr(event)[:_REPORT]))

    start = store.begun(database)
    options = ConsumerOptions(on_event=told, tracked=_EVERYTHING, topics_timeout=_TOPICS_SECONDS)
    with Consumer(task.url, task.application, start=start, options=options) as consumer:
        if consumer.head is not None and consumer.head.hash == last:
            return
        for update in consumer:
            store.add(database, update, reports)
            reports.clear()
            if update.added and update.added[-1].hash == last:
                return


def _paced(payloads: list[Payload], pace: float) -> Iterator[Payload]:
    """One after the other, at most so many a second: faults are to meet a stream that flows."""
    due = time.monotonic()
    for payload in payloads:
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        yield payload
        due = max(due, time.monotonic()) + 1 / pace  # who had to wait does not hurry afterwards


def _end_with_parent() -> None:
    """Whoever started this process holds its standard input open, and nobody else does."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run one of the two; the exit status."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = {"publish": publish, "follow": follow}[arguments[0]]
    try:
        work(Task(**json.loads(arguments[1])))
    except CardinalError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
