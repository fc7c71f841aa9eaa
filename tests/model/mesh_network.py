"""Simulated network of mesh nodes: real links, wires that fail, disks that are lost, and the invariants of the mesh.

A node has facts of its own, each committed before anything of it is sent, and a view of the facts of each peer. Wires
carry bytes in random pieces, in order, and end torn. Every effect of every link is checked against a naive record of
the wire it belongs to. Time is a number; each node and each wire has its own random numbers, so that a fault of one
changes nothing in the others but what the protocol makes of it.
"""

from __future__ import annotations

import copy
import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from cardinal_ingest.protocols.mesh import (
    Acceptor,
    Ack,
    Begun,
    Changed,
    Close,
    Cluster,
    Dial,
    Effect,
    Effects,
    Frame,
    Heartbeat,
    Identity,
    LinkState,
    Member,
    MeshSettings,
    Message,
    OutgoingLink,
    Reason,
    Received,
    Send,
    SnapshotWanted,
    decode,
)

SETTINGS: Final = MeshSettings(max_frame=2_048, window=12_288, queue_bytes=16_384, inbox=8_192)
TICK: Final = 0.05
PIECE: Final = 700
"""Bytes that a node reads at once, at most."""

ADD: Final = 1
REMOVE: Final = 2

NEXT: Final = {
    LinkState.DISCONNECTED: {LinkState.CONNECTING},
    LinkState.CONNECTING: {LinkState.CONNECTED, LinkState.DISCONNECTED},
    LinkState.CONNECTED: {LinkState.SUSPECTED, LinkState.DISCONNECTED},
    LinkState.SUSPECTED: {LinkState.CONNECTED, LinkState.DISCONNECTED},
}


class InvariantBrokenError(AssertionError):
    """Something that must always hold does not."""


def require(holds: object, text: str) -> None:
    if not holds:
        raise InvariantBrokenError(text)


# --- identities with cheap signatures ----------------------------------------------------------------------


def key_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def cheap(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key).digest()


def identity(name: str, cluster: Cluster) -> Identity:
    key = cluster.keys[name]
    return Identity(cluster, name, lambda data: cheap(key, data), lambda who, data, sig: cheap(who, data) == sig)


def cluster_of(names: str, epoch: int = 0) -> Cluster:
    return Cluster("demo", epoch, hashlib.sha256(b"evm:1").digest(), tuple(Member(n, key_of(n)) for n in names))


# --- wires -------------------------------------------------------------------------------------------------


class Pipe:
    """One direction of a connection: bytes in order, in pieces, late, or lost from some point on.

    Attributes:
        frames: time of each frame that was completely delivered; those of an acceptor, too.
        silent: bytes vanish; nobody notices.
        rate: bytes per second; None is no limit.

    """

    def __init__(self, wire: Wire, receiver: Node | None) -> None:
        self.wire = wire
        self.receiver = receiver
        self.queue: deque[tuple[float, bytes]] = deque()
        """Pieces, and when each arrives."""
        self.due = 0.0
        self.silent = False
        self.rate: float | None = None
        self.written = bytearray()
        self.frames: list[tuple[float, Frame | None]] = []
        self._partial = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data
        draw, world = self.wire.random, self.wire.world
        while data and not self.silent:
            size = draw.randint(1, PIECE)
            piece, data = data[:size], data[size:]
            delay = draw.uniform(*world.latency) + (len(piece) / self.rate if self.rate else 0.0)
            self.due = max(self.due, world.now + delay) if not self.rate else max(self.due, world.now) + delay
            self.queue.append((self.due, piece))
            world.at(self.due, self.flow)

    def flow(self) -> None:
        """Deliver what has arrived, as far as the receiver reads it."""
        while self.queue and self.queue[0][0] <= self.wire.world.now and self._delivered():
            pass

    def tear(self, pieces: int) -> None:
        """Deliver some of what is on its way, at once."""
        for _ in range(pieces):
            self._delivered()

    def _delivered(self) -> bool:
        node = self.receiver
        if not self.queue or not self.wire.open or self.silent or node is None or node.is_paused(self):
            return False
        _, piece = self.queue.popleft()
        self._record(piece)
        node.arrived(self, piece)
        return True

    def _record(self, piece: bytes) -> None:
        self._partial += piece
        while len(self._partial) >= 4:
            end = 4 + int.from_bytes(self._partial[:4], "big")
            if len(self._partial) < end:
                return
            if not self.wire.forged:
                frame = decode(bytes(self._partial[:end])) if self is self.wire.down else None
                self.frames.append((self.wire.world.now, frame))
            del self._partial[:end]


