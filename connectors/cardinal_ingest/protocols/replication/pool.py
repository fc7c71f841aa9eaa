"""Minipool of one member: the blocks whose bodies are stored, and the suffix that it votes for.

Rules:

1. A block is *linked* if its ancestors lead to an agreed block through stored ones. An agreed block is not linked.
2. The *suffix* is the path from the agreed blocks to the best linked tip: the best descendant of the consumers' head,
   unless another tip is heavier than it and than the head. Best is by weight, number and lower hash, so that members
   with equal pools vote alike.
3. A new block links what waited for it. A new state relinks everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from .state import State
from .types import Block, Item


def rank(block: Block) -> tuple[int, int, int]:
    """Order of tips; the highest is the best."""
    return block.weight, block.number, -int.from_bytes(block.hash, "big")


class _Link(NamedTuple):
    first: Block
    """Its lowest ancestor that is not agreed, or itself."""
    extends: bool
    """It descends from the consumers' head."""


class Pool:
    """Stored blocks by hash, agreed ones included."""

    __slots__ = ("_best", "_children", "_links", "_state", "blocks", "size")

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.size = 0
        """Bytes of all bodies."""
        self._children: defaultdict[bytes, dict[bytes, Block]] = defaultdict(dict)
        self._links: dict[bytes, _Link] = {}
        self._best: dict[bool, Block] = {}
        """The best linked tip that descends from the head, and the best other."""
        self._state: State | None = None

    def add(self, block: Block) -> None:
        """Store a block that is not stored."""
        self.blocks[block.hash] = block
        self.size += block.size
        self._children[block.parent][block.hash] = block
        self._link([block])

    def remove(self, block: Block) -> None:
        """Delete a stored block; if it is linked, :meth:`relink` follows in the same step."""
        del self.blocks[block.hash]
        self.size -= block.size
        siblings = self._children[block.parent]
        del siblings[block.hash]
        if not siblings:
            del self._children[block.parent]

    def relink(self, state: State) -> None:
        """Link all blocks to a new state."""
        self._state = state
        self._links.clear()
        self._best.clear()
        self._link(self.blocks.values())

    def links(self, block: Block) -> bool:
        """A block that is not stored would be linked."""
        return self._state is not None and self._link_of(block, self._state) is not None

    def children(self, parent: bytes) -> Collection[Block]:
        """Stored blocks with this parent."""
        children = self._children.get(parent)
        return children.values() if children else ()

    def holds(self, item: Item) -> bool:
        """The body is stored, with this content."""
        block = self.blocks.get(item.hash)
        return block is not None and block.content == item.content and block.number == item.number

    @property
    def first(self) -> Block | None:
        """First block of the suffix."""
        tip = self._tip()
        return None if tip is None else self._links[tip.hash].first

    def suffix(self, limit: int) -> list[Block]:
        """The vote: the first blocks of the suffix, parents first."""
        path: list[Block] = []
        tip = self._tip()
        while tip is not None:
            path.append(tip)
            tip = self.blocks[tip.parent] if tip.parent in self._links else None
        return path[: -limit - 1 : -1]

    def _tip(self) -> Block | None:
        """The best linked block, by rule 2."""
        descendant, other = self._best.get(True), self._best.get(False)
        if other is not None and self._state is not None:
            weight = self._state.head.weight if descendant is None else descendant.weight
            if other.weight > max(weight, self._state.head.weight):
                return other
        return descendant

    def _link(self, blocks: Iterable[Block]) -> None:
        """Link those of the blocks whose ancestors lead to an agreed one, and what waited for them."""
        state = self._state
        if state is None:
            return
        waiting = list(blocks)
        while waiting:
            block = waiting.pop()
            link = None if block.hash in self._links else self._link_of(block, state)
            if link is None:
                continue
            self._links[block.hash] = link
            best = self._best.get(link.extends)
            if best is None or rank(block) > rank(best):
                self._best[link.extends] = block
            waiting.extend(self.children(block.hash))

    def _link_of(self, block: Block, state: State) -> _Link | None:
        if block.hash in state.ring or block.number < state.floor:
            return None
        above = self._links.get(block.parent)
        if above is not None:
            return above if block.number > self.blocks[block.parent].number else None
        if state.ring:
            below = state.ring.get(block.parent)
            return _Link(block, block.parent == state.head.hash) if below is not None and block.number > below else None
        return _Link(block, extends=True) if block.number == state.rules.start else None
