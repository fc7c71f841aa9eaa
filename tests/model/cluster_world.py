"""World of a simulated cluster: time, nodes and their disks, links, bodies, publishers, the log.

One event at a time, by a heap of times. Steps commit whole or not at all, and nothing is sent before the commit; a
crash comes before or after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from cardinal_ingest.protocols.replication import (
    KINDS,
    Acknowledged,
    Action,
    Append,
    Block,
    Broadcast,
    Claim,
    Denial,
    Denied,
    Message,
    Observed,
    Position,
    PutPosition,
    PutWinner,
    Ref,
    ReplicationSettings,
    Rules,
    Send,
    Step,
    Want,
    decode,
    decode_record,
    encode,
)

from .cluster_kafka import Kafka
from .cluster_laws import ROOT, Laws, require
from .cluster_node import Node, first_record, membership
from .cluster_promoter import Promoter

SETTINGS = ReplicationSettings(
    leader_interval=3, turn_timeout=0.6, turn_timeout_most=20.0, propose_retry=0.3, propose_retry_most=20.0,
    batch_wait=0.01, gather_grace=0.05, claim_timeout=0.8, batch_bytes=1000, pool_bytes=100_000, retain_blocks=4,
    max_unpromoted=50, checkpoint_every=3, promote_wait=0.3, promote_wait_most=5.0, transaction_bytes=150,
)  # fmt: skip
RULES = Rules(start=100, window=6, max_blocks=4)


@dataclass(frozen=True, slots=True)
class Chaos:
    """Chances and times of a schedule.

    Attributes:
        block_every, fork: seconds between blocks; chance that one does not extend the best.
        latency: bounds of a link's delay.
        crash: chance of a crash around a commit.
        kill, cut: seconds between kills and between cuts of one direction.
        away: chance that the log is unreachable for a while, per cut.
        claim_lost, claim_doubled, claim_late: chances of an append.
        abort, unclear, late: chances of a failed transaction, of a commit without an answer, of a doubled end.
        disks: chance that a kill loses or restores the disk.
        read, body: bounds of the delays of a reader of the log, and of a body.

    """

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
    body: tuple[float, float] = (0.005, 0.05)


CALM = Chaos(
    fork=0.0, crash=0.0, kill=0.0, cut=0.0, away=0.0, claim_lost=0.0, claim_doubled=0.0, claim_late=0.0,
    abort=0.0, unclear=0.0, late=0.0, disks=0.0,
)  # fmt: skip


class Cluster:
    """One run: nodes and what lies between them."""

    marker_first = False
    """A promoter writes the marker before its blocks."""
    reuse = False
    """A promoter keeps its producer after an abort."""

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
        self.laws = Laws(self.nodes.values(), self.members.quorum)
        self.blocks = self.laws.blocks
        self.unacknowledged: dict[bytes, None] = {}
        """Blocks that publishers hold."""
        self.watch: Callable[[Node, Action], bool] = lambda *_: False
        """A schedule that takes actions over."""
        self.content: Callable[[Node, Block], bytes | None] = lambda _node, block: block.content
        """Content that a node verifies; None: it refuses the block."""
        self.stalled: Node | None = None
        """Its promoter does not continue."""
        self.coded = seed % 10 == 0
        """Messages travel as bytes."""
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
        if self.kafka.first and not node.disk.single:
            node.disk.commit([PutPosition(Position(offset=self.kafka.first, rules=RULES))])
        node.start()
        log, end = node.replica.log, len(self.kafka.claims)
        last = log.position.offset - 1
        log.confirm(self.kafka.first, end, self.kafka.claims[last] if self.kafka.first <= last < end else None)
        node.promoter = Promoter(self, node)
        node.promoter.read()
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
        self.laws.stats["kills"] += 1
        for pair in [pair for pair in self.sessions if name in pair]:
            del self.sessions[pair]

    def revive(self, name: str) -> None:
        self.after(self.random.uniform(0.1, 2.0), self.boot, name)

    def step(self, node: Node, step: Step) -> None:
        """Commit, then act; a crash comes before the one or before the other."""
        if (step.rows or step.actions) and self.chance(self.chaos.crash):
            if self.chance(0.5):
                self.commit(node, step)
            self.kill(node.name)
            self.revive(node.name)
            return
        self.commit(node, step)
        for action in step.actions:
            self.act(node, action)
            if not node.up:
                return
        self.wake(node)

    def commit(self, node: Node, step: Step) -> None:
        node.disk.commit(step.rows)
        for row in step.rows:
            if isinstance(row, PutWinner):
                self.laws.agree(row.header)

    def act(self, node: Node, action: Action) -> None:  # noqa: C901 - one for each kind
        if self.watch(node, action):
            return
        match action:
            case Broadcast(message):
                for peer in self.nodes:
                    if peer != node.name:
                        self.send(node.name, peer, message)
            case Send(peer, message):
                self.send(node.name, peer, message)
            case Append(record):
                self.append(record)
            case Want(refs):
                for ref in refs:
                    self.fetch_somewhere(node, ref)
            case Acknowledged(refs):
                for ref in refs:
                    self.laws.acknowledge(ref)
                    self.unacknowledged.pop(ref.hash, None)
            case Denied(ref, Denial.FORK_TOO_DEEP):
                self.unacknowledged.pop(ref.hash, None)
            case _:
                self.laws.stats[type(action).__name__] += 1

    def wake(self, node: Node) -> None:
        """Schedule the next tick."""
        node.promoter.wake()
        at = min(node.replica.deadline, node.promoter.rule.deadline)
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
            self.post(pair, session, message)

    def post(self, pair: tuple[str, str], session: int, message: Message | None) -> None:
        if self.coded and message is not None:
            message = decode(KINDS[type(message)], encode(message))
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
        self.laws.stats["messages"] += 1
        self.step(node, node.replica.receive(sender, message, self.now))
        if isinstance(message, Observed) and node.up:
            for block in message.blocks:
                if node.replica.needs(block.ref):
                    self.after(self.random.uniform(*self.chaos.body), self.fetch, receiver, sender, block.ref)

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
                self.after(self.random.uniform(*self.chaos.body), self.fetch, node.name, peer.name, ref)

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
        if block.number > RULES.start and block.parent not in node.replica.state.ring and not node.holds(block.parent):
            return
        content = self.content(node, block)
        if content is not None:
            self.step(node, node.replica.admit([block._replace(content=content)], self.now))

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
        """No batch can have the block: stored ancestors lead to none that is agreed, or the parent is lost."""
        rings = [node.replica.state.ring for node in self.living if node.replica.state is not None]
        if not all(node.up or node.dead for node in self.nodes.values()):
            return False
        if len(rings) < len(self.living) or not all(rings):
            return False  # a node has not read what is agreed
        agreed = set().union(*rings)
        while block.parent not in self.unacknowledged and block.parent not in agreed:
            if not any(node.holds(block.parent) for node in self.living):
                return True
            block = self.blocks[block.parent]
        return False

    # --- the log --------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        claim = decode_record(record)
        if isinstance(claim, Claim):
            self.laws.certify(claim.header)
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

    def back(self) -> None:
        """The log answers again."""
        self.kafka.up = True

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End the chaos: what was acknowledged must be promoted, and all laws hold."""
        self.stop = self.kafka.up = True
        self.blocked.clear()
        self.watch = lambda *_: False
        self.stalled = None
        self.chaos = replace(CALM, latency=(0.002, 0.03))
        for node in self.nodes.values():
            if node.dead and node.up:
                self.kill(node.name)
            self.boot(node.name)
        self.push()
        self.settle()

    def settle(self, seconds: float = 200.0) -> None:
        """Run until everything is promoted."""
        healed = self.run(self.now + seconds, lambda: not self.unacknowledged and self.laws.promoted(self.kafka))
        self.laws.topics(self.kafka)
        require(healed, "not healed:", self.describe())
        self.laws.bounded()

    def describe(self) -> str:
        nodes = [
            f"{one.name}: num {one.replica.state and one.replica.state.num}, leader {one.replica.leader}"
            for one in self.living
        ]
        marker = self.kafka.markers[-1].position if self.kafka.markers else None
        return f"batches {len(self.laws.agreed)}, marker {marker}, unacknowledged {len(self.unacknowledged)}, {nodes}"
