"""Promoter of a simulated node: transactions that fail, ends that come late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal_ingest.protocols.replication import Promotion, Run

from .cluster_kafka import MARKERS, FencedError, NotInTransactionError, Part, Producer, Seal, Status, Written

if TYPE_CHECKING:
    from .cluster_node import Node
    from .cluster_world import Cluster


class Promoter:
    """One life of a node's promoter.

    Args:
        cluster: the world around it.
        node: its node.

    """

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster = cluster
        self.node = node
        self.lives = node.lives
        self.rule = Promotion(node.replica)
        self.producer: Producer | None = None
        self.idle = False
        """The producer waits for blocks."""

    @property
    def running(self) -> bool:
        return self.node.up and self.node.lives == self.lives

    def wake(self) -> None:
        """Open a producer where it is due; resume where blocks arrived."""
        cluster = self.cluster
        if self.rule.due(cluster.now):
            self.rule.begin()
            cluster.after(cluster.delay(), self.open)
        elif self.idle and self.rule.next_run() is not None:
            self.idle = False
            cluster.after(cluster.delay(), self.transact, self.producer)

    def read(self) -> None:
        """The last committed marker."""
        kafka = self.cluster.kafka
        if self.running and kafka.up and kafka.markers:
            self.cluster.step(self.node, self.rule.read(kafka.markers[-1], self.cluster.now))

    def open(self) -> None:
        cluster = self.cluster
        if not self.running:
            return
        if not cluster.kafka.up:
            self.discard()
            return
        self.producer = cluster.kafka.producer()
        cluster.laws.stats["producers"] += 1
        cluster.after(cluster.delay(), self.transact, self.producer)

    def transact(self, producer: Producer) -> None:
        """The next transaction."""
        self.read()
        if not self.running or self.producer is not producer:
            return
        kafka = self.cluster.kafka
        run = self.rule.next_run()
        if not kafka.up:
            self.discard()
        elif run is None:
            self.idle = True
        else:
            producer.partitions = set()
            writes: list[tuple[int, Written]] = []
            for placed in run.blocks:
                one = placed.item.hash
                writes += [(one[0] % 3, Part(placed)), (one[1] % 3, Seal(placed))]
            writes.insert(0 if self.cluster.marker_first else len(writes), (MARKERS, run.marker))
            self.write(producer, run, writes)

    def write(self, producer: Producer, run: Run, writes: list[tuple[int, Written]]) -> None:
        """Some of the transaction's messages; after them its commit."""
        cluster, chaos, kafka = self.cluster, self.cluster.chaos, self.cluster.kafka
        if not self.running or self.producer is not producer:
            return
        if cluster.stalled is self.node:
            cluster.after(1.0, self.write, producer, run, writes)
            return
        if not kafka.up or cluster.chance(chaos.abort):
            self.abort(producer)
            return
        try:
            if writes:
                share = cluster.random.randint(1, len(writes))
                for partition, value in writes[:share]:
                    kafka.write(producer, partition, value)
                cluster.after(cluster.delay(), self.write, producer, run, writes[share:])
                return
            if cluster.chance(chaos.unclear):
                if cluster.chance(0.5):
                    cluster.after(cluster.random.uniform(0, 3), self.late_end, producer, "committed")
                self.discard()
                return
            kafka.end(producer.epoch, "committed")
        except (FencedError, NotInTransactionError) as error:
            cluster.laws.stats[type(error).__name__] += 1
            self.discard()
            return
        if cluster.chance(chaos.late):
            cluster.after(cluster.random.uniform(0, 5 * chaos.latency[1]), self.late_end, producer, "committed")
        self.committed(producer, run)

    def committed(self, producer: Producer, run: Run) -> None:
        cluster = self.cluster
        cluster.step(self.node, self.rule.committed(run.marker, cluster.now))
        for other in cluster.living:
            if other is not self.node:
                cluster.after(cluster.delay(), other.promoter.read)
        cluster.after(cluster.delay(), self.transact, producer)

    def abort(self, producer: Producer) -> None:
        """A transaction failed: its end is sent, now or late."""
        cluster = self.cluster
        late = 0.0 if cluster.chance(0.5) else cluster.random.uniform(0, 10 * cluster.chaos.latency[1])
        cluster.after(late, self.late_end, producer, "aborted")
        if cluster.reuse:
            cluster.after(cluster.delay(), self.transact, producer)
        else:
            self.discard()

    def late_end(self, producer: Producer, status: Status) -> None:
        try:
            self.cluster.kafka.end(producer.epoch, status)
        except FencedError:
            self.cluster.laws.stats["late ends fenced"] += 1

    def discard(self) -> None:
        """No producer is used after its first commit that is not clean."""
        self.producer, self.idle = None, False
        self.rule.failed(self.cluster.now)
        self.cluster.wake(self.node)