class Wire:
    """One connection; its two ends learn at different times that it is over."""

    def __init__(self, world: World, dialer: Node | None, acceptor: Node, number: int) -> None:
        self.world, self.dialer, self.acceptor, self.number = world, dialer, acceptor, number
        self.name = f"{dialer.name if dialer else '!'}{acceptor.name}{world.next_number()}"
        self.random = Random(f"{world.seed} {self.name[:2]} {number}")
        self.open = True
        self.forged = dialer is None
        """True once somebody changed the bytes: nothing is expected of them."""
        self.up, self.down = Pipe(self, acceptor), Pipe(self, dialer)
        self.sent: list[Message] = []
        self.sent_at: list[float] = []
        self.delivered = 0
        self.paused_at = 0.0
        self.open_seqs: list[int] = []

    def cut(self, *, torn: bool = True) -> None:
        """End it; a part of what is on its way still arrives."""
        if not self.open:
            return
        for pipe in (self.up, self.down):
            pipe.tear(self.random.randint(0, len(pipe.queue)) if torn else len(pipe.queue))
        self.open = False
        for end, pipe in ((self.dialer, self.down), (self.acceptor, self.up)):
            if end is not None and not pipe.silent:
                self.world.at(self.world.now + self.random.uniform(0, 0.01), lambda end=end: end.lost(self))


# --- nodes -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Disk:
    """Committed rows: own facts, and what is known of each peer's."""

    facts: dict[bytes, bytes] = field(default_factory=dict)
    views: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    messages: set[tuple[int, bytes]] = field(default_factory=set)
    """Every message that could ever be derived from the rows."""


Step = Callable[[], Callable[[], None] | None]
"""Changes rows; returns what follows the commit."""


