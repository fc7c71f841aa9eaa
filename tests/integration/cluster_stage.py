"""Cluster of three member processes, with faults of processes, disks and links, and a publisher that keeps pushing."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka import Consumer as Client
from kafka_streams import everything_on
from long_runs import consumed

from cardinal.apps import blob, get
from cardinal.errors import CardinalError, NodeBehindError, RefusedError, UnreachableError
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal_devkit import TcpProxy
from cardinal_devkit.kafka import free_port
from cardinal_devkit.testing.proxy import Link
from cardinal_ingest import Publisher
from cardinal_ingest.cluster.keys import generate_key
from cardinal_ingest.cluster.promotion_writer import Agreed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams import Payload
    from cardinal_devkit.kafka import EmbeddedKafka

MEMBERS: Final = ("a", "b", "c")
DEADLINE: Final = 90.0
_LOOK_SECONDS: Final = 0.05
_METRIC: Final = "cardinal_ingest_cluster_"


class Cluster:
    """Members of a cluster, each a process.

    Arguments:
        url, app: the stream.
        folder: for keys, data and logs.
        proxied: links can be cut.

    """

    orphans = False

    def __init__(self, url: str, app: Application, folder: Path, *, proxied: bool = False) -> None:
        self.url = url
        self.app = app
        self.ports = {one: free_port() for one in MEMBERS}
        self.pushers: list[Pushing] = []
        self._folder = folder
        self._metrics = {one: free_port() for one in MEMBERS}
        self._opened = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stream = ["--to", url, "--app", app.name, "--topic", app.default_topic]
        self._public = {one: generate_key(folder / f"{one}.key").public.hex() for one in MEMBERS}
        self._links = {one: free_port() for one in MEMBERS}
        self._bodies = {one: free_port() for one in MEMBERS}
        self.proxies: dict[tuple[str, str], list[TcpProxy]] = {}
        """By dialer and acceptor: of the link, and of bodies."""
        for one in MEMBERS:
            ports: dict[str, tuple[int, int]] = {}
            for other in MEMBERS:
                ports[other] = self._links[other], self._bodies[other]
                if proxied and other != one:
                    both = [self._opened.enter_context(TcpProxy(f"127.0.0.1:{port}")) for port in ports[other]]
                    self.proxies[one, other] = both
                    link, bodies = (int(proxy.address.rpartition(":")[2]) for proxy in both)
                    ports[other] = link, bodies
            self._write(one, ports)
        init = ["cluster", "init", *self._stream, "--cluster", str(folder / "a.toml"), "--node-id", "a"]
        init += ["--key", str(folder / "a.key"), "--start", "0"]
        subprocess.run([sys.executable, "-m", "cardinal", *init], check=True, capture_output=True)
        self.commands = {one: self._command(one, one, self.ports[one], self._metrics[one]) for one in MEMBERS}

    def _write(self, name: str, ports: dict[str, tuple[int, int]]) -> None:
        lines = ['name = "faults"']
        for one, (link, bodies) in ports.items():
            lines += [f"[members.{one}]", f'key = "{self._public[one]}"', f'address = "127.0.0.1:{link}"']
            lines += [f'bodies = "127.0.0.1:{bodies}"']
        (self._folder / f"{name}.toml").write_text("\n".join(lines))

    def _command(self, name: str, member: str, port: int, metrics: int) -> list[str]:
        command = ["ingest", *self._stream, "--cluster", str(self._folder / f"{name}.toml"), "--node-id", member]
        command += ["--key", str(self._folder / f"{member}.key"), "--data", str(self.data(name))]
        return [*command, "--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{metrics}"]

    def close(self) -> None:
        self.kill(*self._processes)
        self._opened.close()

    # --- members ----------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            with (self._folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-m", "cardinal", *self.commands[name]]
                self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_twin(self, of: str) -> str:
        """Start a second process with the id and key of a member, on another machine: it has addresses of its own."""
        name = f"{of}-twin"
        ports = {one: (self._links[one], self._bodies[one]) for one in MEMBERS} | {of: (free_port(), free_port())}
        self._write(name, ports)
        self._metrics[name] = free_port()
        self.commands[name] = self._command(name, of, free_port(), self._metrics[name])
        self.start(name)
        return name

    def kill(self, *names: str) -> None:
        for name in names:
            self._processes[name].kill()
        for name in names:
            self._processes[name].wait()

    def data(self, name: str) -> Path:
        """The data folder of a member."""
        return self._folder / f"data-{name}"

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a member."""
        return self._processes[name]

    def log(self, name: str) -> str:
        """What a member logged."""
        return (self._folder / f"{name}.log").read_text()

    def publishers_of(self, *names: str) -> str:
        """The URL for publishers of these members."""
        return "ingest://" + ",".join(f"127.0.0.1:{self.ports[name]}" for name in names)

    # --- what members report ----------------------------------------------------------------------------------------

    def metrics(self, name: str) -> dict[str, float]:
        """The numbers of a cluster that a member reports; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics[name]}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = re.findall(rf"^{_METRIC}(\S+) (\S+)$", text, re.MULTILINE)
        return {metric: float(value) for metric, value in found}

    def number(self, name: str, metric: str) -> float:
        """One of the numbers; -1 where there is none."""
        return self.metrics(name).get(metric, -1)

    def leader(self, name: str) -> str:
        """The leader, as a member sees it."""
        found = (re.fullmatch(r'leader\{member="(.*)"\}', metric) for metric in self.metrics(name))
        return next((one[1] for one in found if one), "")

    def leader_besides(self, member: str, *others: str) -> str:
        """A leader that is none of these, as the first of them sees it, as soon as there is one."""
        found = ""

        def is_another() -> bool:
            nonlocal found
            found = self.leader(member)
            return found not in {"", member, *others}

        until(is_another, "no other member leads", self)
        return found

    def promoter(self) -> str:
        """The member that promotes."""
        until(lambda: self._promoter() != "", "nobody promotes", self)
        return self._promoter()

    def _promoter(self) -> str:
        return next((one for one in MEMBERS if self.number(one, "promoter") == 1), "")

    def wait_for(self, *names: str) -> None:
        """Wait until these members are connected to all others."""
        for name in names:
            until(lambda name=name: self.number(name, "peers_connected") == 2, f"{name} is not connected", self)

    # --- links ------------------------------------------------------------------------------------------------------

    def cut(self, dialer: str, acceptor: str, *, back: bool = True) -> None:
        """Let nothing pass that one member sends another on the connections that it opens; nor answers, with back."""
        for proxy in self.proxies[dialer, acceptor]:
            proxy.impair(Link(blackhole=True), Link(blackhole=back))

    def isolate(self, name: str) -> None:
        """Cut a member off from all others."""
        for pair in self.proxies:
            if name in pair:
                self.cut(*pair)

    def heal(self) -> None:
        for both in self.proxies.values():
            for proxy in both:
                proxy.heal()


class Watch:
    """Reader of the claim log and of the markers: when their records came.

    Arguments:
        broker: ``host:port``.
        topic: the stream's default topic.

    """

    def __init__(self, broker: str, topic: str) -> None:
        self.claims: list[float] = []
        self.markers: list[float] = []
        self._into = {f"{topic}-claims-0": self.claims, f"{topic}-promoted": self.markers}
        self._client = Client(
            {
                "bootstrap.servers": broker,
                "group.id": topic,
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._into])
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            record = self._client.poll(0.1)
            if record is not None and record.error() is None and record.key():
                self._into[record.topic()].append(time.monotonic())

    def close(self) -> None:
        self._closed.set()
        self._thread.join(DEADLINE)
        self._client.close()


@contextmanager
def pushed(broker: EmbeddedKafka, folder: Path, *, to: str = "abc", proxied: bool = False) -> Iterator[Pushed]:
    """A cluster and a publisher of some members. In the end every acknowledged block is on the topics once."""
    app = get("blob", topic=f"faults-{free_port()}-{time.time_ns()}")
    cluster = Cluster(f"kafka://{broker.bootstrap}", app, folder, proxied=proxied)
    watch = Watch(broker.bootstrap, app.default_topic)
    try:
        cluster.start(*MEMBERS)
        cluster.wait_for(*MEMBERS)
        pushing = Pushing(cluster.publishers_of(*to), cluster)
        pushing.more(20)
        yield Pushed(cluster, pushing, watch)
        check(cluster, max((one.finish() for one in cluster.pushers), key=len))
    finally:
        cluster.close()
        watch.close()


class Pushed(NamedTuple):
    """What a test of faults has."""

    cluster: Cluster
    pushing: Pushing
    watch: Watch


def pause(times: list[float], since: float) -> float:
    """The longest time without a record, since a moment and the last record before it."""
    later = [since, *(at for at in list(times) if at > since)]
    return max((after - before for before, after in itertools.pairwise(later)), default=float("inf"))


def report(sentence: str) -> None:
    """Print it; pytest shows it with -s."""
    print(sentence)  # noqa: T201 - measured times are not judged


def until(condition: Callable[[], bool], what: str, cluster: Cluster, seconds: float = DEADLINE) -> float:
    """Wait for a condition; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + seconds:
            logs = "\n".join(f"--- {name}\n{cluster.log(name)[-3000:]}" for name in MEMBERS)
            raise AssertionError(f"{what}\n{logs}")
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - began


