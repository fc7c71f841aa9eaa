"""Seeded simulation of ingest nodes: n = 1 to 5 replicas, links, bodies, publishers, a log, a promoter.

    run_cluster(4711)         # None, or one line that can be repeated

One event at a time, by a heap of times. Steps commit whole or not at all, and nothing is sent before the commit; a
crash comes before or after it. After a time of chaos everything heals, but for a minority that may stay dead, and everything
that was acknowledged must be promoted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Any

from cardinal.protocols.replication import (
    Acknowledged,
    Agreed,
    Append,
    Block,
    Broadcast,
    Denial,
    Denied,
    Header,
    Marker,
    Message,
    Observed,
    Ref,
    ReplicationSettings,
    Rules,
    Run,
    Send,
    Step,
    Want,
    decode_record,
)

from .cluster_kafka import MARKERS, FencedError, Kafka, NotInTransactionError, Part, Producer, Seal, Written
from .cluster_node import Disk, Node, first_record, membership

SETTINGS = ReplicationSettings(
    leader_interval=3, turn_timeout=0.6, turn_timeout_most=20.0, propose_retry=0.3, propose_retry_most=20.0,
    batch_wait=0.01, gather_grace=0.05, claim_timeout=0.8, batch_bytes=1000, pool_bytes=100_000, retain_blocks=4,
    max_unpromoted=50, checkpoint_every=3, promote_wait=0.3, promote_wait_most=5.0, transaction_bytes=150,
)  # fmt: skip
RULES = Rules(start=100, window=6, max_blocks=4)
ROOT = bytes(31) + b"\x01"


class Broken(Exception):  # noqa: N818 - a broken invariant, the simulation's result
    """An invariant does not hold."""


def require(holds: object, *what: object) -> None:
    if not holds:
        raise Broken(" ".join(map(str, what)))


@dataclass(frozen=True, slots=True)
class Chaos:
    """Chances and times of a schedule.

    Attributes:
        seconds: of chaos, before everything heals.
        block_every, fork: seconds between blocks; chance that one does not extend the best.
        latency: bounds of a link's delay.
        crash: chance of a crash around a commit.
        kill, cut: seconds between kills and between cuts of one direction.
        away: chance that the log is away for a while, per cut.
        claim_lost, claim_doubled, claim_late: chances of an append.
        abort, unclear, late: chances of a failed transaction, of a commit without an answer, of a doubled end.
        disks: chance that a kill loses or restores the disk.
        read: bounds of the delay of a reader.

    """

    seconds: float = 5.0
    block_every: float = 0.3
    fork: float = 0.3
    latency: tuple[float, float] = (0.002, 0.03)
    crash: float = 0.004
    kill: float = 3.0
    cut: float = 0.8
    away: float = 0.1
    claim_lost: float = 0.1
    claim_doubled: float = 0.1
    claim_late: float = 0.1
    abort: float = 0.05
    unclear: float = 0.05
    late: float = 0.1
    disks: float = 0.2
    read: tuple[float, float] = (0.005, 0.05)


CALM = Chaos(
    seconds=0.0, fork=0.0, crash=0.0, kill=0.0, cut=0.0, away=0.0, claim_lost=0.0, claim_doubled=0.0, claim_late=0.0,
    abort=0.0, unclear=0.0, late=0.0, disks=0.0,
)  # fmt: skip


class Cluster:
    """One run: nodes and what lies between them."""

    def __init__(
        self, seed: int, size: int, chaos: Chaos = CALM, settings: ReplicationSettings = SETTINGS, rules: Rules = RULES
    ) -> None:
        self.random = random.Random(seed)
        self.chaos = chaos
        self.settings = settings
        self.now = 0.0
        self.kafka = Kafka()
        self.members = membership(size)
        self.nodes = {name: Node(name, self.members, settings) for name in self.members.ids}
        self.kafka.claims.append(first_record(self.members, rules))
        self.sessions: dict[tuple[str, str], int] = {}
        """Open sessions by sender and receiver."""
        self.blocked: set[tuple[str, str]] = set()
        """Directions that cannot be dialed."""
        self.blocks: dict[bytes, Block] = {}
        self.unacknowledged: dict[bytes, None] = {}
        """Blocks that publishers hold."""
        self.acknowledged: dict[bytes, None] = {}
        self.agreed: dict[int, Header] = {}
        self.order: dict[bytes, int] = {}
        """Agreed blocks, in their order."""
        self.lost = 0
        """Disks lost or restored since the last repair."""
        self.stats: Counter[str] = Counter()
        self.marker_first = False
        self.reuse = False
        self.drop: Callable[[str, str, Message], bool] = lambda *_: False
        """Messages that a schedule loses, together with their session."""
        self.on_append: Callable[[Node, bytes], bool] = lambda *_: False
        """A schedule that takes an append over."""
        self.content: Callable[[Node, Block], bytes] = lambda _node, block: block.content
        """Content that a node verifies."""
        self.fifo: dict[tuple[str, str], float] = {}
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.counter = count()
        self.stop = False

    # --- time -----------------------------------------------------------------------------------------------------

    def after(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        heappush(self.heap, (self.now + delay, next(self.counter), call, arguments))

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Events up to a time; True as soon as the condition holds, which is checked now and then."""
        check = self.now
        while self.heap and self.heap[0][0] <= until:
            self.now, _, call, arguments = heappop(self.heap)
            call(*arguments)
            if done is not None and self.now >= check:
                if done():
                    return True
                check = self.now + 0.25
        self.now = until
        return done is not None and done()

    def delay(self) -> float:
        return self.random.uniform(*self.chaos.latency)

    def chance(self, of: float) -> bool:
        return of > 0 and self.random.random() < of

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.up]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        node = self.nodes[name]
        if node.up or node.dead:
            return
        node.start()
        self.read_markers(name, node.lives)
        self.read_claims(name, node.lives)
        for other in self.nodes:
            if other != name:
                self.after(self.delay(), self.dial, name, other)
                self.after(self.delay(), self.dial, other, name)
        self.step(node, node.replica.tick(self.now))
        if node.up:
            self.want(name, node.lives)

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        node.up = False
        self.stats["kills"] += 1
        for pair in [pair for pair in self.sessions if name in pair]:
            del self.sessions[pair]

    def revive(self, name: str) -> None:
        self.after(self.random.uniform(0.1, 2.0), self.boot, name)

    def step(self, node: Node, step: Step) -> None:
        """Commit, then act; a crash comes before the one or before the other."""
        if (step.rows or step.actions) and self.chance(self.chaos.crash):
            if self.chance(0.5):
                node.commit(step)
            self.kill(node.name)
            self.revive(node.name)
            return
        node.commit(step)
        for action in step.actions:
            self.act(node, action)
            if not node.up:
                return
        self.wake(node)

    def act(self, node: Node, action: object) -> None:  # noqa: C901, PLR0912 - one for each kind
        match action:
            case Broadcast(message):
                for peer in self.nodes:
                    if peer != node.name:
                        self.send(node.name, peer, message)
            case Send(peer, message):
                self.send(node.name, peer, message)
            case Append(record):
                if not self.on_append(node, record):
                    self.append(record)
            case Want(refs):
                for ref in refs:
                    self.fetch_somewhere(node, ref)
            case Acknowledged(refs):
                for ref in refs:
                    self.acknowledge(ref)
            case Agreed(header):
                self.agree(header)
            case Denied(ref, Denial.FORK_TOO_DEEP):
                self.unacknowledged.pop(ref.hash, None)
            case _:
                self.stats[type(action).__name__] += 1

    def wake(self, node: Node) -> None:
        """Schedule the next tick, and open a producer where it is due."""
        replica, promotion = node.replica, node.promotion
        if replica.state is not None and promotion.due(replica.winners, replica.pool, replica.state.num, self.now):
            self.promote(node)
        if node.idle and node.producer is not None:
            node.idle = False
            self.after(self.delay(), self.transact, node.name, node.lives, node.producer)
        at = min(replica.deadline, promotion.deadline)
        if at < node.wakes:
            node.wakes = at
            self.after(max(at - self.now, 0.0), self.tick, node.name, node.lives)

    def tick(self, name: str, lives: int) -> None:
        node = self.nodes[name]
        if node.up and node.lives == lives and self.now >= node.wakes:
            node.wakes = float("inf")
            self.step(node, node.replica.tick(self.now))

    # --- links ----------------------------------------------------------------------------------------------------

    def dial(self, sender: str, receiver: str) -> None:
        pair = sender, receiver
        if pair in self.sessions or not self.nodes[sender].up or self.nodes[sender].dead:
            return
        if not self.nodes[receiver].up or pair in self.blocked:
            if not self.nodes[receiver].dead:
                self.after(0.5, self.dial, sender, receiver)
            return
        session = self.sessions[pair] = next(self.counter)
        self.post(pair, session, None)
        for message in self.nodes[sender].replica.snapshot(receiver):
            self.post(pair, session, message)

    def cut(self, sender: str, receiver: str) -> None:
        if self.sessions.pop((sender, receiver), None) is not None:
            self.after(self.random.uniform(0.05, 0.6), self.dial, sender, receiver)

    def send(self, sender: str, receiver: str, message: Message) -> None:
        pair = sender, receiver
        session = self.sessions.get(pair)
        if session is not None:
            if self.drop(sender, receiver, message):
                self.cut(sender, receiver)
            else:
                self.post(pair, session, message)

    def post(self, pair: tuple[str, str], session: int, message: Message | None) -> None:
        at = self.fifo[pair] = max(self.fifo.get(pair, 0.0), self.now + self.delay())
        self.after(at - self.now, self.deliver, pair, session, message)

    def deliver(self, pair: tuple[str, str], session: int, message: Message | None) -> None:
        sender, receiver = pair
        if self.sessions.get(pair) != session:
            return
        node = self.nodes[receiver]
        if message is None:
            self.step(node, node.replica.begin(sender, self.now))
            return
        self.stats["messages"] += 1
        self.step(node, node.replica.receive(sender, message, self.now))
        if isinstance(message, Observed) and node.up:
            for block in message.blocks:
                if node.replica.needs(block.ref):
                    self.after(2 * self.delay(), self.fetch, receiver, sender, block.ref)

    # --- bodies ---------------------------------------------------------------------------------------------------

    def fetch(self, to: str, of: str, ref: Ref) -> None:
        node, peer = self.nodes[to], self.nodes[of]
        if node.up and peer.up and (of, to) in self.sessions and node.replica.needs(ref):
            block = peer.replica.pool.blocks.get(ref.hash)
            if block is not None:
                self.step(node, node.replica.admit([block], self.now))

    def fetch_somewhere(self, node: Node, ref: Ref) -> None:
        for peer in self.living:
            if peer.holds(ref.hash) and peer is not node:
                self.after(2 * self.delay(), self.fetch, node.name, peer.name, ref)

    def want(self, name: str, lives: int) -> None:
        """Repeat the requests for the bodies of winners."""
        node = self.nodes[name]
        if node.up and node.lives == lives:
            for ref in node.replica.wanted:
                self.fetch_somewhere(node, ref)
            self.after(0.5, self.want, name, lives)

    def offer(self, block: Block, name: str) -> None:
        """A publisher brings a block to a node; its arbiter takes it only above a block that it has."""
        node = self.nodes[name]
        if not node.up or node.replica.state is None:
            return
        ring = node.replica.state.ring
        if ring and block.parent not in ring and not node.holds(block.parent):
            return
        verified = block._replace(content=self.content(node, block))
        self.step(node, node.replica.admit([verified], self.now))

    def publish(self, parent: bytes | None = None, weight: int = 1, *, hold: bool = False) -> Block:
        """A new block; publishers bring it to nodes until one acknowledges it."""
        above = self.blocks.get(parent or ROOT)
        number = RULES.start if above is None else above.number + 1
        one = self.random.randbytes(4) + len(self.blocks).to_bytes(28, "big")
        heavy = weight + (0 if above is None else above.weight)
        block = Block(number, one, parent or ROOT, heavy, one[::-1], 50)
        self.blocks[one] = block
        self.unacknowledged[one] = None
        if not hold:
            for name in self.random.sample(sorted(self.nodes), self.random.randint(1, len(self.nodes))):
                self.after(self.delay(), self.offer, block, name)
        return block

    def push(self) -> None:
        """Publishers bring again what nobody acknowledged."""
        living = self.living
        for one in list(self.unacknowledged) if living else ():
            if self.cut_off(self.blocks[one]):
                del self.unacknowledged[one]
                continue
            self.offer(self.blocks[one], self.random.choice(living).name)
            living = self.living or living
        self.after(0.4, self.push)

    def cut_off(self, block: Block) -> bool:
        """The block leaves the agreed chain below the window: every arbiter refuses its branch."""
        if block.parent in self.unacknowledged:
            return False
        states = [node.replica.state for node in self.nodes.values() if node.up]
        return len(states) == len(self.nodes) and all(
            state is not None and state.ring and block.parent not in state.ring for state in states
        ) and not any(node.holds(block.parent) for node in self.nodes.values())  # fmt: skip

    # --- invariants -----------------------------------------------------------------------------------------------

    def acknowledge(self, ref: Ref) -> None:
        if ref.hash not in self.acknowledged:
            if ref.hash not in self.order:
                held = sum(node.holds(ref.hash) for node in self.nodes.values())
                require(held >= self.members.quorum - self.lost, "acknowledged on", held, "disks:", ref)
            self.acknowledged[ref.hash] = None
            self.unacknowledged.pop(ref.hash, None)

    def agree(self, header: Header) -> None:
        known = self.agreed.setdefault(header.num, header)
        require(known.hash == header.hash, "two batches of number", header.num)
        if known is not header:
            return
        require(header.num - 1 in self.agreed or header.num == 1, "no batch before", header.num)
        for item in header.items:
            require(item.hash not in self.order, "in two batches:", item)
            parent = self.blocks[item.hash].parent
            require(parent in self.order or parent == ROOT, "before its parent:", item)
            self.order[item.hash] = len(self.order)
        require(self.blocks[header.items[0].hash].parent == header.parent, "no path:", header)

    def certified(self, header: Header) -> None:
        """A claim is about to be written: a majority holds every body."""
        for item in header.items:
            held = sum(node.holds(item.hash) for node in self.nodes.values())
            require(held >= self.members.quorum - self.lost, "claimed on", held, "disks:", item)

    def check_topics(self) -> None:
        written = self.kafka.committed()
        positions = [value.position for value in written if isinstance(value, Marker)]
        require(all(a < b for a, b in pairwise(positions)), "markers do not rise:", positions)
        seals = [value.placed for value in written if isinstance(value, Seal)]
        parts = {value.placed.item.hash for value in written if isinstance(value, Part)}
        sealed = dict.fromkeys(placed.item.hash for placed in seals)
        if positions:
            num, index = positions[-1]
            for at in range(1, num + 1):
                for item in self.agreed[at].items[: index if at == num else None]:
                    require(item.hash in sealed and item.hash in parts, "promoted and not on the topics:", at, item)
        self.stats["doubled"] += len(seals) - len(sealed)
        order = [self.order[one] for one in sealed]
        require(order == sorted(order), "topics are not in the order of the batches")

    def check_disks(self) -> None:
        """Storage is bounded: open blocks, what is not promoted, and a few below."""
        for node in self.living:
            state = node.replica.state
            if state is not None:
                floor = state.highest - RULES.window - self.settings.retain_blocks - RULES.max_blocks
                winners = node.replica.winners.values()
                pending = {
                    item.hash for header in winners if header.num >= node.replica.promoted[0] for item in header.items
                }
                for one in node.disk.blocks:
                    number = self.blocks[one].number
                    require(number >= floor or one in pending, "not pruned:", number, state.highest)

    def healed(self) -> bool:
        """Everything that was acknowledged is promoted, or below the window of the agreed chain."""
        if not self.kafka.up or self.unacknowledged:
            return False
        markers = self.kafka.markers
        last = max(self.agreed, default=0)
        if last and (not markers or markers[-1].position != (last, len(self.agreed[last].items))):
            return False
        states = [node.replica.state for node in self.living]
        if any(state is None or state.num != last for state in states):
            return False
        state = states[0]
        assert state is not None
        heaviest = max((self.blocks[one].weight for one in self.acknowledged if self.reachable(one)), default=0)
        return state.head.weight >= heaviest

    def reachable(self, one: bytes) -> bool:
        """It, or the ancestor at which it leaves the agreed chain, is within the window."""
        state = self.living[0].replica.state
        assert state is not None
        while one not in state.ring:
            block = self.blocks.get(one)
            if block is None or not state.above_floor(block.number):
                return False
            one = block.parent
        return True

    # --- the log --------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        claim = decode_record(record)
        header = getattr(claim, "header", None)
        if header is not None:
            self.certified(header)
        if self.chance(self.chaos.claim_lost):
            return
        late = self.random.uniform(0.5, 4.0) if self.chance(self.chaos.claim_late) else 0.0
        for _ in range(2 if self.chance(self.chaos.claim_doubled) else 1):
            self.after(self.delay() + late, self.appended, record, self.now + 10.0)

    def appended(self, record: bytes, until: float) -> None:
        if self.kafka.up:
            self.kafka.claims.append(record)
            for node in self.living:
                self.after(self.random.uniform(*self.chaos.read), self.read_claims, node.name, node.lives)
        elif self.now < until:
            self.after(0.5, self.appended, record, until)

    def read_claims(self, name: str, lives: int) -> None:
        node = self.nodes[name]
        if node.up and node.lives == lives and not self.kafka.up:
            self.after(0.5, self.read_claims, name, lives)
            return
        while node.up and node.lives == lives and node.replica.log.position.offset < len(self.kafka.claims):
            offset = node.replica.log.position.offset
            self.step(node, node.replica.read(offset, self.kafka.claims[offset], self.now))

    # --- promotion ------------------------------------------------------------------------------------------------

    def read_markers(self, name: str, lives: int) -> None:
        node = self.nodes[name]
        if node.up and node.lives == lives and self.kafka.up and self.kafka.markers:
            marker = self.kafka.markers[-1]
            if node.promotion.read(marker, self.now):
                self.step(node, node.replica.marker(marker, self.now))

    def promote(self, node: Node) -> None:
        node.promotion.begin()
        self.after(self.delay(), self.opened, node.name, node.lives)

    def opened(self, name: str, lives: int) -> None:
        node = self.nodes[name]
        if not node.up or node.lives != lives:
            return
        if not self.kafka.up:
            self.discard(node)
            return
        node.producer = self.kafka.producer()
        self.stats["producers"] += 1
        self.after(self.delay(), self.transact, name, lives, node.producer)

    def transact(self, name: str, lives: int, producer: Producer) -> None:
        """The next transaction of a promoter."""
        node = self.nodes[name]
        if not node.up or node.lives != lives or node.producer is not producer:
            return
        self.read_markers(name, lives)
        if not node.up:
            return
        state = node.replica.state
        run = None
        if state is not None and self.kafka.up:
            run = node.promotion.next_run(node.replica.winners, node.replica.pool, state.num)
        if run is None:
            if self.kafka.up:
                node.idle = True
            else:
                self.discard(node)
            return
        producer.partitions = set()
        writes: list[tuple[int, Written]] = []
        for placed in run.blocks:
            one = placed.item.hash
            writes += [(one[0] % 3, Part(placed)), (one[1] % 3, Seal(placed))]
        writes.insert(0 if self.marker_first else len(writes), (MARKERS, run.marker))
        self.write(node, lives, producer, run, writes)

    def write(self, node: Node, lives: int, producer: Producer, run: Run, writes: list[tuple[int, Written]]) -> None:
        if not node.up or node.lives != lives or node.producer is not producer:
            return
        chaos = self.chaos
        try:
            if not self.kafka.up or self.chance(chaos.abort):
                self.abort(node, lives, producer)
                return
            share = self.random.randint(1, len(writes)) if writes else 0
            for partition, value in writes[:share]:
                self.kafka.write(producer, partition, value)
            if writes:
                self.after(self.delay(), self.write, node, lives, producer, run, writes[share:])
                return
            if self.chance(chaos.unclear):
                if self.chance(0.5):
                    self.after(self.random.uniform(0, 3), self.late_end, producer.epoch, "committed")
                self.discard(node)
                return
            self.kafka.end(producer.epoch, "committed")
        except (FencedError, NotInTransactionError) as error:
            self.stats[type(error).__name__] += 1
            self.discard(node)
            return
        if self.chance(chaos.late):
            self.after(self.random.uniform(0, 1), self.late_end, producer.epoch, "committed")
        self.committed(node, lives, producer, run)

    def committed(self, node: Node, lives: int, producer: Producer, run: Run) -> None:
        node.promotion.committed(run.marker, self.now)
        self.step(node, node.replica.marker(run.marker, self.now))
        for other in self.living:
            if other is not node:
                self.after(self.delay(), self.read_markers, other.name, other.lives)
        self.after(self.delay(), self.transact, node.name, lives, producer)

    def abort(self, node: Node, lives: int, producer: Producer) -> None:
        """A transaction failed: its end is sent, and the producer is used no more."""
        if self.chance(0.5) and self.kafka.up:
            self.kafka.end(producer.epoch, "aborted")
        else:
            self.after(self.random.uniform(0, 0.5), self.late_end, producer.epoch, "aborted")
        if self.reuse:
            self.after(self.delay(), self.transact, node.name, lives, producer)
        else:
            self.discard(node)

    def late_end(self, epoch: int, status: Any) -> None:  # noqa: ANN401
        try:
            self.kafka.end(epoch, status)
            self.stats["late ends"] += 1
        except FencedError:
            self.stats["late ends fenced"] += 1

    def discard(self, node: Node) -> None:
        node.producer, node.idle = None, False
        node.promotion.failed(self.now)
        self.wake(node)