class Node:
    """A host: one task that takes inputs one at a time, commits their rows, and carries out their actions."""

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        self.world, self.name = world, name
        self.identity = identity(name, cluster)
        self.random = Random(f"{world.seed} {name}")
        self.disk = Disk()
        self.up = False
        self.stalled_until = 0.0
        self.crash_at: dict[int, str] = {}
        """Number of a commit to the moment of a crash: before it, after it, or amid what follows it."""
        self.commits = 0
        self.answered: list[bytes] = []
        self.life = 0
        self.reasons: list[Reason] = []
        self.events: list[tuple[float, str, str, LinkState, Reason | None]] = []
        self.boot()

    def boot(self) -> None:
        now, settings = self.world.now, self.world.settings
        self.up = True
        self.life += 1
        peers = [peer for peer in self.identity.cluster.keys if peer != self.name]
        self.links = {peer: OutgoingLink(self.identity, peer, self.random.random, now, settings) for peer in peers}
        self.states = dict.fromkeys(peers, LinkState.DISCONNECTED)
        self.acceptor = Acceptor(self.identity, settings)
        self.wires: dict[str, Wire] = {}
        self.inputs: deque[tuple[Wire | None, Step]] = deque()
        self.incoming_states: dict[Wire, LinkState] = {}
        self.busy = False
        self.world.at(now, lambda life=self.life: self._next_tick(life))

    def crash(self) -> None:
        self.up = False
        for wire in [*self.wires.values(), *(each for each in self.acceptor.links if isinstance(each, Wire))]:
            wire.cut()

    def _next_tick(self, life: int) -> None:
        if self.up and life == self.life:
            self.tick()
            self.world.at(self.world.now + self.world.tick, lambda: self._next_tick(life))

    def tick(self) -> None:
        now = self.world.now
        for wire in list(self.acceptor.links):
            if self.acceptor.links[wire].is_paused:
                wire.paused_at = now
        for peer, link in self.links.items():
            self.outgoing(peer, link.tick(now))
        self.incoming(self.acceptor.tick(now))
        self._check_states()

    # --- inputs of the application ---------------------------------------------------------------------------

    def fact(self, name: bytes, size: int = 20) -> None:
        """Commit a fact of its own, then answer."""
        payload = name + b"." * size

        def step() -> Callable[[], None]:
            self.disk.facts[name] = payload
            self.disk.messages.add((ADD, payload))
            return lambda: (self.answered.append(name), self.broadcast(ADD, payload))[1]

        self.put(None, step)

    def retire(self, name: bytes) -> None:
        """Commit that a fact is over."""

        def step() -> Callable[[], None]:
            self.disk.facts.pop(name, None)
            self.disk.messages.add((REMOVE, name))
            return lambda: self.broadcast(REMOVE, name)

        self.put(None, step)

    def broadcast(self, kind: int, payload: bytes) -> None:
        for peer, link in self.links.items():
            self.outgoing(peer, link.send(kind, payload, self.world.now))

    # --- the core --------------------------------------------------------------------------------------------

    def put(self, wire: Wire | None, step: Step) -> None:
        if self.up:
            self.inputs.append((wire, step))
            if not self.busy:
                self._begin_commit()

    def _begin_commit(self) -> None:
        self.busy = True
        due = max(self.world.now, self.stalled_until) + self.random.uniform(*self.world.commit)
        life = self.life
        self.world.at(due, lambda: self._commit(life))

    def _commit(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        if self.world.now < self.stalled_until:  # the disk stalled meanwhile
            self._begin_commit()
            return
        self.commits += 1
        crash = self.crash_at.pop(self.commits, None)
        if crash == "before":
            self.crash()
            return
        actions = [step() for _, step in self.inputs]  # one transaction: either all of it or nothing
        self.inputs.clear()
        if crash == "after":
            actions.clear()
        for action in actions[: len(actions) // 2] if crash else actions:
            if action is not None and life == self.life:
                action()
        if crash:
            self.crash()
            return
        self.busy = False
        if self.inputs:
            self._begin_commit()

    # --- outgoing --------------------------------------------------------------------------------------------

    def outgoing(self, peer: str, effects: list[Effect]) -> None:
        link = self.links[peer]
        for effect in effects:
            match effect:
                case Dial(connection):
                    self.world.dial(self, peer, connection)
                case Send(data):
                    self._sent(self.wires[peer], data)
                case Close():
                    if peer in self.wires:
                        self.wires.pop(peer).cut(torn=False)
                case SnapshotWanted():
                    self.put(None, lambda: lambda: self.outgoing(peer, link.snapshot(self.facts(), self.world.now)))
                case Changed(_, state, reason):
                    require(state in NEXT[self.states[peer]], f"{self.name}>{peer}: {self.states[peer]} to {state}")
                    self.states[peer] = state
                    self._event(">", peer, state, reason)
        settings = self.world.settings
        require(link.in_flight <= settings.window + settings.max_frame, f"{self.name}>{peer}: {link.in_flight} sent")
        require(link.queued <= settings.queue_bytes, f"{self.name}>{peer}: {link.queued} bytes queued")

    def facts(self) -> list[tuple[int, bytes]]:
        return [(ADD, payload) for payload in self.disk.facts.values()]

    def _sent(self, wire: Wire, data: bytes) -> None:
        frame = decode(data)
        if isinstance(frame, Message):
            committed = (frame.kind, frame.payload) in self.disk.messages
            require(committed, f"{self.name} sent {frame.payload!r} before its commit")
            wire.sent.append(frame)
        if isinstance(frame, Message | Heartbeat):
            require(frame.seq == len(wire.sent_at) + 1, f"{wire.name}: frame {frame.seq} after {len(wire.sent_at)}")
            wire.sent_at.append(self.world.now)
        wire.up.write(data)

    # --- incoming --------------------------------------------------------------------------------------------

    def incoming(self, effects: Effects) -> None:
        for wire, effect in effects:
            assert isinstance(wire, Wire)
            match effect:
                case Send(data):
                    self._answered(wire, data)
                case Close():
                    wire.cut(torn=False)
                case Begun(peer):
                    require(wire.dialer and wire.dialer.name == peer, f"{self.name}: a session of {peer} by another")
                    self._forget(peer)
                    self.put(wire, lambda wire=wire, peer=peer: self._begun(wire, peer))
                case Received(peer, seq, kind, payload):
                    self._received(wire, Message(seq, kind, payload), peer)
                case Changed(peer, state, reason):
                    before = self.incoming_states.get(wire, LinkState.CONNECTING)
                    require(state in NEXT[before], f"{peer}>{self.name}: {before} to {state}")
                    self.incoming_states[wire] = state
                    self._event("<", peer, state, reason)
                    if state is LinkState.DISCONNECTED:
                        del self.incoming_states[wire]
        settings = self.world.settings
        for link in self.acceptor.links.values():
            bound = settings.inbox + settings.max_frame  # a message counts as more than its bytes, a piece ends several
            require(link.held <= bound, f"{link.peer}>{self.name}: {link.held} bytes held")

    def _answered(self, wire: Wire, data: bytes) -> None:
        frame = decode(data)
        if isinstance(frame, Ack):
            uncommitted = wire.open_seqs[0] if wire.open_seqs else frame.received + 1
            require(frame.received < uncommitted, f"{wire.name}: {frame.received} acknowledged before its commit")
        wire.down.write(data)

    def _forget(self, peer: str) -> None:
        """Unprocessed messages of the peer's older session."""
        self.inputs = deque(each for each in self.inputs if each[0] is None or each[0].dialer.name != peer)

    def _begun(self, wire: Wire, peer: str) -> None:
        if self.acceptor.session(peer) is wire:
            self.disk.views[peer] = {}

    def _received(self, wire: Wire, message: Message, peer: str) -> None:
        require(wire.delivered < len(wire.sent), f"{wire.name}: a message that was not sent")
        sent = replace(wire.sent[wire.delivered], signature=b"")
        require(message == sent, f"{wire.name}: {message} delivered, {sent} sent")
        wire.delivered += 1
        wire.open_seqs.append(message.seq)
        name = message.payload.rstrip(b".")

        def step() -> Callable[[], None] | None:
            if self.acceptor.session(peer) is not wire:
                return None
            view = self.disk.views[peer]
            if message.kind == ADD:
                view[name] = message.payload
            else:
                view.pop(name, None)
            wire.open_seqs = [seq for seq in wire.open_seqs if seq > message.seq]
            return lambda: self._after(wire, message.seq)

        self.put(wire, step)

    def _after(self, wire: Wire, seq: int) -> None:
        self.incoming(self.acceptor.committed(wire, seq, self.world.now))
        wire.up.flow()

    # --- the transport ---------------------------------------------------------------------------------------

    def is_paused(self, pipe: Pipe) -> bool:
        link = self.acceptor.links.get(pipe.wire)
        paused = pipe is pipe.wire.up and link is not None and link.is_paused
        if paused:
            pipe.wire.paused_at = self.world.now
        return paused

    def arrived(self, pipe: Pipe, data: bytes) -> None:
        if not self.up:
            return
        wire, now = pipe.wire, self.world.now
        if pipe is wire.up:
            self.incoming(self.acceptor.receive(wire, data, now))
        elif self.wires.get(wire.acceptor.name) is wire:
            peer = wire.acceptor.name
            self.outgoing(peer, self.links[peer].receive(wire.number, data, now))

    def lost(self, wire: Wire) -> None:
        if not self.up:
            return
        now = self.world.now
        if wire.acceptor is self:
            self.incoming(self.acceptor.lost(wire, "reset", now))
        elif self.wires.get(wire.acceptor.name) is wire:  # not one of an earlier life
            peer = wire.acceptor.name
            del self.wires[peer]
            self.outgoing(peer, self.links[peer].lost(wire.number, "reset", now))

    # --- link events at the stated times -----------------------------------------------------------------------

    def _event(self, direction: str, peer: str, state: LinkState, reason: Reason | None) -> None:
        self.events.append((self.world.now, direction, peer, state, reason))
        if reason is not None:
            self.reasons.append(reason)

    def _check_states(self) -> None:
        now, settings = self.world.now, self.world.settings
        bound = settings.inbox + settings.window + settings.queue_bytes + settings.max_frame
        for peer, link in self.links.items():
            incoming = self.acceptor.links.get(self.acceptor.session(peer))
            memory = link.in_flight + link.queued + (incoming.held if incoming else 0)
            require(memory <= bound, f"{self.name}: {memory} bytes for {peer}")
            if link.is_connected and not self.wires[peer].forged:
                wire = self.wires[peer]
                acks = [(at, frame.received) for at, frame in wire.down.frames[-3:] if isinstance(frame, Ack)]
                ack_at, acked = acks[-1] if acks else (0.0, 0)
                waited = now - max(ack_at, wire.sent_at[acked]) if acked < len(wire.sent_at) else 0.0
                self._check(f"{self.name}>{peer}", link.state, waited, settings.ack_timeout)
        for wire, incoming in self.acceptor.links.items():
            if incoming.is_connected and not wire.forged:
                silent = now - max(wire.up.frames[-1][0], wire.paused_at)
                self._check(f"{incoming.peer}>{self.name}", incoming.state, silent, settings.drop_after)

    def _check(self, link: str, state: LinkState, waited: float, most: float) -> None:
        suspected = waited >= self.world.settings.suspect_after
        require(waited < most, f"{link}: {state} after {waited} s")
        require(suspected is (state is LinkState.SUSPECTED), f"{link}: {state} after {waited} s")


# --- the world ---------------------------------------------------------------------------------------------


class World:
    """All nodes, the events to come, and the connections that can be made."""

    def __init__(
        self,
        seed: int | str,
        names: str = "abc",
        *,
        settings: MeshSettings = SETTINGS,
        tick: float = TICK,
        latency: tuple[float, float] = (0.001, 0.02),
        commit: tuple[float, float] = (0.001, 0.01),
        clusters: Mapping[str, Cluster] | None = None,
    ) -> None:
        self.seed, self.settings, self.tick, self.latency, self.commit = seed, settings, tick, latency, commit
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = 0
        self.unreachable: set[tuple[str, str]] = set()
        """Pairs whose dials find nobody: half of them are refused, of the others nothing is heard."""
        self.wires: list[Wire] = []
        self.on_wire: Callable[[Wire], None] = lambda _: None
        clusters = clusters or dict.fromkeys(names, cluster_of(names))
        self.nodes = {name: Node(self, name, cluster) for name, cluster in clusters.items()}

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def at(self, time: float, action: Callable[[], Any]) -> None:
        heapq.heappush(self._events, (time, self.next_number(), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def dial(self, dialer: Node, peer: str, connection: int) -> None:
        acceptor, life = self.nodes[peer], dialer.life

        def connect() -> None:
            link = dialer.links[peer]
            if not dialer.up or dialer.life != life:
                return
            if not acceptor.up or (dialer.name, peer) in self.unreachable:
                if connection % 2:
                    dialer.outgoing(peer, link.lost(connection, "nobody listens", self.now))
                return
            wire = Wire(self, dialer, acceptor, connection)
            self._opened(wire)
            dialer.wires[peer] = wire
            dialer.outgoing(peer, link.opened(connection, dialer.random.randbytes(16), self.now))

        self.at(self.now + dialer.random.uniform(*self.latency), connect)

    def intruder(self, target: str) -> Wire:
        """A connection that nobody's link opened."""
        wire = Wire(self, None, self.nodes[target], 0)
        self._opened(wire)
        return wire

    def _opened(self, wire: Wire) -> None:
        self.wires = [each for each in self.wires if each.open]
        self.wires.append(wire)
        self.on_wire(wire)
        node = wire.acceptor
        node.incoming(node.acceptor.accept(wire, wire.random.randbytes(16), self.now))

    # --- faults ----------------------------------------------------------------------------------------------

    def open_wires(self, dialer: str | None = None, acceptor: str | None = None) -> list[Wire]:
        return [
            wire
            for wire in self.wires
            if wire.open
            and wire.dialer
            and dialer in (None, wire.dialer.name)
            and acceptor in (None, wire.acceptor.name)
        ]

    def restart(self, name: str, disk: Disk | None = None) -> None:
        """Start a node that is down, perhaps with another disk."""
        node = self.nodes[name]
        if disk is not None:
            node.crash()
            node.disk = copy.deepcopy(disk)
        if not node.up:
            node.boot()

    def heal(self) -> None:
        """Everything works again, for wires that are opened from now on."""
        self.unreachable.clear()
        for node in self.nodes.values():
            node.stalled_until = self.now
            node.crash_at.clear()
            self.restart(node.name)
        self.on_wire = lambda _: None
        for wire in self.open_wires():
            wire.up.rate = wire.down.rate = None

    def different(self) -> list[str]:
        """Pairs in which the view differs from the facts."""
        pairs = [(one, other) for one in self.nodes.values() for other in self.nodes.values() if one is not other]
        return [
            f"{one.name} of {other.name}"
            for one, other in pairs
            if other.name in one.identity.cluster.keys and one.disk.views.get(other.name) != other.disk.facts
        ]

    def settle(self, seconds: float = 60.0) -> None:
        """Require that all views become equal to the facts, and all links connected."""
        end = self.now + seconds
        while self.now < end:
            self.run(0.5)
            links = [link for node in self.nodes.values() for link in node.links.values()]
            if not self.different() and all(link.state is LinkState.CONNECTED for link in links):
                return
        raise InvariantBrokenError(f"after {seconds} s these views differ: {self.different()}")
