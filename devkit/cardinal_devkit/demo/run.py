"""The course of the demo.

1. A broker, a development node that waits for its producers, two redundant producers, a consumer, and Spark. With
   ``ingest_nodes`` one ingest node or a cluster of three precedes the broker, and the producers are its publishers.
2. The chain grows and forks. Before a reorg the node holds until everything is in the lake, so that every reorg crosses
   a batch boundary and the lake sees the same ones on every run. Of a cluster, the leader and a publisher are killed
   there (:mod:`.kills`).
3. Once consumer and lake have reached the node's last block, both are compared with the node.
4. Everything that was started is stopped, also after an error.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from cardinal.consumer import Consumer
from cardinal.errors import CardinalError, ConfigurationError
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.texts import Count
from cardinal_devkit.kafka import EmbeddedKafka
from cardinal_devkit.kafka.jars import Jar

from .cast import Child
from .check import Content, LakeReader, NodeReader, Reorg, across_batches, differences, reorgs_of_events
from .ingest import STARTED, DemoCluster, IngestNode, one_node
from .kills import Kill, Kills, Victim

_LOOK_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 300.0
_TOPICS_SECONDS: Final = 60.0
_PRODUCES: Final = "the stream "
"""Begins a producer's report of where it continues."""
CHAIN_ID: Final = 1337
_HOLD_PART: Final = 8
"""The part of the chain that exists before the node may hold: most reorgs come after."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a run: the chain's seed and length, its pace in steps a second, the folder, the members.

    ``ingest_nodes``: 0, 1, or the 3 of a cluster.
    """

    folder: Path
    seed: int = 7
    blocks: int = 48
    rate: float = 4.0
    spark: bool = True
    ingest_nodes: int = 0


class Audience(Protocol):
    """Observer of a run."""

    def jar(self, jar: Jar, received: int) -> None:
        """A jar of the broker is being fetched."""
        ...

    def note(self, text: str) -> None:
        """Something was started, or is done."""
        ...

    def wait(self, text: str) -> None:
        """Something that takes long has begun; an empty text ends it."""
        ...

    def update(self, update: ChainUpdate) -> None:
        """The consumer delivered an update."""
        ...

    def batch(self, number: int, blocks: int, head: int, seconds: float) -> None:
        """Spark wrote a batch; ``head`` is the lake's head after it."""
        ...


@dataclass(slots=True)
class Outcome:
    """Outcome of a run. ``differences`` is empty where node, consumer and lake agree."""

    blocks: int = 0
    reorgs: list[Reorg] = field(default_factory=list)
    across_batches: int = 0
    kills: list[Kill] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    lake: Path | None = None
    seconds: float = 0.0


