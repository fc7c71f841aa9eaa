"""Several embedded brokers that form one cluster: each of them broker and controller, each ended on its own.

Rules:

1. Every topic that is made without a word about it has a copy on three nodes and takes records while two of them hold
   them, so one node may be lost.
2. The nodes' ports are chosen before the first start, because each must know all controllers.
3. Memory stays small: a heap of 256 MB a node.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from . import settings as remembered
from .broker import EmbeddedKafka
from .folders import writable
from .properties import Place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HEAP_MB: Final = 256
_START_SECONDS: Final = 90.0


class EmbeddedCluster:
    """A cluster of our own. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Arguments:
        data: the folder that holds the nodes' data folders.
        nodes: how many; three lose one without harm.
        properties: Kafka properties that replace or join ours, on every node.
        heap_mb: the most that each node's heap takes, in MB.

    Attributes:
        nodes: the brokers, to be killed, paused and started again one by one; node 1 is ``nodes[0]``.

    """

    def __init__(
        self,
        data: Path,
        *,
        nodes: int = 3,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = HEAP_MB,
    ) -> None:
        self.data = Path(data).absolute()
        folders = [self.data / f"node-{number}" for number in range(1, nodes + 1)]
        controllers = _chosen(folders)
        self.nodes = tuple(
            EmbeddedKafka(
                folder, properties=properties, heap_mb=heap_mb, place=Place(number, controllers if nodes > 1 else ())
            )
            for number, folder in enumerate(folders, 1)
        )

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, for clients."""
        return ",".join(node.bootstrap for node in self.nodes)

    def client_config(self) -> dict[str, str]:
        """What a confluent-kafka client needs to connect."""
        return {"bootstrap.servers": self.bootstrap}

    def node(self, number: int) -> EmbeddedKafka:
        """The node with this broker id, as Kafka's metadata name it."""
        return self.nodes[number - 1]

    def start(self, timeout: float = _START_SECONDS) -> Self:
        """Start every node that does not run; returns when each of them serves clients.

        Raises:
            EmbeddedBrokerError: a node did not start; all are ended.

        """
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            started = [pool.submit(node.start, timeout) for node in self.nodes]
        try:
            for one in started:
                one.result()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End every node in order. May be called twice."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            # one after the other the last would wait for a quorum that is gone
            for ended in [pool.submit(node.stop, 2.0) for node in self.nodes]:
                ended.result()

    def kill(self) -> None:
        """SIGKILL to every node."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.stop()


def _chosen(folders: list[Path]) -> tuple[int, ...]:
    """The controller ports of the nodes with these data folders: remembered, or chosen now and remembered."""
    found = [remembered.load(writable(folder, hint="take another data folder")) for folder in folders]
    cluster_id = next((settings.cluster_id for settings in found if settings), None) or remembered.new_cluster_id()
    taken = {port for settings in found if settings for port in settings.ports}
    controllers: list[int] = []
    for folder, old in zip(folders, found, strict=True):
        settings = old
        if settings is None:
            ports: list[int] = []
            for _ in range(3):
                ports.append(remembered.free_port(beside=taken))
                taken.add(ports[-1])
            settings = remembered.Settings(cluster_id, *ports)
            remembered.save(folder, settings)
        controllers.append(settings.controller_port)
    return tuple(controllers)
