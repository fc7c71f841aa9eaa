"""Simulated network of the publish protocol: real sessions and real arbiters, and everything that may go wrong.

    run_network(4711)         # None, or one line that can be repeated

Honest publishers follow branches of one tree (one line without forks), each with a
:class:`~cardinal_ingest.protocols.publish.PublisherSession` and two nodes; false ones send what they like. Streams are
lost, nodes restart with what is durable, verifiers fail. Each step is a method, so that something else than a seed can
choose them. The invariants are checked at every effect; at the end the faults stop, and all that is held gets
acknowledged.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cardinal_ingest.protocols.publish import (
    NONE,
    Acknowledged,
    Acknowledgement,
    Arbiter,
    ArbiterSettings,
    BlockEnd,
    BlockId,
    BlockItemSet,
    CatchUp,
    Close,
    Complete,
    Discard,
    Effect,
    EndOfStream,
    Failure,
    Open,
    PublisherSession,
    Push,
    Released,
    Request,
    ResendBlock,
    Response,
    Send,
    SessionEffect,
    SessionSettings,
    SkipBlock,
    Start,
)

from .publish_scenario import header_item, label, other_item, proof_item

FIRST: Final = 100
_DEPTH: Final = 4
_ROUNDS: Final = 3000
_STEPS: Final = 1200


class InvariantBrokenError(AssertionError):
    """Something that must always hold does not."""


@dataclass(slots=True, eq=False)
class Copy:
    """A complete copy that a node verifies and persists."""

    block: BlockId
    attempt: int
    good: bool
    missing: list[str]


@dataclass(slots=True, eq=False)
class Node:
    """A node, its disk, and the verdicts that are to come."""

    name: str
    arbiter: Arbiter
    durable: dict[BlockId, BlockId]
    parents: dict[BlockId, BlockId] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    half: dict[BlockId, tuple[int, set[str]]] = field(default_factory=dict)
    fetch: deque[BlockId] = field(default_factory=deque)
    attempts: set[tuple[int, int]] = field(default_factory=set)
    acknowledged: dict[Any, int] = field(default_factory=dict)
    skipped: dict[Any, int] = field(default_factory=dict)
    promoted: set[BlockId] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Wire:
    """A stream: messages on their way to the node, and back."""

    name: str
    node: Node
    up: deque[Request | None] = field(default_factory=deque)
    down: deque[Response] = field(default_factory=deque)
    closing: bool = False


@dataclass(slots=True, eq=False)
class Publisher:
    """An honest publisher: its branch, and its session."""

    name: str
    session: PublisherSession
    chain: list[BlockId]
    growing: bool = False
    released: int = FIRST
    stream: int = 0
    wire: Wire | None = None


class Network:
    """The steps, and the invariants of ``connectors/cardinal_ingest/docs/publish.md``, section 8."""

    def __init__(self, seed: int, *, forks: bool, publishers: int = 3, nodes: int = 2) -> None:
        self.random = random.Random(seed)
        self.forks = forks
        self.now = 0.0
        self.settings = ArbiterSettings(
            max_open_blocks=self.random.choice((3, 8, 64)),
            stall_distance=self.random.choice((1, 3)),
            reorg_threshold=2 * _DEPTH if forks else None,
            last_stored=None if forks else FIRST,
        )
        self.first = BlockId(FIRST, label("100a") if forks else b"")
        self.truth: dict[BlockId, BlockId] = {self.first: BlockId(FIRST - 1, label("99a") if forks else b"")}
        self.names = 0
        self.nodes = [Node(name, self._arbiter({}), dict(self.truth)) for name in ("a", "b")[:nodes]]
        for node in self.nodes:
            node.arbiter = self._arbiter(node.durable)
        self.wires: list[Wire] = []
        self.false: dict[str, Wire] = {}
        self.calm = False
        self.sessions = SessionSettings(forks=forks)
        preferences = [(node.name, i) for i, node in enumerate(self.nodes)]
        self.publishers = [
            Publisher(f"p{i}", PublisherSession(self.sessions, preferences, self.random.random), [self.first])
            for i in range(publishers)
        ]
        for publisher in self.publishers:
            self._act(publisher, publisher.session.tick(self.now))

    def _arbiter(self, durable: dict[BlockId, BlockId]) -> Arbiter:
        """A node that starts with what is on its disk: acknowledged first, then what lies above a gap (P48)."""
        settings = self.settings
        known = self._acknowledged(durable)
        last = max((block.number for block in known), default=FIRST)
        if not self.forks:
            return Arbiter(ArbiterSettings(**{**self._values(), "last_stored": last}), now=self.now)
        assert settings.reorg_threshold is not None
        floor = max(last - settings.reorg_threshold, FIRST - 1)
        return Arbiter(settings, {b: parent.hash for b, parent in known.items() if b.number >= floor}, self.now)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in ArbiterSettings.__slots__}

    def _acknowledged(self, durable: dict[BlockId, BlockId]) -> dict[BlockId, BlockId]:
        known: dict[BlockId, BlockId] = {}
        for block in sorted(durable):
            if block.number == FIRST or durable[block] in known:
                known[block] = durable[block]
        return known

    # --- feeds ------------------------------------------------------------------------------------------------

    def grow(self, publisher: Publisher, *, sealed: bool = True) -> None:
        """The feed has a block: one that another publisher has too, or a new one."""
        if publisher.growing:
            block = publisher.chain[-1]
            publisher.growing = False
            items: tuple[bytes, ...] = (other_item(), proof_item(block.number))
            self._act(publisher, publisher.session.append(items, self.now, sealed=True))
            return
        parent = publisher.chain[-1]
        block = self._child(parent)
        publisher.chain.append(block)
        items = (header_item(block.number, block.hash, parent.hash), other_item())
        if sealed:
            items += (other_item(7, self.random.choice((1, 1_500_000))), proof_item(block.number))
        publisher.growing = not sealed
        self._act(publisher, publisher.session.append(items, self.now, sealed=sealed))

    def _child(self, parent: BlockId) -> BlockId:
        children = [block for block, below in self.truth.items() if below == parent]
        if not self.forks or (children and self.random.random() < 0.85):
            if children:
                return self.random.choice(children)
            block = BlockId(parent.number + 1)
        else:
            self.names += 1
            block = BlockId(parent.number + 1, label(f"{parent.number + 1}-{self.names}"))
        self.truth[block] = parent
        return block

    def reorg(self, publisher: Publisher, depth: int) -> None:
        """The feed leaves its last blocks."""
        if not self.forks or len(publisher.chain) <= depth:
            return
        del publisher.chain[-depth:]
        publisher.growing = False
        publisher.released = min(publisher.released, publisher.chain[-1].number)
        self._act(publisher, publisher.session.reorg(publisher.chain[-1].number, self.now))

    # --- the wire ---------------------------------------------------------------------------------------------

    def pull(self, publisher: Publisher) -> None:
        """The transport takes one message of the session."""
        self._act(publisher, publisher.session.ready(publisher.stream, self.now))

    def deliver_up(self, wire: Wire) -> None:
        if wire.up:
            request = wire.up.popleft()
            self._perform(wire.node, wire.node.arbiter.receive(wire.name, request, self.now))
        elif wire.closing:
            self.lose(wire)

    def deliver_down(self, wire: Wire) -> None:
        if not wire.down:
            return
        response = wire.down.popleft()
        publisher = self._owner(wire)
        if publisher is not None:
            self._act(publisher, publisher.session.receive(publisher.stream, response, self.now))
        if isinstance(response, EndOfStream):
            self._drop(wire)

    def lose(self, wire: Wire) -> None:
        """A stream breaks."""
        publisher = self._owner(wire)
        self._drop(wire)
        self._perform(wire.node, wire.node.arbiter.disconnect(wire.name, self.now))
        if publisher is not None:
            self._act(publisher, publisher.session.closed(publisher.stream, self.now))

    def _drop(self, wire: Wire) -> None:
        if wire in self.wires:
            self.wires.remove(wire)
        self.false = {name: other for name, other in self.false.items() if other is not wire}
        for publisher in self.publishers:
            if publisher.wire is wire:
                publisher.wire = None

    def _owner(self, wire: Wire) -> Publisher | None:
        return next((publisher for publisher in self.publishers if publisher.wire is wire), None)

    # --- time and nodes ---------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes:
            self._perform(node, node.arbiter.tick(self.now))
        for publisher in self.publishers:
            self._act(publisher, publisher.session.tick(self.now))

    def verdict(self, node: Node) -> None:
        """A verdict on one copy."""
        if not node.copies:
            return
        copy = self.random.choice(node.copies)
        fault = 1.0 if self.calm else self.random.random()
        if fault < 0.04 or not copy.good:
            why = Failure.BAD if not copy.good else self.random.choice((Failure.UNDECIDED, Failure.PERSISTENCE))
            node.copies.remove(copy)
            self._perform(node, node.arbiter.failed(copy.block, copy.attempt, why, self.now))
            return
        kind = copy.missing.pop(self.random.randrange(len(copy.missing)))
        if not copy.missing:
            node.copies.remove(copy)
            self._make_durable(node, copy)
        give = node.arbiter.verified if kind == "verified" else node.arbiter.persisted
        self._perform(node, give(copy.block, copy.attempt, self.now))

    def _make_durable(self, node: Node, copy: Copy) -> None:
        current = node.half.get(copy.block)
        if current is None or current[0] != copy.attempt:
            return
        if copy.block in node.durable:
            raise InvariantBrokenError(f"node {node.name} persists {copy.block} twice")
        node.durable[copy.block] = node.parents[copy.block]

    def store(self, node: Node) -> None:
        """A block that was to be fetched arrives from the other node."""
        if node.fetch:
            block = node.fetch.popleft()
            source = next((other for other in self.nodes if other is not node and block in other.durable), None)
            if source is not None and block not in node.durable:
                parent = node.durable[block] = source.durable[block]
                node.copies = [copy for copy in node.copies if copy.block != block]
                node.half.pop(block, None)
                self._perform(node, node.arbiter.stored(block, parent.hash, self.now))

    def restart(self, node: Node) -> None:
        """A node is killed, and starts with its disk."""
        for wire in [wire for wire in self.wires if wire.node is node]:
            publisher = self._owner(wire)
            self._drop(wire)
            if publisher is not None:
                self._act(publisher, publisher.session.closed(publisher.stream, self.now))
        node.arbiter = self._arbiter(node.durable)
        node.copies, node.half, node.attempts = [], {}, set()
        node.acknowledged, node.skipped = {}, {}
        known = self._acknowledged(node.durable)
        for block in [block for block in node.durable if block not in known]:
            self._perform(node, node.arbiter.stored(block, node.durable[block].hash, self.now))

    # --- false publishers -------------------------------------------------------------------------------------

    def lie(self) -> None:
        """A false publisher connects, or sends something."""
        draw = self.random
        if len(self.false) < 2:
            node = draw.choice(self.nodes)
            name = f"false{draw.randrange(2)}#{self.names}"
            self.names += 1
            self.false[name] = wire = Wire(name, node)
            self.wires.append(wire)
            self._perform(node, node.arbiter.connect(name, name.split("#", maxsplit=1)[0], self.now))
            return
        wire = draw.choice(list(self.false.values()))
        block = draw.choice(sorted(self.truth)[-8:])
        parent = self.truth[block]
        if draw.random() < 0.3 and self.forks:
            other = [one for one in self.truth if one.number == parent.number]
            parent = draw.choice([*other, BlockId(parent.number, label("lie"))])
        if draw.random() < 0.3:
            self.names += 1
            block, parent = BlockId(block.number + 1, label(f"lie-{self.names}") if self.forks else b""), block
        header = header_item(block.number, block.hash, parent.hash)
        wire.up.extend(
            draw.choice(
                (
                    (BlockItemSet((header,)),),
                    (BlockItemSet((header, proof_item(block.number))),),
                    (BlockItemSet((header, proof_item(block.number))), BlockEnd(block.number)),
                    (BlockItemSet((header, proof_item(block.number))), BlockEnd(block.number)),
                    (None,),
                )
            )
        )

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, node: Node, effects: list[Effect]) -> None:  # noqa: C901 - one for each kind
        for effect in effects:
            match effect:
                case Send(connection, response):
                    self._sent(node, connection, response)
                case Start(block, attempt, _, parent):
                    if (block.number, attempt) in node.attempts:
                        raise InvariantBrokenError(f"node {node.name} repeats attempt {attempt} of {block}")
                    node.attempts.add((block.number, attempt))
                    node.parents[block] = parent
                    node.half[block] = (attempt, set())
                case Complete(block, attempt, connection):
                    good = not str(connection).startswith("false")
                    if good and node.parents[block] != self.truth[block]:
                        raise InvariantBrokenError(f"{block} of an honest publisher hangs at {node.parents[block]}")
                    node.copies.append(Copy(block, attempt, good, ["verified", "persisted"]))
                case Discard(block, attempt):
                    node.copies = [copy for copy in node.copies if (copy.block, copy.attempt) != (block, attempt)]
                    if node.half.get(block, (0, set()))[0] == attempt:
                        del node.half[block]
                        node.durable.pop(block, None)
                case Acknowledged(block, parent):
                    self._promoted(node, block, parent)
                case CatchUp(first, last):
                    node.fetch.extend(block for block in self.truth if first <= block.number <= last)
                case _:
                    pass
        bound = self.settings.max_open_blocks * (len(self.publishers) + 4) + len(node.durable)
        if node.arbiter.open_blocks > bound:
            raise InvariantBrokenError(f"node {node.name} holds {node.arbiter.open_blocks} open blocks")

    def _promoted(self, node: Node, block: BlockId, parent: BlockId) -> None:
        """Each block goes on once, when it is durable, and after its parent."""
        if block in node.promoted or node.durable.get(block) != parent or parent not in {self.first, *node.promoted}:
            raise InvariantBrokenError(f"node {node.name} acknowledges {block}, child of {parent}")
        node.promoted.add(block)

    def _sent(self, node: Node, connection: object, response: Response) -> None:
        wire = next((wire for wire in self.wires if wire.name == connection), None)
        if wire is not None:
            wire.down.append(response)
        match response:
            case Acknowledgement(number) if number == NONE:
                node.acknowledged.pop(connection, None)
            case Acknowledgement(number):
                if number <= node.acknowledged.get(connection, -1):
                    raise InvariantBrokenError(f"node {node.name} acknowledges {number} again to {connection}")
                node.acknowledged[connection] = number
                if node.skipped.get(connection, NONE) <= number:
                    del node.skipped[connection]
            case SkipBlock(number):
                node.skipped[connection] = max(number, node.skipped.get(connection, 0))
            case ResendBlock(number):
                if not self.forks and number <= (node.arbiter.last or 0):
                    raise InvariantBrokenError(f"node {node.name} requests block {number}, which is acknowledged")
                node.skipped.pop(connection, None)
            case _:
                pass

    def _act(self, publisher: Publisher, effects: list[SessionEffect]) -> None:
        for effect in effects:
            match effect:
                case Open(name, stream):
                    node = next(node for node in self.nodes if node.name == name)
                    self.names += 1
                    publisher.stream = stream
                    publisher.wire = wire = Wire(f"{publisher.name}#{self.names}", node)
                    self.wires.append(wire)
                    self._perform(node, node.arbiter.connect(wire.name, publisher.name, self.now))
                    self._act(publisher, publisher.session.opened(stream, self.now))
                case Push(stream, request):
                    if publisher.wire is None or stream != publisher.stream:
                        raise InvariantBrokenError(f"{publisher.name} sends on stream {stream}, which is gone")
                    publisher.wire.up.append(request)
                case Close(stream):
                    if publisher.wire is not None and stream == publisher.stream:
                        publisher.wire.closing = True
                        publisher.wire = None
                case Released(number):
                    self._released(publisher, number)
                case _:
                    pass

    def _released(self, publisher: Publisher, number: int) -> None:
        """Every block that a publisher lets go is durable on a node."""
        for block in publisher.chain:
            if publisher.released < block.number <= number and not any(block in node.durable for node in self.nodes):
                raise InvariantBrokenError(f"{publisher.name} releases {block}, which no node has")
        publisher.released = max(publisher.released, number)

    # --- the end ----------------------------------------------------------------------------------------------

    def settle(self) -> None:  # noqa: C901, PLR0912 - one kind of step after the other
        """The faults stop: every branch that leaves the acknowledged blocks above the floor is acknowledged."""
        self.calm = True
        for wire in list(self.false.values()):
            self.lose(wire)
        for publisher in self.publishers:
            if publisher.growing:
                self.grow(publisher)
        for _ in range(_ROUNDS):
            if not (waiting := self._waiting()):
                break
            for publisher in self.publishers:
                for _ in range(4):
                    self.pull(publisher)
            for wire in list(self.wires):
                for _ in range(8):
                    self.deliver_up(wire)
                    self.deliver_down(wire)
            for node in self.nodes:
                while node.copies:
                    self.verdict(node)
                if not node.fetch:
                    node.fetch.extend(block for other in self.nodes for block in other.durable)
                while node.fetch:
                    self.store(node)
            self.tick(0.25)
        else:
            raise InvariantBrokenError(f"not acknowledged when the faults stopped: {waiting}")
        for node in self.nodes if not self.forks else ():
            for wire in (wire for wire in self.wires if wire.node is node):
                if node.skipped.get(wire.name, -1) > node.acknowledged.get(wire.name, -1):
                    raise InvariantBrokenError(f"nothing follows the skip of {node.skipped[wire.name]} to {wire.name}")

    def _waiting(self) -> list[str]:
        """Publishers that hold blocks, and whose branch no node may refuse."""
        return [
            f"{publisher.name} holds {publisher.session.held}, {publisher.chain[-1].number}"
            for publisher in self.publishers
            if publisher.session.held and not self._refused(publisher)
        ]

    def _refused(self, publisher: Publisher) -> bool:
        for node in self.nodes:
            known = self._acknowledged(node.durable)
            last = max(block.number for block in known)
            floor = max(last - 2 * _DEPTH, FIRST - 1) if self.forks else -1
            leaves = max(block.number for block in publisher.chain if block in known)
            if leaves < floor or publisher.chain[-1].number <= floor:  # the second waits for its next block
                return True
        return False

    # --- a seed's choices -------------------------------------------------------------------------------------

    def run(self, steps: int = _STEPS) -> Iterator[str]:  # noqa: C901 - one for each step
        """Take steps by chance; yields the name of each."""
        draw = self.random
        weights = Counter(
            grow=8, half=3, reorg=1, pull=30, up=40, down=40, verdict=30, tick=6, lose=0.4, store=3, restart=0.15, lie=3
        )  # type: ignore[arg-type] # chances, not counts
        for kind in draw.choices(list(weights), list(weights.values()), k=steps):
            yield kind
            publisher = draw.choice(self.publishers)
            node = draw.choice(self.nodes)
            wire = draw.choice(self.wires) if self.wires else None
            match kind:
                case "grow" | "half":
                    self.grow(publisher, sealed=kind == "grow")
                case "reorg":
                    self.reorg(publisher, draw.randint(1, _DEPTH))
                case "pull":
                    self.pull(publisher)
                case "up" if wire:
                    self.deliver_up(wire)
                case "down" if wire:
                    self.deliver_down(wire)
                case "verdict":
                    self.verdict(node)
                case "tick":
                    self.tick(draw.choice((0.05, 0.25, 1, 3, 9)))
                case "lose" if wire:
                    self.lose(wire)
                case "store":
                    self.store(node)
                case "restart":
                    self.restart(node)
                case "lie":
                    self.lie()


def run_network(seed: int, steps: int = _STEPS) -> str | None:
    """Run the network of a seed, then let it settle; return what broke."""
    network = Network(seed, forks=seed % 3 != 0, nodes=1 + seed % 2)
    taken = 0
    try:
        for _ in network.run(steps):
            taken += 1
        network.settle()
    except Exception as error:  # noqa: BLE001 - whatever comes out is a difference
        return f"publish seed {seed}, step {taken}: {error!r}"
    return None
