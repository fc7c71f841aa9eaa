"""The graph of blocks: who is whose parent, and which of them are linked to the chain. No policy lives here.

A node is *linked* when its ancestors reach the root without a gap; the others wait. Both are kept in one table,
so that a parent which comes late links all that waited for it at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class _Block(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def hash(self) -> bytes: ...
    @property
    def parent(self) -> bytes: ...
    @property
    def weight(self) -> int: ...


Item = TypeVar("Item", bound=_Block)


class Node(Generic[Item]):
    """One block. ``item`` is None where only the reference is known; ``arrival`` orders ties, lower is earlier."""

    __slots__ = ("arrival", "hash", "item", "linked", "number", "parent", "weight")

    def __init__(self, number: int, block_hash: bytes, parent: bytes | None, weight: int, arrival: int) -> None:
        self.number = number
        self.hash = block_hash
        self.parent = parent
        self.weight = weight
        self.arrival = arrival
        self.item: Item | None = None
        self.linked = False


class ForkTree(Generic[Item]):
    """Blocks by hash, their children, and the way to throw old ones away."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node[Item]] = {}
        self._children: dict[bytes, list[Node[Item]]] = {}
        self._by_number: dict[int, list[Node[Item]]] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        """The number of blocks, linked and waiting."""
        return len(self._nodes)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block is held."""
        return block_hash in self._nodes

    def __iter__(self) -> Iterator[Node[Item]]:
        """Every block, in order of arrival."""
        return iter(self._nodes.values())

    def get(self, block_hash: bytes | None) -> Node[Item] | None:
        """The block with this hash."""
        return None if block_hash is None else self._nodes.get(block_hash)

    def children(self, block_hash: bytes) -> list[Node[Item]]:
        """The blocks whose parent has this hash, in order of arrival."""
        return self._children.get(block_hash, [])

    def insert(self, node: Node[Item]) -> None:
        """Hold a new block; it waits until :meth:`link` reaches it."""
        self._nodes[node.hash] = node
        if node.parent is not None:
            self._children.setdefault(node.parent, []).append(node)
        level = self._by_number.get(node.number)
        if level is None:
            self._by_number[node.number] = [node]
            heapq.heappush(self._numbers, node.number)
        else:
            level.append(node)

    def set_parent(self, node: Node[Item], parent: bytes) -> None:
        """The parent of a block that was known by reference only."""
        node.parent = parent
        self._children.setdefault(parent, []).append(node)

    def link(self, node: Node[Item]) -> list[Node[Item]]:
        """Link a block and everything that waited above it; returns what was linked, parents first."""
        linked = []
        pending = [node]
        while pending:
            current = pending.pop()
            if current.linked:
                continue
            current.linked = True
            linked.append(current)
            pending += self.children(current.hash)
        return linked

    def ancestors(self, node: Node[Item]) -> Iterator[Node[Item]]:
        """The block itself, its parent, and so on as far as they are held."""
        current: Node[Item] | None = node
        while current is not None:
            yield current
            current = self.get(current.parent)

    def remove(self, node: Node[Item]) -> None:
        """Forget one block; its children stay and wait."""
        del self._nodes[node.hash]
        if node.parent is not None and (siblings := self._children.get(node.parent)) is not None:
            siblings.remove(node)
            if not siblings:
                del self._children[node.parent]
        level = self._by_number[node.number]
        level.remove(node)
        if not level:
            del self._by_number[node.number]  # its entry in the heap goes when it comes up

    def prune(self, below: int) -> list[Node[Item]]:
        """Forget every block with a number lower than ``below``; returns them, lowest first."""
        pruned: list[Node[Item]] = []
        while self._numbers and self._numbers[0] < below:
            for node in list(self._by_number.get(heapq.heappop(self._numbers), ())):
                self.remove(node)
                pruned.append(node)
        return pruned

    def highest(self) -> Node[Item] | None:
        """A block with the highest number."""
        number = max(self._by_number, default=None)
        return None if number is None else self._by_number[number][-1]
