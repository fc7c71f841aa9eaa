"""The graph of blocks: who is whose parent, and which of them are linked to the chain. No policy lives here.

A node is *linked* when its ancestors reach the root without a gap; the others wait. A linked node is *delivered*
while it is part of the chain that the stream has given out. All are kept in one table, so that a parent which comes
late finds everything that waited for it.

Every operation costs what it returns, whatever else is held: ten thousand children of one block, or ten thousand
blocks of one number, slow nothing down.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from typing import Final, Generic, Protocol, TypeVar


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

_SLACK: Final = 64


class Node(Generic[Item]):
    """One block.

    Attributes:
        parent: its parent's hash, None where only the reference is known.
        arrival: orders ties, lower is earlier.
        size: bytes that its content takes, 0 for a header.
        item: its content, None where only the reference is known.
        linked, delivered: see the module.
        missing: delivered, or to be delivered, without content, although its content may still come.

    """

    __slots__ = ("arrival", "delivered", "hash", "item", "linked", "missing", "number", "parent", "size", "weight")

    def __init__(self, number: int, block_hash: bytes, parent: bytes | None, weight: int, arrival: int) -> None:
        self.number = number
        self.hash = block_hash
        self.parent = parent
        self.weight = weight
        self.arrival = arrival
        self.size = 0
        self.item: Item | None = None
        self.linked = False
        self.delivered = False
        self.missing = False


class ForkTree(Generic[Item]):
    """Blocks by hash, their children, and the way to throw old ones away."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node[Item]] = {}
        self._children: dict[bytes, dict[bytes, Node[Item]]] = {}
        self._by_number: dict[int, dict[bytes, Node[Item]]] = {}
        self._numbers: list[int] = []  # a heap; a number whose blocks are gone goes when it comes up

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

    def children(self, block_hash: bytes) -> Collection[Node[Item]]:
        """The blocks whose parent has this hash, held or not, in order of arrival."""
        return self._children.get(block_hash, {}).values()

    def insert(self, node: Node[Item]) -> None:
        """Hold a new block."""
        self._nodes[node.hash] = node
        if node.parent is not None:
            self._children.setdefault(node.parent, {})[node.hash] = node
        level = self._by_number.get(node.number)
        if level is None:
            self._by_number[node.number] = {node.hash: node}
            self._push(node.number)
        else:
            level[node.hash] = node

    def set_parent(self, node: Node[Item], parent: bytes) -> None:
        """The parent of a block that was known by reference only."""
        node.parent = parent
        self._children.setdefault(parent, {})[node.hash] = node

    def ancestors(self, node: Node[Item]) -> Iterator[Node[Item]]:
        """The block itself, its parent, and so on as far as they are held and their numbers fall.

        Two waiting blocks may name each other as their parents: the numbers end such a ring.
        """
        current: Node[Item] | None = node
        while current is not None:
            yield current
            parent = self.get(current.parent)
            current = parent if parent is not None and parent.number < current.number else None

    def above(self, node: Node[Item]) -> list[Node[Item]]:
        """The block itself and all that descends from it, parents first."""
        order = [node]
        for current in order:
            order += self.children(current.hash)
        return order

    def remove(self, node: Node[Item]) -> None:
        """Forget one block; its children stay."""
        del self._nodes[node.hash]
        if node.parent is not None:
            siblings = self._children[node.parent]
            del siblings[node.hash]
            if not siblings:
                del self._children[node.parent]
        level = self._by_number[node.number]
        del level[node.hash]
        if not level:
            del self._by_number[node.number]

    def below(self, number: int) -> Iterator[Node[Item]]:
        """Every block with a lower number than this, lowest first; whoever asks removes them."""
        while self._numbers and self._numbers[0] < number:
            yield from list(self._by_number.get(heapq.heappop(self._numbers), {}).values())

    def _push(self, number: int) -> None:
        heapq.heappush(self._numbers, number)
        if len(self._numbers) > 2 * len(self._by_number) + _SLACK:
            # Numbers that came and went again would fill the heap.
            self._numbers = list(self._by_number)
            heapq.heapify(self._numbers)
