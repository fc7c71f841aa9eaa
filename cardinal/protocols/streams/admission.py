"""Which complete blocks are taken in, and which branches are reported because they leave below the start.

Rules:

1. A block whose parent is no hash or the block itself, or whose number is negative, is refused.
2. A whitelist pins hashes at heights; another block at such a height is refused, and all that descends from it.
3. A block below the floor, or below the first block of the stream, is dropped and reported. While a stream resumes it
   is dropped in silence: it was judged before.
4. A waiting chain that is heavier than the head and can only leave below the start is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cardinal.errors import CursorMismatchError

from .delivered import DeliveredChain
from .events import ForkBelowStart, Header
from .forktree import Node
from .holding import DESCENDS, Holding
from .types import HASH_SIZE, BlockRef

_WALK_GAIN: Final = 16
_WALK_MAX: Final = 20_000
_REPORTED_MAX: Final = 1024


class Admission:
    """See the module.

    Arguments:
        blocks: what is held.
        chain: what is delivered.
        whitelist: number to the only hash that may stand there.

    """

    def __init__(self, blocks: Holding, chain: DeliveredChain, whitelist: Mapping[int, bytes]) -> None:
        self._blocks = blocks
        self._chain = chain
        self._whitelist = dict(whitelist)
        self._walk = _WALK_MAX
        self._reported: dict[bytes, None] = {}
        self.first: int | None = None
        """Blocks with a lower number were never delivered and never will be; None where that is not known."""

    def check_whitelist(self, delivered: Iterable[BlockRef]) -> None:
        """CursorMismatchError where the whitelist forbids a block that was delivered."""
        for ref in delivered:
            pinned = self._whitelist.get(ref.number)
            if pinned is not None and pinned != ref.hash:
                raise CursorMismatchError(
                    f"the whitelist pins another block at {ref.number} than the cursor delivered; "
                    "start anew, or take the entry out",
                    expected=pinned,
                    found=ref.hash,
                )

    def admits(self, block: Header, *, resuming: bool) -> bool:
        """Whether to take a block in that is not held."""
        pinned = self._whitelist.get(block.number)
        if len(block.parent) != HASH_SIZE:
            self._blocks.refuse(block, "its parent is no hash")
        elif block.parent == block.hash:
            self._blocks.refuse(block, "it names itself as its parent")
        elif block.number < 0:
            self._blocks.refuse(block, "its number is negative")
        elif pinned is not None and pinned != block.hash:
            self._blocks.refuse(block, "the whitelist pins another block at its number")
        elif self._blocks.refused(block.parent):
            self._blocks.refuse(block, DESCENDS)
        elif block.number < self._chain.floor:
            self._late(block, "farther below the head than the reorg threshold", silent=resuming)
        elif self.first is not None and block.number < self.first:
            self._late(block, "below the first block of this stream", silent=resuming)
        else:
            return True
        return False

    def _late(self, block: Header, reason: str, *, silent: bool) -> None:
        if not silent:
            self._blocks.stale(BlockRef(block.number, block.hash), reason)

    def report_fork_below_start(self, node: Node[Header], start: BlockRef | None) -> None:
        """A block waits: report its chain if it is the better one and can never be linked.

        Walking down costs the length of the waiting chain; every block that waits earns a few steps, so that the
        work for a flood stays linear.
        """
        head, first = self._chain.head, self.first
        self._walk = min(self._walk + _WALK_GAIN, _WALK_MAX)
        if head is None or start is None or node.weight <= head.weight or start.number < self._chain.floor:
            return
        lowest = node
        for ancestor in self._blocks.tree.ancestors(node):
            lowest = ancestor
            self._walk -= 1
            if self._walk < 0:
                return
        below = start.number if first is None else start.number + 1
        if lowest.number < below and not lowest.linked and lowest.hash not in self._reported:
            self._reported[lowest.hash] = None
            if len(self._reported) > _REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
            self._blocks.reports.append(ForkBelowStart(BlockRef(node.number, node.hash), start))
