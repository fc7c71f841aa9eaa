"""Runs in which publishers, ingest nodes and the broker are killed at random moments, and begun again.

Publishers push one growing chain, with reorgs of up to ten blocks, and a consumer reads it. A run is repeated by its
seed: ``CARDINAL_KILLS_SEED=7``.
"""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kafka_streams import everything_on
from long_runs import Reading, consumed

import pushing
from cardinal.apps import get
from cardinal.consumer import Consumer
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal_devkit.kafka import free_port
from pushing import Mined

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka

DEADLINE: Final = 180.0
SEED: Final = "CARDINAL_KILLS_SEED"
PUBLISHERS: Final = ("publisher 0", "publisher 1")
DEPTH: Final = 10
LEAD: Final = 60
"""Blocks that the chain may be ahead of what is acknowledged: publishers that begin again hold these."""
UNREAD: Final = 1_000
"""Blocks that it may be ahead of what is delivered: kills may come faster than a promoter that begins again."""


class Chain:
    """A chain that grows in a file, for publishers to follow; of blobs, it has reorgs."""

    def __init__(self, file: Path, app: str, dice: random.Random) -> None:
        self.branch: list[Mined] = []
        self.ever: dict[bytes, Mined] = {}
        self.reorgs: collections.Counter[int] = collections.Counter()
        self._file = file
        self._app = app
        file.touch()
        self._dice = dice

    def grow(self) -> None:
        """Mine a block, or reorganise: as many blocks as are left, and one more."""
        depth = 0
        if self._app == "blob" and len(self.branch) > DEPTH and self._dice.random() < 0.1:
            depth = self._dice.randint(1, DEPTH)
            self.reorgs[depth] += 1
            del self.branch[-depth:]
        mined = [self._mine() for _ in range(depth + 1)]
        with self._file.open("a") as file:
            file.write("".join(block.line for block in mined))

    def _mine(self) -> Mined:
        parent = self.branch[-1].hash if self.branch else bytes(32)
        content = self._dice.randbytes(self._dice.choice((0, 100, 2_000, 20_000)))
        block = Mined(len(self.branch), self._dice.randbytes(32), parent, content)
        self.branch.append(block)
        self.ever[block.hash] = block
        return block


class Nodes(Protocol):
    """Ingest nodes of a run: their commands, by name, and the ports of each for publishers.

    ``orphans``: what leaves the chain after its acknowledgement is on the topics as well.
    """

    commands: dict[str, list[str]]
    ports: dict[str, int]
    orphans: bool


class OneNode:
    """A node that acknowledges on its own.

    Arguments:
        url, app: the stream.
        folder: for its data.

    """

    orphans = True

    def __init__(self, url: str, app: Application, folder: Path) -> None:
        self.ports = {"node": free_port()}
        listen = f"127.0.0.1:{self.ports['node']}"
        command = ["ingest", "--node-id", "a", "--listen", listen, "--to", url, "--data", str(folder / "data")]
        self.commands = {"node": [*command, "--app", app.name, "--topic", app.default_topic]}


