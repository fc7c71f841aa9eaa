"""What was there when a stream was opened: when all of it is read, and when what was whole of it is delivered.

Rules:

1. Everything is read when every partition has passed the end that it had at opening.
2. Blocks that are whole then, and wait for their parents above the head, are *left*: they were there, and are not
   delivered. One is left no longer when it stops waiting, for whatever reason, when the head has reached its number,
   or when a reorg threshold of blocks was delivered without it: the chain goes on elsewhere.
3. What comes later is never left: a block that overtakes its parent for a moment changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from cardinal.protocols.streams.ordering.ordered import OrderedBlocks
from cardinal.protocols.streams.types import Partition


class Opening:
    """See the module.

    Arguments:
        orderer: knows which blocks wait.
        threshold: the reorg threshold, blocks.

    """

    def __init__(self, orderer: OrderedBlocks, threshold: int) -> None:
        self._orderer = orderer
        self._threshold = threshold
        self._left: list[bytes] = []
        self._delivered = 0
        self.is_read = False

    @property
    def leaves_blocks(self) -> bool:
        """Whether there are blocks of rule 2."""
        return bool(self._left)

    def look_again(self) -> None:
        """The ends are newer ones from now on."""
        self.is_read = False

    def progress(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> None:
        """Where the reading stands, and every partition's end at opening, where that is known."""
        if not self.is_read and ends is not None and all(positions.get(p, 0) >= end for p, end in ends.items()):
            self.is_read = True
            self._left, self._delivered = self._orderer.waiting(), 0
        while self._left and not self._orderer.waits_above_head(self._left[-1]):
            self._left.pop()

    def delivered(self, blocks: int) -> None:
        """So many blocks joined the chain."""
        self._delivered += blocks
        if self._delivered >= self._threshold:
            self._left.clear()