# --- publisher ------------------------------------------------------------------------------------------------------


_PAUSE_SECONDS: Final = 0.05


class Pushing:
    """Publisher on a thread of its own, of a chain that grows.

    Arguments:
        url: of ingest nodes.
        cluster: of the nodes.

    """

    def __init__(self, url: str, cluster: Cluster) -> None:
        self.chain: list[Payload] = []
        self.last = -1
        """The highest acknowledged block; -1 while there is none."""
        self.failures: list[BaseException] = []
        self._cluster = cluster
        cluster.pushers.append(self)
        self._url = url
        self._next = 0
        self._acknowledged: set[int] = set()
        self._stopped = threading.Event()
        self.publisher = self._open()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _open(self) -> Publisher:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                return Publisher(self._url, self._cluster.app, publisher_id="faults")
            except (RefusedError, UnreachableError):
                assert time.monotonic() < deadline, self._cluster.log("a")
                time.sleep(_LOOK_SECONDS)

    @property
    def node(self) -> str:
        """The member that blocks go to; empty while there is none."""
        port = (self.publisher.node or "").rpartition(":")[2]
        return next((name for name, one in self._cluster.ports.items() if str(one) == port), "")

    def where(self) -> str:
        """The member that blocks go to, as soon as there is one."""
        until(lambda: self.node != "", "no member takes blocks", self._cluster)
        return self.node

    def more(self, blocks: int = 10, what: str = "nothing more is acknowledged") -> None:
        """Wait until so many blocks more are acknowledged."""
        goal = self.last + blocks
        until(lambda: self.last >= goal, what, self._cluster)

    def finish(self) -> list[Payload]:
        """Push no more, wait until everything is acknowledged; the chain."""
        self._stopped.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        until(
            lambda: self.last == self._next - 1 == len(self.chain) - 1, "not everything is acknowledged", self._cluster
        )
        self.publisher.close()
        assert not self.failures, self.failures
        return self.chain

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS) or len(self._acknowledged) < len(self.chain):
            if self._next == len(self.chain):
                if self._stopped.is_set():
                    time.sleep(_LOOK_SECONDS)
                    continue
                self.chain.append(self._block(self._next))
            block = self.chain[self._next]
            try:
                self.publisher.add(block).add_done_callback(partial(self._done, block.number))
            except NodeBehindError as behind:
                self._next = behind.number
            except CardinalError as error:
                self.failures.append(error)
                return
            else:
                self._next = block.number + 1

    def _done(self, number: int, done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._acknowledged.add(number)
            self.last = max(self.last, number)
        elif isinstance(error, NodeBehindError):
            self._next = error.number

    def _block(self, number: int) -> Payload:
        name = f"{number}".encode().rjust(32, b"\0")
        parent = f"{number - 1}".encode().rjust(32, b"\0") if number else bytes(32)
        return blob.payload(blob.Blob(number, name, parent, {"one": name * (number % 50), "two": name}))


def check(cluster: Cluster, chain: list[Payload]) -> None:
    """Every block of an acknowledged chain is on the topics once, parents first; a new consumer has the chain.

    No member blames another one, but for silence, as of a link that was cut: all are honest.
    """
    for name in MEMBERS:
        blamed = [line for line in cluster.log(name).splitlines() if "broke the protocol" in line]
        blamed = [line for line in blamed if "(ExceededTimeLimit)" not in line]
        assert not blamed, (name, blamed[:3])
    assert consumed(cluster.url, cluster.app, chain[-1].hash) == chain
    records = everything_on(f"{cluster.url}?transactional=update", cluster.app)
    keys = [record.key for record in records if record.key[0] in {BATCH, BATCH_MSG}]
    assert len(keys) == len(set(keys))
    batches = [record for record in records if record.key[0] == BATCH]
    places = {record.key[1:33]: Agreed.of(record) for record in batches}
    assert places.keys() == {block.hash for block in chain}
    agreed = [place for place in (places[block.hash] for block in chain) if place is not None]
    assert len(agreed) == len(chain)
    assert all(before < after for before, after in itertools.pairwise(agreed))
    batches.sort(key=lambda record: (record.partition, record.offset))
    for before, after in itertools.pairwise(batches):
        assert before.partition < after.partition or places[before.key[1:33]] < places[after.key[1:33]]