class Demo:
    """One run. :meth:`play` does it all."""

    def __init__(self, settings: DemoSettings, audience: Audience) -> None:
        self._settings = settings
        self._audience = audience
        self._stack = ExitStack()
        self._updates: queue.SimpleQueue[ChainUpdate | BaseException] = queue.SimpleQueue()
        self._chain: dict[int, str] = {}
        self._reorgs: list[Reorg] = []
        self._batch_ends: list[int] = []
        self._lake_head = ""
        self._head = ""
        self._ws = ""
        self._cluster: DemoCluster | None = None
        self._kills = Kills((), audience.note)
        self._stopping = threading.Event()

    def play(self) -> Outcome:
        """Play to the end, and compare.

        Raises:
            CardinalError: something could not be started, failed, or did not come to its end in time.

        """
        begun = time.monotonic()
        with self._stack:
            outcome = self._play()
        outcome.seconds = time.monotonic() - begun
        return outcome

    def _play(self) -> Outcome:
        settings = self._settings
        settings.folder.mkdir(parents=True, exist_ok=True)
        broker = self._stack.enter_context(EmbeddedKafka(settings.folder / "kafka", progress=self._audience.jar))
        broker.start()
        url = f"kafka://{broker.bootstrap}"
        self._audience.note(f"broker at {broker.bootstrap}")
        node, reader = self._start_node()
        nodes, addresses = self._start_ingest(url)
        producers = self._start_producers(url, addresses)
        if self._cluster is not None:
            self._kills = Kills((partial(self._leader, nodes), partial(_publisher, producers)), self._audience.note)
        self._start_consumer(url)
        lake = self._follow(url, node, reader, [*producers, *nodes])
        return self._compare(reader, lake)

    # --- the cast --------------------------------------------------------------------------------------------

    def _child(self, name: str, *arguments: str) -> Child:
        child = Child(name, list(arguments), self._settings.folder)
        self._stack.callback(child.stop)
        return child

    def _start_node(self) -> tuple[Child, NodeReader]:
        settings = self._settings
        arguments = ["--seed", str(settings.seed), "--blocks", str(settings.blocks), "--rate", str(settings.rate)]
        if settings.spark or settings.ingest_nodes > 1:
            arguments += ["--hold", str(settings.blocks // _HOLD_PART)]
        node = self._child("node", "dev-node", *arguments, "--chain-id", str(CHAIN_ID), "--wait", "2", "--json")
        said = self._until(node.objects, "the node did not start", [node])[0]
        self._ws = str(said["ws"])
        self._audience.note(
            f"development node at {said['http']}, seed {settings.seed}, {Count(settings.blocks, 'block')}"
        )
        return node, NodeReader(str(said["http"]))

    def _start_ingest(self, url: str) -> tuple[list[Child], list[str]]:
        """The ingest nodes, and their addresses for publishers."""
        count, folder = self._settings.ingest_nodes, self._settings.folder
        nodes: tuple[IngestNode, ...] = ()
        if count == 1:
            nodes = (one_node(url, CHAIN_ID, folder),)
        elif count > 1:
            self._cluster = DemoCluster(url, CHAIN_ID, folder)
            nodes = self._cluster.nodes
        children: list[Child] = []
        for one in nodes:
            self._audience.note(f"{one.name} at {one.address}")
            children.append(self._child(one.name, *one.arguments))
        for child in children:
            self._until(partial(child.count, STARTED), f"{child.name} did not start", children)
        return children, [one.address for one in nodes]

    def _start_producers(self, url: str, addresses: list[str]) -> list[Child]:
        """Two producers, or two publishers that prefer different nodes."""
        kind = "publisher" if addresses else "producer"
        span = ("--start", "earliest", "--stop", str(self._settings.blocks))
        children = []
        for letter in "ab":
            name = f"{kind}-{letter}"
            to = f"ingest://{','.join(addresses)}" if addresses else url
            addresses = [*addresses[1:], *addresses[:1]]
            self._audience.note(f"{name} from {self._ws}")
            children.append(self._child(name, "produce", "--from", self._ws, "--to", to, "--producer-id", name, *span))
        return children

    def _leader(self, nodes: list[Child]) -> Victim | None:
        """The member to kill."""
        leader = self._cluster.leader() if self._cluster is not None else ""
        return next((Victim(node, "the leader", STARTED) for node in nodes if node.name == leader), None)

    def _start_consumer(self, url: str) -> None:
        consuming = threading.Thread(target=self._consume, args=(url,), name="cardinal-demo-consumer")
        consuming.start()
        self._stack.callback(consuming.join)
        self._stack.callback(self._stopping.set)

    def _consume(self, url: str) -> None:
        try:
            with Consumer(url, "evm", chain_id=CHAIN_ID, topics_timeout=_TOPICS_SECONDS, idle_timeout=0.5) as consumer:
                while not self._stopping.is_set():
                    for update in consumer:
                        self._updates.put(update)
                        if self._stopping.is_set():
                            return
        except CardinalError as error:
            self._updates.put(error)

    # --- the course ------------------------------------------------------------------------------------------

    def _until(self, look: Callable[[], Found], otherwise: str, children: list[Child]) -> Found:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for child in children:
                child.check()
            if found := look():
                return found
            time.sleep(_LOOK_SECONDS)
        raise ConfigurationError(
            f"{otherwise} within {_PATIENCE_SECONDS:.0f} s; see the logs in {self._settings.folder}"
        )

    def _follow(self, url: str, node: Child, reader: NodeReader, producers: list[Child]) -> Child | None:
        """Watch until consumer, lake and members have reached the node's last block, and killed members are back."""
        self._until(self._take_updates, "no block was delivered", [node, *producers])
        lake = None
        if self._settings.spark:
            self._audience.wait("Spark starts, and the node waits for the lake")
            folder = self._settings.folder
            lake = self._child("lake", "lake", "run", "--from", url, "--to", str(folder / "lake"), "--json")
        held = False

        def ended() -> bool:
            nonlocal held
            before = self._head
            self._take_updates()
            if lake is not None:
                self._take_batches(lake)
            self._kills.look(max(self._chain), changed=self._head != before)
            number, block_hash = reader.head()
            held = held or any("held" in said for said in node.objects())
            last = number >= self._settings.blocks
            rests = self._head == block_hash and (lake is None or self._lake_head == block_hash)
            if rests and (held or last) and self._kills.strike(number, more=held) and held:
                node.signal(signal.SIGUSR1)
                held = False
            return last and rests and self._kills.over and (self._cluster is None or self._cluster.level())

        watched = [node, *producers, *([lake] if lake else [])]
        self._until(ended, "not everything reached the node's last block", watched)
        if lake is not None:
            lake.stop()
        return lake

    def _take_updates(self) -> bool:
        while not self._updates.empty():
            update = self._updates.get()
            if isinstance(update, BaseException):
                raise update
            if update.removed:
                self._reorgs.append(Reorg(len(update.removed), len(update.added)))
            for block in update.removed:
                del self._chain[block.number]
            for block in update.added:
                self._chain[block.number] = f"0x{block.hash.hex()}"
            self._head = self._chain[max(self._chain)]
            self._audience.update(update)
        return bool(self._chain)

    def _take_batches(self, lake: Child) -> None:
        for said in lake.objects():
            self._audience.wait("")
            self._batch_ends.append(said["seq"])
            self._lake_head = said["hash"]
            self._audience.batch(len(self._batch_ends), said["blocks"], said["number"], said["seconds"])

    def _compare(self, node: NodeReader, lake: Child | None) -> Outcome:
        want = node.content()
        outcome = Outcome(blocks=len(want.hashes), reorgs=self._reorgs, kills=self._kills.done)
        outcome.differences = differences(want, Content(self._chain, {}), content=False)
        if lake is not None:
            self._audience.wait("comparing the lake with the node, hash by hash and content by content")
            reader = LakeReader(self._settings.folder / "lake")
            events = reader.rows("events", "seq", "change", "update_id", "hash")
            outcome.lake = self._settings.folder / "lake"
            outcome.reorgs = reorgs_of_events(events)
            outcome.across_batches = across_batches(events, self._batch_ends)
            outcome.rows = reader.counts()
            outcome.differences += differences(want, reader.content(), content=True)
            self._audience.wait("")
        return outcome


def _publisher(producers: list[Child]) -> Victim:
    """The publisher to kill."""
    return Victim(producers[0], "one of two", _PRODUCES)
