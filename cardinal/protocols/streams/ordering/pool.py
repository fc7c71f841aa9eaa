"""How many blocks may be held, and which one goes when there are too many.

A :class:`Pool` holds the blocks of one kind and knows at any time the one that goes first. Adding, taking out and
evicting cost the logarithm of what is held.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from cardinal.protocols.streams.events import Header

from .forktree import Node

_SLACK: Final = 64

Rank: TypeAlias = tuple[int, int, bytes]


class Pool:
    """Blocks that are bounded together.

    Arguments:
        most: blocks.
        most_bytes: bytes of their content (:attr:`~.forktree.Node.size`).
        rank: the block with the lowest rank goes first.
        free: whether a block may go; one that may not is offered again by :meth:`again`.

    """

    def __init__(
        self,
        most: int,
        most_bytes: int,
        rank: Callable[[Node[Header]], Rank],
        free: Callable[[Node[Header]], bool] = lambda _node: True,
    ) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._rank, self._free = rank, free
        self._members: dict[bytes, Node[Header]] = {}
        self._heap: list[tuple[Rank, bytes]] = []
        self.bytes = 0

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._members)

    def __iter__(self) -> Iterator[Node[Header]]:
        """Every block, in the order in which they were added."""
        return iter(self._members.values())

    @property
    def half_full(self) -> bool:
        """Whether half of what may be held is."""
        return 2 * len(self._members) >= self._most or 2 * self.bytes >= self._most_bytes

    def add(self, node: Node[Header]) -> None:
        """Hold a block."""
        if node.hash not in self._members:
            self._members[node.hash] = node
            self.bytes += node.size
            self._push(node)

    def discard(self, node: Node[Header]) -> None:
        """Let a block go, if it is one of them."""
        if self._members.pop(node.hash, None) is not None:
            self.bytes -= node.size

    def again(self, node: Node[Header]) -> None:
        """A block may go now that could not before."""
        if node.hash in self._members:
            self._push(node)

    def grown(self, node: Node[Header], size: int) -> None:
        """The content of a block has come, ``size`` bytes of it."""
        if node.hash in self._members:
            self.bytes += size

    def surplus(self) -> Iterator[Node[Header]]:
        """The blocks to remove until the bounds are kept; whoever asks removes each before the next."""
        while self._heap and (len(self._members) > self._most or self.bytes > self._most_bytes):
            _, block_hash = heapq.heappop(self._heap)
            node = self._members.get(block_hash)
            if node is not None and self._free(node):
                yield node

    def _push(self, node: Node[Header]) -> None:
        heapq.heappush(self._heap, (self._rank(node), node.hash))
        if len(self._heap) > 2 * len(self._members) + _SLACK:
            self._heap = [(self._rank(member), member.hash) for member in self._members.values()]
            heapq.heapify(self._heap)