# --- random runs ----------------------------------------------------------------------------------------------------


def chain(cluster: Cluster) -> None:
    """A new block: mostly on the best, else on a recent one."""
    if cluster.stop:
        return
    blocks, draw = cluster.blocks, cluster.random
    best = max(blocks.values(), key=lambda block: block.weight, default=None)
    if best is None or (best.number == RULES.start and cluster.chance(cluster.chaos.fork)):
        cluster.publish()
    else:
        parent = best
        if cluster.chance(cluster.chaos.fork):
            parent = draw.choice([block for block in blocks.values() if block.number >= best.number - 4])
        cluster.publish(parent.hash, draw.choice((1, 1, 1, 2)))
    cluster.after(draw.expovariate(1 / cluster.chaos.block_every), chain, cluster)


def kills(cluster: Cluster) -> None:
    if cluster.stop:
        return
    draw, chaos = cluster.random, cluster.chaos
    node = draw.choice(list(cluster.nodes.values()))
    if node.up:
        cluster.kill(node.name)
        if len(cluster.nodes) >= 3 and not cluster.lost and cluster.chance(chaos.disks):
            cluster.lost += 1
            node.disk = node.older.copy() if node.older is not None and cluster.chance(0.5) else Disk()
            cluster.stats["disks"] += 1
        cluster.revive(node.name)
    backup = draw.choice(list(cluster.nodes.values()))
    backup.older = backup.disk.copy()
    cluster.after(draw.expovariate(1 / chaos.kill), kills, cluster)


