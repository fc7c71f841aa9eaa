"""Blocks that lack messages: suspects, the proof of absence, and when a chain continues without them.

A block is a *suspect* when the reassembler calls it overdue, or when a complete block names it as its parent and a
threshold of blocks was completed since. It is *absent* when every partition has passed watermarks that were taken after
that. An absent block is reported once, so that a node or an archive can supply it. A threshold of blocks later new
watermarks are taken; passed, they prove that nothing came since, and a chain that waits for the block continues without
it (C-RE-7). Deadlines are counted in completed blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cardinal.protocols.streams.lazy import LazyHeap
from cardinal.protocols.streams.types import Partition


@dataclass(slots=True, eq=False)
class Suspect:
    """A block that lacks messages; ``since``: completed blocks by then. ``number``: as its child gives it.

    ``reported``: its absence was reported. ``quiet``: it is only reported when a chain waits for it.
    """

    since: int
    due: int
    number: int | None
    quiet: bool
    reported: bool = False


class MissingBlocks:
    """The suspects of one stream, and the proofs of their absence."""

    def __init__(self) -> None:
        self.completed = 0
        """Blocks completed so far: the clock of all deadlines."""
        self._suspects: dict[bytes, Suspect] = {}
        self._due: LazyHeap[int, bytes] = LazyHeap()
        self._requested: list[bytes] = []
        """Suspects that are due, to be proven absent by the next watermarks."""
        self._proof: Mapping[Partition, int] | None = None
        """These watermarks, until every partition has passed them."""

    def suspect(self, block_hash: bytes, wait: int = 0, number: int | None = None, *, quiet: bool = False) -> None:
        """Suspect a block when ``wait`` more blocks are completed, or sooner than before; see :class:`Suspect`."""
        existing = self._suspects.get(block_hash)
        due = self.completed + wait
        if existing is None:
            self._suspects[block_hash] = Suspect(self.completed, due, number, quiet)
        else:
            existing.quiet = existing.quiet or quiet
            if due >= existing.due:
                return
        self.look_again(block_hash, due)

    def look_again(self, block_hash: bytes, due: int) -> None:
        """Take new watermarks for a suspect when ``due`` blocks are completed."""
        self._suspects[block_hash].due = due
        self._due.put(block_hash, due)

    def clear(self, block_hash: bytes) -> None:
        """Remove a block that is complete, delivered or abandoned."""
        self._suspects.pop(block_hash, None)
        self._due.discard(block_hash)

    def get(self, block_hash: bytes) -> Suspect | None:
        """The suspect with this hash."""
        return self._suspects.get(block_hash)

    def is_quiet(self, block_hash: bytes) -> bool:
        """True when a block is a suspect that is only reported when a chain waits for it."""
        suspect = self._suspects.get(block_hash)
        return suspect is not None and suspect.quiet

    @property
    def needs_watermarks(self) -> bool:
        """True when new watermarks would prove something."""
        return bool(self._requested) and self._proof is None

    def proven(self, positions: Mapping[Partition, int], watermarks: Mapping[Partition, int] | None) -> list[bytes]:
        """The suspects whose messages are on no topic, by watermarks that every partition has passed.

        New ones may come with it.
        """
        if watermarks is not None and self._requested and self._proof is None:
            self._proof = watermarks
        found: list[bytes] = []
        if self._proof is not None and all(positions.get(p, end) >= end for p, end in self._proof.items()):
            found = [block_hash for block_hash in self._requested if block_hash in self._suspects]
            self._proof, self._requested = None, []
        if not self._requested:
            # Suspects that become due until then wait for the next watermarks: these may be older than they.
            self._requested = self._due.pop_below(self.completed + 1)
        return found
