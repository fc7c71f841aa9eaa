"""Schedules of a simulated cluster from a seed, and scenes: chains that are published, links slower than timers."""

from __future__ import annotations

import random
from dataclasses import replace

from cardinal_ingest.protocols.replication import Block

from .cluster_laws import Broken
from .cluster_node import Disk
from .cluster_world import CALM, RULES, SETTINGS, Chaos, Cluster


def blocks(cluster: Cluster) -> None:
    """A new block: mostly on the best, else on a recent one."""
    if cluster.stop:
        return
    draw, chaos = cluster.random, cluster.chaos
    best = max(cluster.blocks.values(), key=lambda block: block.weight, default=None)
    if best is None or (best.number == RULES.start and cluster.chance(chaos.fork)):
        cluster.publish()
    else:
        parent = best
        if cluster.chance(chaos.fork):
            parent = draw.choice([block for block in cluster.blocks.values() if block.number >= best.number - 4])
        cluster.publish(parent.hash, draw.choice((1, 1, 1, 2)))
    cluster.after(draw.expovariate(1 / chaos.block_every), blocks, cluster)


def kills(cluster: Cluster) -> None:
    """A node dies, and with it perhaps its disk; another one's disk is backed up."""
    if cluster.stop:
        return
    draw, chaos, laws = cluster.random, cluster.chaos, cluster.laws
    node = draw.choice(laws.nodes)
    if node.up:
        cluster.kill(node.name)
        if len(laws.nodes) >= 3 and not laws.lost and cluster.chance(chaos.disks):
            laws.lost += 1
            node.disk = node.older.copy() if node.older is not None and cluster.chance(0.5) else Disk()
            laws.stats["disks"] += 1
        cluster.revive(node.name)
    backup = draw.choice(laws.nodes)
    backup.older = backup.disk.copy()
    cluster.after(draw.expovariate(1 / chaos.kill), kills, cluster)


def cuts(cluster: Cluster) -> None:
    """One direction of a link is cut; the log may be unreachable for a while."""
    if cluster.stop:
        return
    draw, chaos = cluster.random, cluster.chaos
    if len(cluster.nodes) > 1:
        cluster.cut(*draw.sample(sorted(cluster.nodes), 2))
    if cluster.chance(chaos.away):
        cluster.kafka.up = False
        cluster.after(draw.uniform(0.2, 2.0), cluster.back)
    cluster.after(draw.expovariate(1 / chaos.cut), cuts, cluster)


def run_seed(seed: int) -> Cluster:
    """A run of a seed.

    Raises:
        Broken: an invariant does not hold.

    """
    draw = random.Random(seed)
    size = (3, 5, 1, 4, 2, 3)[seed % 6]
    chaos = Chaos(
        block_every=draw.choice((0.05, 0.2, 0.5)),
        fork=draw.choice((0.0, 0.2, 0.5)),
        latency=draw.choice(((0.001, 0.01), (0.002, 0.05), (0.05, 0.4))),
        crash=draw.choice((0.0, 0.01, 0.03)),
        kill=draw.choice((0.5, 2.0)),
        cut=draw.choice((0.2, 1.0)),
        abort=draw.choice((0.0, 0.05, 0.3)),
        late=draw.choice((0.0, 0.2, 0.5)),
    )
    settings = replace(SETTINGS, pool_bytes=draw.choice((100_000, 100_000, 1_500)))
    cluster = Cluster(seed, size, chaos, settings)
    for name in cluster.nodes:
        cluster.boot(name)
    for delay, call in ((0.0, blocks), (0.2, kills), (0.1, cuts)):
        cluster.after(delay, call, cluster)
    cluster.after(0.2, cluster.push)
    cluster.run(draw.choice((0.5, 1.0, 2.5)))
    if not cluster.laws.lost and draw.random() < 0.3:
        for name in draw.sample(sorted(cluster.nodes), (size - 1) // 2):
            cluster.nodes[name].dead = True
    cluster.heal()
    return cluster


def run_cluster(seed: int) -> str | None:
    """One line that repeats a broken run; None if there is nothing to repeat."""
    try:
        run_seed(seed)
    except Broken as broken:
        return f"cluster seed {seed}: {broken}"
    return None


# --- scenes ---------------------------------------------------------------------------------------------------------


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
