"""Scenes of a simulated cluster: chains that are published, links slower than timers, ends that come late."""

from __future__ import annotations

from dataclasses import replace

from cardinal.protocols.replication import Block
from model.cluster_world import CALM, SETTINGS, Chaos, Cluster


def started(seed: int, size: int = 3, chaos: Chaos = CALM, **settings: float) -> Cluster:
    """A cluster whose members are up and linked."""
    cluster = Cluster(seed, size, chaos, replace(SETTINGS, **settings))  # type: ignore[arg-type]
    for name in cluster.nodes:
        cluster.boot(name)
    cluster.after(0.2, cluster.push)
    cluster.run(0.3 if chaos.latency[1] < 1 else 10.0)
    return cluster


def grow(cluster: Cluster, length: int, parent: Block | None = None, weight: int = 1) -> list[Block]:
    """A chain of new blocks above another one."""
    chain: list[Block] = []
    for _ in range(length):
        parent = cluster.publish(None if parent is None else parent.hash, weight)
        chain.append(parent)
    return chain


def agreed(cluster: Cluster, *blocks: Block) -> bool:
    return all(block.hash in cluster.laws.order for block in blocks)


def slow_links(seed: int, seconds: float = 900.0) -> Cluster:
    """Links slower than every timer, for ever."""
    cluster = started(seed, chaos=replace(CALM, latency=(1.5, 3.0), read=(1.0, 3.0), body=(1.0, 3.0)))
    for _ in range(3):
        last = max(cluster.laws.order, key=cluster.laws.order.__getitem__, default=None)
        chain = grow(cluster, 3, None if last is None else cluster.blocks[last])
        cluster.settle(seconds)
        assert agreed(cluster, chain[-1])
    return cluster


def promoting(seed: int, chaos: Chaos, size: int = 3, *, rounds: int = 4, **settings: float) -> Cluster:
    """A chain that is promoted in several rounds."""
    cluster = started(seed, size, chaos, **settings)
    chain: list[Block] = []
    for _ in range(rounds):
        chain += grow(cluster, 4, chain[-1] if chain else None)
        cluster.settle()
    assert agreed(cluster, *chain)
    return cluster


def late_ends(seed: int) -> Cluster:
    """Transactions that fail, and ends that arrive in the midst of the next transaction."""
    return promoting(seed, replace(CALM, abort=0.3, late=0.9, unclear=0.2, latency=(0.002, 0.05)), rounds=6)