def cuts(cluster: Cluster) -> None:
    if cluster.stop:
        return
    draw, chaos = cluster.random, cluster.chaos
    if len(cluster.nodes) > 1:
        cluster.cut(*draw.sample(sorted(cluster.nodes), 2))
    if cluster.chance(chaos.away):
        cluster.kafka.up = False
        cluster.after(draw.uniform(0.2, 2.0), setattr, cluster.kafka, "up", True)  # noqa: FBT003
    cluster.after(draw.expovariate(1 / chaos.cut), cuts, cluster)


def heal(cluster: Cluster, seconds: float = 120.0) -> None:
    """End the chaos; what was acknowledged must be promoted."""
    cluster.stop = True
    cluster.kafka.up = True
    cluster.blocked.clear()
    cluster.drop = lambda *_: False
    cluster.on_append = lambda *_: False
    cluster.chaos = replace(CALM, latency=(0.002, 0.03))
    for node in cluster.nodes.values():
        if node.dead and node.up:
            cluster.kill(node.name)
        cluster.boot(node.name)
    cluster.push()
    healed = cluster.run(cluster.now + seconds, cluster.healed)
    cluster.check_topics()
    require(healed, "not healed:", describe(cluster))
    cluster.check_disks()


def describe(cluster: Cluster) -> str:
    states = [
        f"{node.name} num {node.replica.state.num if node.replica.state else None} leader {node.replica.leader}"
        for node in cluster.living
    ]
    marker = cluster.kafka.markers[-1].position if cluster.kafka.markers else None
    return (
        f"batches {max(cluster.agreed, default=0)}, marker {marker}, held by publishers {len(cluster.unacknowledged)}, "
        + ", ".join(states)
    )


