"""Observers: which members store a block, and which blocks may be acknowledged for it.

Rules:

1. A member observes a block with the content that it stored; other content is a divergence and does not count.
2. A block is acknowledged when a majority observes it, this node included, and its parent is agreed or acknowledged.
   An agreed block is acknowledged: a majority signed that it stores it.
3. What a peer observed is remembered only, and cleared with its session.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from .pool import Pool
from .state import State
from .types import Block, Ref


class Observers:
    """Observed blocks of the peers, and the acknowledged ones of the pool."""

    __slots__ = ("_limit", "_of_block", "_of_peer", "_pool", "_quorum", "acknowledged")

    def __init__(self, pool: Pool, quorum: int, limit: int) -> None:
        self._pool = pool
        self._quorum = quorum
        self._limit = limit
        self._of_block: defaultdict[Ref, dict[str, bytes]] = defaultdict(dict)
        """Content by peer."""
        self._of_peer: Counter[str] = Counter()
        """Number of blocks by peer."""
        self.acknowledged: set[bytes] = set()

    def observe(self, peer: str, block: Block) -> None:
        """Remember that the peer stores the block; above the limit of a peer nothing is remembered."""
        if self._of_peer[peer] < self._limit:
            contents = self._of_block[block.ref]
            self._of_peer[peer] += peer not in contents
            contents[peer] = block.content

    def forget(self, peer: str) -> None:
        """Clear what a former session of the peer brought."""
        del self._of_peer[peer]
        for ref in [ref for ref, contents in self._of_block.items() if peer in contents]:
            del self._of_block[ref][peer]
            if not self._of_block[ref]:
                del self._of_block[ref]

    def prune(self, state: State) -> None:
        """Forget what is agreed or below the window."""
        for ref in [ref for ref in self._of_block if ref.number < state.floor or state.holds(ref)]:
            for peer in self._of_block.pop(ref):
                self._of_peer[peer] -= 1
        self.acknowledged = {one for one in self.acknowledged if one in self._pool.blocks and one not in state.ring}

    def missing(self) -> tuple[Ref, ...]:
        """Blocks that peers store and this node does not, the lowest first."""
        return tuple(sorted(ref for ref in self._of_block if ref.hash not in self._pool.blocks))

    def others(self, block: Block) -> list[tuple[str, bytes]]:
        """Peers that observed another content than the stored block's."""
        contents = self._of_block.get(block.ref, {})
        return [(peer, content) for peer, content in contents.items() if content != block.content]

    def majority(self, block: Block) -> bool:
        """A majority stores the block, this node included."""
        contents = self._of_block.get(block.ref, {})
        return 1 + list(contents.values()).count(block.content) >= self._quorum

    def acknowledge(self, blocks: Iterable[Block], state: State) -> list[Ref]:
        """Blocks that are acknowledged now, parents first: of these, and of what descends from them (rule 2)."""
        found: list[Ref] = []
        waiting = list(blocks)
        while waiting:
            block = waiting.pop()
            if block.hash in self.acknowledged or block.hash in state.ring:
                continue
            root = block.parent in state.ring if state.ring else block.number == state.rules.start
            if (root or block.parent in self.acknowledged) and self.majority(block):
                self.acknowledged.add(block.hash)
                found.append(block.ref)
                waiting.extend(self._pool.children(block.hash))
        return found
