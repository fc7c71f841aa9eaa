"""Bounded set of blocks with an eviction order.

Adding, removing and evicting cost the logarithm of the blocks held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cardinal.protocols.streams.lazy import LazyHeap

from .forktree import Node, Rank


class Pool:
    """Blocks that share a bound: ``most`` blocks, ``most_bytes`` of content.

    The one with the lowest ``rank`` is evicted first. One that is not ``free`` is not evicted until :meth:`requeue`.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int,
        rank: Callable[[Node], Rank],
        free: Callable[[Node], bool] = lambda _node: True,
    ) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._rank, self._free = rank, free
        self._members: dict[bytes, Node] = {}
        self._order: LazyHeap[Rank, bytes] = LazyHeap()
        self.bytes = 0

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._members)

    def __iter__(self) -> Iterator[Node]:
        """Every block, in the order in which they were added."""
        return iter(self._members.values())

    @property
    def fullness(self) -> float:
        """The part of the blocks or bytes that is in use."""
        return max(len(self._members) / max(1, self._most), self.bytes / max(1, self._most_bytes))

    def add(self, node: Node) -> None:
        """Hold a block."""
        if node.hash not in self._members:
            self._members[node.hash] = node
            self.bytes += node.size
            self._order.put(node.hash, self._rank(node))

    def discard(self, node: Node) -> None:
        """Remove a block, if it is a member."""
        if self._members.pop(node.hash, None) is not None:
            self.bytes -= node.size
            self._order.discard(node.hash)

    def resize(self, node: Node, size: int) -> None:
        """Set the size of a block, be it a member or not."""
        if node.hash in self._members:
            self.bytes += size - node.size

    def requeue(self, node: Node) -> None:
        """Queue a block for eviction that was not free before."""
        if node.hash in self._members:
            self._order.put(node.hash, self._rank(node))

    def surplus(self) -> Iterator[Node]:
        """The blocks to evict until the bounds hold; the caller removes each before it takes the next."""
        while (len(self._members) > self._most or self.bytes > self._most_bytes) and self._order.lowest is not None:
            node = self._members[self._order.pop()]
            if self._free(node):
                yield node