def scatter(seed: int) -> Cluster:
    """Chaos by seed: sizes 1 to 5, and a few kinds of weather."""
    draw = random.Random(seed)
    size = (3, 5, 1, 4, 2, 3)[seed % 6]
    chaos = Chaos(
        seconds=draw.choice((2.0, 3.0, 5.0)),
        block_every=draw.choice((0.1, 0.3, 0.6)),
        fork=draw.choice((0.0, 0.2, 0.5)),
        latency=draw.choice(((0.001, 0.01), (0.002, 0.05), (0.05, 0.4))),
        crash=draw.choice((0.0, 0.003, 0.01)),
        kill=draw.choice((1.0, 3.0)),
        cut=draw.choice((0.3, 1.0)),
        abort=draw.choice((0.0, 0.05, 0.2)),
        late=draw.choice((0.0, 0.2, 0.5)),
    )
    cluster = Cluster(seed, size, chaos)
    if draw.random() < 0.3:
        for name in draw.sample(sorted(cluster.nodes), (size - 1) // 2):
            cluster.nodes[name].dead = draw.random() < 0.5
    return cluster


def run_scattered(seed: int) -> Cluster:
    """A run of a seed.

    Raises:
        Broken: an invariant does not hold.

    """
    cluster = scatter(seed)
    doomed = [node for node in cluster.nodes.values() if node.dead]
    for node in doomed:
        node.dead = False
    for name in cluster.nodes:
        cluster.boot(name)
    cluster.after(0.0, chain, cluster)
    cluster.after(0.2, cluster.push)
    cluster.after(0.5, kills, cluster)
    cluster.after(0.3, cuts, cluster)
    cluster.run(cluster.chaos.seconds)
    for node in doomed if not cluster.lost else ():
        node.dead = True
    heal(cluster)
    return cluster


def run_cluster(seed: int) -> str | None:
    """One line that repeats a broken run; None if there is nothing to repeat."""
    try:
        run_scattered(seed)
    except Broken as broken:
        return f"cluster seed {seed}: {broken}"
    return None


def run_clusters(seeds: range) -> Iterator[str]:
    for seed in seeds:
        line = run_cluster(seed)
        if line is not None:
            yield line
