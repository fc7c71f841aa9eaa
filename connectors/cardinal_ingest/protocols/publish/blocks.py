"""Blocks that a node knows, each in one state, and the connections that send them.

Two policies with one face: :class:`Line` where a block is its number, :class:`Tree` where headers carry hashes and
branches compete (P43 to P47). A block is in one of these states::

    (none) ─▶ STREAMING ─▶ COMPLETE ─▶ acknowledged: verified and persisted, or stored, and its parent acknowledged
                 ▲ ▼          ▼  (failed, dropped)
                WANTED ◀──────┘               any ─▶ STORED (from another source)

A line forgets what is acknowledged, it is all up to ``last``. A tree keeps it down to the floor, ``last`` - T.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from .types import BlockId


class State(Enum):
    """The state of a block above the acknowledged ones; ACKNOWLEDGED in a tree alone."""

    STREAMING = auto()
    COMPLETE = auto()
    WANTED = auto()
    STORED = auto()
    ACKNOWLEDGED = auto()


@dataclass(slots=True, eq=False)
class Block:
    """One block.

    Attributes:
        id: number and hash.
        parent: its parent, as its header or its source claims.
        state: where it stands.
        attempt: number of the current copy, 0 before the first.
        sender: who sends or sent the current copy.
        identity: the sender's identity, None where another source brought the block.
        verified, persisted: verdicts on the current copy.
        excluded: identities whose copy failed.
        began: when the block's first header came; while wanted, when the grace of the last request began.
        heard: when the last set came.
        proven: whether the last set ended with a proof.
        surpassed: the highest complete block above this one when the attempt began.
        size, items: what came of the attempt.

    """

    id: BlockId
    parent: BlockId
    state: State = State.WANTED
    attempt: int = 0
    sender: Link | None = None
    identity: str | None = None
    verified: bool = False
    persisted: bool = False
    excluded: set[str] = field(default_factory=set)
    began: float = 0.0
    heard: float = 0.0
    proven: bool = False
    surpassed: int = -1
    size: int = 0
    items: int = 0

    @property
    def number(self) -> int:
        """Block number."""
        return self.id.number

    @property
    def kept(self) -> bool:
        """True where nothing needs to be received any more: stored, or verified and persisted."""
        return self.state is State.STORED or (self.state is State.COMPLETE and self.verified and self.persisted)


@dataclass(slots=True, eq=False)
class Link:
    """One connection of a publisher.

    Attributes:
        name: the service's name of it.
        identity: authenticated name, else address; survives a reconnect.
        block: the block in progress.
        at: the end of its branch: the last header accepted or skipped.
        offered: the last header.
        acknowledged: the last number acknowledged here, since a turn.
        run: headers since a turn, each the child of the one before, after the parent of the first.
        requested: blocks that ResendBlock was sent for and that were not offered since.
        led, step: the last answer to a header of unknown parent, and how far the next goes back.

    """

    name: Hashable
    identity: str
    block: Block | None = None
    at: BlockId | None = None
    offered: BlockId | None = None
    acknowledged: int | None = None
    run: list[BlockId] = field(default_factory=list)
    requested: set[BlockId] = field(default_factory=set)
    led: int | None = None
    step: int = 1

    def extend(self, block: BlockId, parent: BlockId) -> None:
        """Add a header to the run, unless one between was refused."""
        if self.run[-1] == parent:
            self.run.append(block)


class Line:
    """Blocks by number: one branch."""

    def __init__(self, first: int | None, last_stored: int | None) -> None:
        self.open: dict[BlockId, Block] = {}
        self.last: int = -1
        self.start: int | None = None
        """The number that the chain begins with; None before the first header of an empty node."""
        self.empty = last_stored is None
        if last_stored is not None:
            self.start, self.last = 0, last_stored
        elif first is not None:
            self.begin(first)

    def begin(self, number: int) -> None:
        """Begin an empty chain at this number."""
        if self.start is None:
            self.start, self.last = number, number - 1

    @property
    def floor(self) -> int:
        """Highest number of which nothing is accepted any more."""
        return self.last

    @property
    def next(self) -> int:
        """The lowest number above ``last`` in no state."""
        number = self.last + 1
        while BlockId(number) in self.open:
            number += 1
        return number

    def sorted(self, *states: State) -> list[Block]:
        """The blocks in these states, lowest first."""
        return sorted((block for block in self.open.values() if block.state in states), key=lambda block: block.id)

    def holds(self, tip: BlockId | None, block: BlockId) -> bool:
        """Return True where the branch that ends at a block holds another."""
        return tip is not None and block.number <= tip.number

    def joins(self, block: BlockId, _parent: BlockId) -> bool:
        """Return True where the parent of a block is acknowledged, or the block is the first."""
        return block.number <= self.last + 1

    def acknowledge(self, _block: Block) -> list[Block]:
        """Acknowledge what follows from a kept block; return what is new, parents first."""
        new = []
        while (following := self.open.get(BlockId(self.last + 1))) is not None and following.kept:
            self.last += 1
            self.empty = False
            new.append(self.open.pop(following.id))
        return new

    def expired(self) -> list[Block]:
        """Blocks to forget after ``last`` moved: none."""
        return []


class Tree(Line):
    """Blocks by number and hash: branches."""

    def __init__(self, first: int | None, acknowledged: Mapping[BlockId, bytes], threshold: int) -> None:
        super().__init__(first, max((block.number for block in acknowledged), default=None))
        self.threshold = threshold
        if acknowledged:
            self.start = min(block.number for block in acknowledged)
        for block, parent in acknowledged.items():
            self.open[block] = Block(block, BlockId(block.number - 1, parent), State.ACKNOWLEDGED)

    @property
    def next(self) -> int:
        """The lowest number above ``last``: what may be there above it is no reason to fetch less."""
        return self.last + 1

    @property
    def floor(self) -> int:
        """Highest number of which nothing is accepted any more."""
        return self.last if self.start is None else max(self.last - self.threshold, self.start - 1)

    def acknowledged(self, block: BlockId) -> bool:
        """Return True for a block that is acknowledged and above or at the floor."""
        return block in self.open and self.open[block].state is State.ACKNOWLEDGED

    def ancestry(self, block: BlockId) -> Iterator[Block]:
        """The block and its known ancestors, newest first."""
        while (node := self.open.get(block)) is not None:
            yield node
            block = node.parent

    def base(self, block: BlockId) -> BlockId | None:
        """The nearest acknowledged block at or below this one, or the start's parent; None where it is not attached."""
        for node in self.ancestry(block):
            if node.state is State.ACKNOWLEDGED:
                return node.id
            block = node.parent
        return block if self.start is not None and block.number == self.start - 1 else None

    def holds(self, tip: BlockId | None, block: BlockId) -> bool:
        """Return True where the branch that ends at a block holds another."""
        if tip is None or tip.number < block.number:
            return False
        for node in self.ancestry(tip):
            if node.number <= block.number:
                return node.id == block
        return False

    def joins(self, block: BlockId, parent: BlockId) -> bool:
        """Return True where the parent of a block is acknowledged, or the block is the first."""
        return self.acknowledged(parent) or block.number == self.start

    def acknowledge(self, block: Block) -> list[Block]:
        """Acknowledge what follows from a kept block; return what is new, parents first."""
        if not block.kept or not self.joins(block.id, block.parent):
            return []
        new = [block]
        for node in new:
            node.state = State.ACKNOWLEDGED
            self.last = max(self.last, node.number)
            new += [child for child in self.open.values() if child.parent == node.id and child.kept]
        self.empty = False
        return new

    def descendants(self, block: BlockId) -> list[Block]:
        """Blocks above this one that are not acknowledged, lowest first."""
        found = {block}
        above = []
        for node in sorted(self.open.values(), key=lambda node: node.id):
            if node.parent in found and node.state is not State.ACKNOWLEDGED:
                found.add(node.id)
                above.append(node)
        return above

    def expired(self) -> list[Block]:
        """Remove and return the open blocks that the floor cuts off; acknowledged ones below it go in silence."""
        floor = self.floor
        gone: dict[BlockId, Block] = {}
        for node in sorted(self.open.values(), key=lambda node: node.id):
            if node.state is State.ACKNOWLEDGED:
                if node.number < floor:
                    del self.open[node.id]
            elif node.number <= floor or node.parent in gone:
                gone[node.id] = self.open.pop(node.id)
        return list(gone.values())
