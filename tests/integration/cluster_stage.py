"""Cluster of three member processes, with faults of processes, disks and links.

A member knows the others by a file of its own: with ``proxied``, each link and each connection for bodies goes through
a proxy of its own, which a test cuts.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka import Consumer as Client

from cardinal.apps import get
from cardinal.embedded import free_port
from cardinal.server.ingest.cluster.keys import generate_key
from cardinal.testing import TcpProxy
from cardinal.testing.proxy import Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS: Final = ("a", "b", "c")
DEADLINE: Final = 90.0
_LOOK_SECONDS: Final = 0.05
_METRIC: Final = "cardinal_ingest_cluster_"


class Cluster:
    """Members of a cluster, each a process.

    Arguments:
        broker: ``host:port``.
        folder: for keys, data and logs.
        proxied: links can be cut.

    """

    def __init__(self, broker: str, folder: Path, *, proxied: bool = False) -> None:
        self.url = f"kafka://{broker}"
        self.topic = f"faults-{free_port()}-{time.time_ns()}"
        self.app = get("blob", topic=self.topic)
        self.ports = {one: free_port() for one in MEMBERS}
        self.watch = Watch(broker, self.topic)
        self._folder = folder
        self._metrics = {one: free_port() for one in MEMBERS}
        self._opened = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stream = ["--to", self.url, "--app", "blob", "--topic", self.topic]
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

    def _write(self, name: str, ports: dict[str, tuple[int, int]]) -> None:
        lines = ['name = "faults"']
        for one, (link, bodies) in ports.items():
            lines += [f"[members.{one}]", f'key = "{self._public[one]}"', f'address = "127.0.0.1:{link}"']
            lines += [f'bodies = "127.0.0.1:{bodies}"']
        (self._folder / f"{name}.toml").write_text("\n".join(lines))

    def __enter__(self) -> Self:
        self.start(*MEMBERS)
        self.wait_for(*MEMBERS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.watch.close()
        self._opened.close()

    # --- members ----------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            self._start(name, name, self.ports[name], self._metrics[name])

    def start_twin(self, of: str) -> str:
        """Start a second process with the id and key of a member, on another machine: it has addresses of its own."""
        name = f"{of}-twin"
        ports = {one: (self._links[one], self._bodies[one]) for one in MEMBERS} | {of: (free_port(), free_port())}
        self._write(name, ports)
        self._metrics[name] = free_port()
        self._start(name, of, free_port(), self._metrics[name])
        return name

    def _start(self, name: str, member: str, port: int, metrics: int) -> None:
        command = ["ingest", *self._stream, "--cluster", str(self._folder / f"{name}.toml"), "--node-id", member]
        command += ["--key", str(self._folder / f"{member}.key"), "--data", str(self.data(name))]
        command += ["--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{metrics}"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "cardinal", *command], stdout=log, stderr=log
            )

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
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics[name]}/metrics", timeout=10) as answer:
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
