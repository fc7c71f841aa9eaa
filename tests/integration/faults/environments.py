"""Environments of the cases: a broker, one with transactions, one behind a proxy, a cluster, a folder."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from cardinal_devkit.kafka import EmbeddedCluster, EmbeddedKafka, free_port
from cardinal_devkit.testing.proxy import TcpProxy

from .process import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from cardinal.protocols.streams.types import Partition

    from .work import Task

_ORDER_SECONDS: Final = 30.0
_HEAP_MB: Final = 256
_OPTIONS: Final = "cardinal.partitions=4"


class Environment:
    """A broker of our own, to be broken.

    Arguments:
        folder: for its data.

    Attributes:
        broker: the broker.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = EmbeddedKafka(folder / "kafka", heap_mb=_HEAP_MB)

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""
        return self.broker.bootstrap

    @property
    def url(self) -> str:
        """The transport for producers and consumers."""
        return f"kafka://{self.bootstrap}?{_OPTIONS}"

    def start(self) -> None:
        """Start what is not running."""
        self.broker.start()

    def stop(self) -> None:
        """End everything."""
        self.broker.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.stop()

    # --- orders ----------------------------------------------------------------------------------------------

    def delete(self, *topics: str) -> None:
        """Delete topics."""
        self._order(lambda admin: admin.delete_topics([*topics]))

    def clear(self, task: Task) -> None:
        """Delete whatever topics of a stream there are: what is over is not to weigh on cases that still run."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException, ScenarioError):  # then they stay
            there = admin.list_topics(timeout=_ORDER_SECONDS).topics
            if old := [topic for topic in there if topic.startswith(f"{task.stem}-")]:
                self.delete(*old)

    def widen(self, task: Task, partitions: int) -> None:
        """Give every topic of the stream so many partitions."""
        wanted = [NewPartitions(name, partitions) for name in task.application.all_topics]
        self._order(lambda admin: admin.create_partitions(wanted))

    def trim(self, floors: Mapping[Partition, int]) -> None:
        """Remove every record below these offsets, as retention does."""
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in floors.items()]
        self._order(lambda admin: admin.delete_records(wanted))

    def leader(self, topic: str) -> int:
        """The node that leads the topic's first partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return int(admin.list_topics(topic, timeout=_ORDER_SECONDS).topics[topic].partitions[0].leader)

    def _order(self, order: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            for answer in order(admin).values():
                answer.result(_ORDER_SECONDS)
        except (KafkaException, TimeoutError) as error:
            raise ScenarioError(f"an order to the broker failed: {error}") from error


class TransactionEnvironment(Environment):
    """A broker to which producers write in transactions, none of which may be open for longer than 2 s."""

    @property
    def url(self) -> str:
        """The transport for producers and consumers."""
        return f"{super().url}&transactional=update&transaction.timeout.ms=2000"


class ProxyEnvironment(Environment):
    """A broker whose clients come by a proxy.

    Attributes:
        proxy: the proxy.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        port = free_port()
        self.proxy = TcpProxy(f"127.0.0.1:{port}").start()
        self.broker = EmbeddedKafka(folder / "kafka", port=port, advertised=self.proxy.address, heap_mb=_HEAP_MB)

    def stop(self) -> None:
        """End the broker and the proxy."""
        super().stop()
        self.proxy.stop()


class ClusterEnvironment(Environment):
    """Three brokers.

    Attributes:
        cluster: all of them; ``broker`` is the first.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = EmbeddedCluster(folder / "cluster")
        self.broker = self.cluster.nodes[0]

    @property
    def bootstrap(self) -> str:
        """All three, so that one may be unreachable."""
        return self.cluster.bootstrap

    def start(self) -> None:
        """Start what is not running."""
        self.cluster.start()

    def stop(self) -> None:
        """End all three."""
        self.cluster.stop()


class FileEnvironment(Environment):
    """A folder of the file transport, whose disk can be full. There is no broker.

    Attributes:
        log: the folder.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "log"

    @property
    def url(self) -> str:
        """The transport for producers and consumers."""
        return f"file://{self.log}?{_OPTIONS}"

    def start(self) -> None:
        """Nothing has to run."""

    def clear(self, task: Task) -> None:
        """Every stream has its own files."""

    def stop(self) -> None:
        """Nothing runs."""

    @contextlib.contextmanager
    def full(self, process: int) -> Iterator[None]:
        """No file of this process grows beyond the newest segment as it is now: its disk is full for it.

        Raises:
            ScenarioError: this system cannot limit another process (only Linux can).

        """
        if not hasattr(resource, "prlimit"):
            raise ScenarioError("to fill the disk of another process takes Linux")
        room = max(self.log.glob("*.avro")).stat().st_size
        before = resource.prlimit(process, resource.RLIMIT_FSIZE)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, before)
