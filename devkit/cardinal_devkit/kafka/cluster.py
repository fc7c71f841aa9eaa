"""Embedded cluster of brokers, each of them broker and controller in a process of its own.

Rules:

1. By default a topic has three replicas and ``min.insync.replicas`` 2, so one node may be lost.
2. The nodes' ports are chosen before the first start, because each node must know all controllers.
3. Each node has a heap of 256 MB.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cardinal._directories import writable

from .broker import EmbeddedKafka
from .properties import Membership
from .state import BrokerState, free_port, load_state, new_cluster_id, save_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HEAP_MB: Final = 256
_START_SECONDS: Final = 90.0


class EmbeddedCluster:
    """Cluster of embedded brokers. Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Arguments:
        data: the folder of the nodes' data folders.
        nodes: number of nodes; three tolerate the loss of one.
        properties: Kafka properties that override or extend the default ones, on every node.
        heap_mb: maximum heap of each node in MB.

    Attributes:
        nodes: the brokers, to kill, pause and restart one by one; node 1 is ``nodes[0]``.

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
                folder,
                properties=properties,
                heap_mb=heap_mb,
                membership=Membership(number, controllers if nodes > 1 else ()),
            )
            for number, folder in enumerate(folders, 1)
        )

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every node, for clients."""
        return ",".join(node.bootstrap for node in self.nodes)

    def client_config(self) -> dict[str, str]:
        """Settings of a confluent-kafka client."""
        return {"bootstrap.servers": self.bootstrap}

    def node(self, number: int) -> EmbeddedKafka:
        """The node with this broker id."""
        return self.nodes[number - 1]

    def start(self, timeout: float = _START_SECONDS) -> Self:
        """Start every stopped node; returns when each of them serves clients.

        Raises:
            EmbeddedBrokerError: a node did not start; all are killed.

        """
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            started = [pool.submit(node.start, timeout) for node in self.nodes]
        try:
            for future in started:
                future.result()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop every node. May be called twice."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            # one after the other, the last would wait for a lost quorum
            for ended in [pool.submit(node.stop, 2.0) for node in self.nodes]:
                ended.result()

    def kill(self) -> None:
        """Kill every node by SIGKILL."""
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
    """The controller ports of the nodes with these data folders, chosen and saved where they are new."""
    states = [load_state(writable(folder, hint="take another data folder")) for folder in folders]
    cluster_id = next((state.cluster_id for state in states if state), None) or new_cluster_id()
    used = {port for state in states if state for port in state.ports}
    controllers: list[int] = []
    for folder, old in zip(folders, states, strict=True):
        state = old
        if state is None:
            ports: list[int] = []
            for _ in range(3):
                ports.append(free_port(exclude=used))
                used.add(ports[-1])
            state = BrokerState(cluster_id, *ports)
            save_state(folder, state)
        controllers.append(state.controller_port)
    return tuple(controllers)