class Killed:
    """The processes that are killed, and begun again.

    Arguments:
        app: blob or items.
        broker: of this run alone, where it is killed too.
        folder: for the chain and the nodes' data.
        dice: moments, and the chain.
        nodes: makes the nodes of a stream.

    """

    def __init__(
        self,
        app: str,
        broker: EmbeddedKafka,
        folder: Path,
        dice: random.Random,
        nodes: Callable[[str, Application, Path], Nodes],
    ) -> None:
        self.url = f"kafka://{broker.bootstrap}"
        self.topic = f"kills-{uuid.uuid4().hex}"
        self.chain = Chain(folder / "chain", app, dice)
        self.acknowledged: set[bytes] = set()
        self.kills: collections.Counter[str] = collections.Counter()
        self._app = app
        self._broker = broker
        self._folder = folder
        self._dice = dice
        self.nodes = nodes(self.url, get(app, topic=self.topic), folder)
        self._log = (folder / "log").open("ab")
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._helpers = ThreadPoolExecutor(2)
        self.reading = Reading(self._changed)
        self._growing = self._helpers.submit(self._grow)
        self._restarting: Future[object] | None = None
        self._processes = {name: self._begin(name) for name in (*self.nodes.commands, *PUBLISHERS)}
        self.reading.begin(Consumer(self.url, get(app, topic=self.topic), topics_timeout=DEADLINE))

    def kill(self, name: str) -> None:
        """Kill one of them at a random moment after something was acknowledged or delivered, and begin it again."""
        acknowledged, seq = len(self.acknowledged), self.reading.seq
        if self._dice.randrange(2):
            self.wait(lambda: self.reading.seq > seq)
        else:
            self.wait(lambda: len(self.acknowledged) > acknowledged)
        self._stopped.wait(self._dice.uniform(0, self._dice.choice((0.1, 1.0))))
        self.kills[name] += 1
        if name != "broker":
            self._end(name)
            self._processes[name] = self._begin(name)
            return
        if self._restarting is not None:
            self._restarting.result(DEADLINE)
        self._broker.kill()
        self._restarting = self._helpers.submit(self._broker.start)  # other kills go on meanwhile

    def finish(self) -> None:
        """Let the chain end, and everything of it be acknowledged."""
        if self._restarting is not None:
            self._restarting.result(DEADLINE)
        self._stopped.set()
        self._growing.result(DEADLINE)
        head = self.chain.branch[-1]
        self.wait(lambda: head.hash in self.acknowledged)
        published = head.payload(self._app).hash
        self.wait(lambda: bool(self.reading.chain) and self.reading.chain[-1].hash == published)

    def close(self) -> None:
        self._stopped.set()
        self.reading.close()
        for name in self._processes:
            self._end(name)
        self._helpers.shutdown()
        self._log.close()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: condition() or self.reading.failed is not None, DEADLINE)
        if self.reading.failed is not None:
            raise self.reading.failed
        assert came, f"{self}: {(self._folder / 'log').read_text()[-4000:]}"

    def __str__(self) -> str:
        newest = max((block.number for one, block in self.chain.ever.items() if one in self.acknowledged), default=-1)
        delivered = self.reading.chain[-1].number if self.reading.chain else -1
        head = self.chain.branch[-1].number
        return f"the head is {head}, the newest acknowledged block {newest}, the newest delivered one {delivered}"

    def _grow(self) -> None:
        while not self._stopped.wait(0.05):
            branch = self.chain.branch
            if len(branch) < LEAD or (
                len(branch) - len(self.reading.chain) < UNREAD
                and any(block.hash in self.acknowledged for block in branch[-LEAD:])
            ):
                self.chain.grow()

    def _begin(self, name: str) -> subprocess.Popen[str]:
        if name in self.nodes.commands:
            command = [sys.executable, "-m", "cardinal", *self.nodes.commands[name]]
            return subprocess.Popen(command, stdout=self._log, stderr=self._log, text=True)
        ports = [str(port) for port in self.nodes.ports.values()]
        if name == PUBLISHERS[1]:
            ports.reverse()
        process = subprocess.Popen(
            [sys.executable, pushing.__file__, ",".join(ports), str(self._folder / "chain"), self._app],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _end(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def _read(self, publisher: subprocess.Popen[str]) -> None:
        assert publisher.stdout is not None
        with publisher.stdout:
            for line in publisher.stdout:
                with self._changed:
                    self.acknowledged.add(bytes.fromhex(line))
                    self._changed.notify_all()


def killed(  # noqa: PLR0917 - a run
    app_name: str,
    broker: EmbeddedKafka,
    folder: Path,
    points: list[str],
    seed: int,
    nodes: Callable[[str, Application, Path], Nodes] = OneNode,
) -> None:
    """Kill these in some order; then the topics hold what was acknowledged, and a consumer has the source's chain."""
    seed = int(os.environ.get(SEED, seed))
    print(f"repeat with {SEED}={seed}")  # noqa: T201 - shown where the test fails
    dice = random.Random(seed)
    dice.shuffle(points)
    began, during = time.monotonic(), 0
    run = Killed(app_name, broker, folder, dice, nodes)
    try:
        for name in points:
            run.kill(name)
        during = run.reading.seq
        run.finish()
        app = get(app_name, topic=run.topic)
        expected = [block.payload(app_name) for block in run.chain.branch]
        assert run.reading.chain == expected
        assert consumed(run.url, app, expected[-1].hash) == expected
        keys = [record.key for record in everything_on(f"{run.url}?transactional=update", app)]
        keys = [key for key in keys if key[0] in {BATCH, BATCH_MSG}]
        assert len(keys) == len(set(keys))
        on_topics = {key[1:33] for key in keys if key[0] == BATCH}
        published = {block.hash: block.payload(app_name).hash for block in run.chain.ever.values()}
        promised = run.acknowledged if run.nodes.orphans else run.acknowledged & {one.hash for one in run.chain.branch}
        assert {published[one] for one in promised} <= on_topics <= set(published.values())
    finally:
        run.close()
    print(  # noqa: T201 - shown with -s
        f"{dict(run.kills)} killed in {time.monotonic() - began:.0f} s; {len(run.chain.ever)} blocks, "
        f"{len(run.chain.branch)} in the chain, {len(on_topics)} on the topics, {len(run.acknowledged)} acknowledged; "
        f"{during} of {run.reading.seq} delivered during the kills; reorgs by depth: {sorted(run.chain.reorgs.items())}"
    )
