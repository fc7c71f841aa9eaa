"""Graph of blocks, their parents and children. It contains no policy.

A node is *linked* when its ancestors reach the root without a gap; the others wait. A linked node is *delivered*
while it is part of the delivered chain. All are held in one table, so that a parent that comes late finds everything
that waited for it.

The cost of every operation is the size of its result: ten thousand children of one block, or ten thousand blocks of
one number, slow nothing down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.lazy import LazyHeap
from cardinal.protocols.streams.types import Partition

Rank: TypeAlias = tuple[int, int, bytes]
"""Order of blocks, lower first: a weight or a number, the arrival, the hash."""


@dataclass(slots=True, eq=False)
class Node:
    """One block.

    Attributes:
        parent: its parent's hash, None where only the reference is held.
        arrival: orders ties, lower is earlier.
        size: bytes of its content, 0 for a header.
        item: its content, None where only the reference is held.
        positions: the first offsets of its messages.
        missing: delivered, or about to be delivered, without content, also when its content comes later.
        linked, delivered: see the module.

    """

    number: int
    hash: bytes
    parent: bytes | None
    weight: int
    arrival: int
    item: BlockHeader | None = None
    size: int = 0
    positions: Mapping[Partition, int] = field(default_factory=dict)
    missing: bool = False
    linked: bool = False
    delivered: bool = False


class ForkTree:
    """Blocks by hash, by parent and by number."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._children: dict[bytes, dict[bytes, Node]] = {}
        self._numbers: LazyHeap[int, bytes] = LazyHeap()

    def __len__(self) -> int:
        """The number of blocks, linked and waiting."""
        return len(self._nodes)

    def __contains__(self, block_hash: bytes) -> bool:
        """True when this block is held."""
        return block_hash in self._nodes

    def __iter__(self) -> Iterator[Node]:
        """Every block, in order of arrival."""
        return iter(self._nodes.values())

    def get(self, block_hash: bytes | None) -> Node | None:
        """The block with this hash."""
        return None if block_hash is None else self._nodes.get(block_hash)

    def children(self, block_hash: bytes) -> Collection[Node]:
        """The blocks whose parent has this hash, held or not, in order of arrival."""
        return self._children.get(block_hash, {}).values()

    def is_parent(self, block_hash: bytes) -> bool:
        """True when a held block names this one, held or not, as its parent."""
        return block_hash in self._children

    def insert(self, node: Node) -> None:
        """Hold a new block."""
        self._nodes[node.hash] = node
        if node.parent is not None:
            self._children.setdefault(node.parent, {})[node.hash] = node
        self._numbers.put(node.hash, node.number)

    def set_parent(self, node: Node, parent: bytes) -> None:
        """Set the parent of a block of which only the reference was held."""
        node.parent = parent
        self._children.setdefault(parent, {})[node.hash] = node

    def ancestors(self, node: Node) -> Iterator[Node]:
        """The block itself, its parent, and so on as far as they are held and their numbers fall.

        Two waiting blocks may name each other as their parents: the numbers end such a ring.
        """
        current: Node | None = node
        while current is not None:
            yield current
            parent = self.get(current.parent)
            current = parent if parent is not None and parent.number < current.number else None

    def above(self, node: Node) -> list[Node]:
        """The block itself and all that descends from it, parents first."""
        order = [node]
        for current in order:
            order += self.children(current.hash)
        return order

    def remove(self, node: Node) -> None:
        """Remove one block; its children stay."""
        del self._nodes[node.hash]
        if node.parent is not None:
            siblings = self._children[node.parent]
            del siblings[node.hash]
            if not siblings:
                del self._children[node.parent]
        self._numbers.discard(node.hash)

    def pop_below(self, number: int) -> list[Node]:
        """Remove and return every block with a lower number, lowest first."""
        found = [self._nodes[block_hash] for block_hash in self._numbers.pop_below(number)]
        for node in found:
            self.remove(node)
        return found
