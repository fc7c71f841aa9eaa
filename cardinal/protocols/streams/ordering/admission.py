"""Which complete blocks are taken in, and which branches are reported because they leave below the start.

Rules:

1. A block whose parent is no hash or the block itself, or whose number is negative, is refused.
2. A whitelist pins hashes at heights; another block at such a height is refused, and all that descends from it. So is
   a block that the blacklist names.
3. A block below the floor, or below the first block of the stream, is dropped and reported. While a stream resumes it
   is dropped in silence: it was judged before.
4. A waiting chain that is heavier than the head and can only leave below the start is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cardinal.errors import CursorMismatchError
from cardinal.protocols.streams.events import ForkBelowStart, Header
from cardinal.protocols.streams.types import HASH_SIZE, BlockRef

from .delivered import DeliveredChain
from .forktree import Node
from .holding import DESCENDS, Holding

_WALK_GAIN: Final = 16
_WALK_MAX: Final = 20_000
_REPORTED_MAX: Final = 1024


class Admission:
    """See the module.

    Arguments:
        blocks: what is held.
        chain: what is delivered.
        whitelist: number to the only hash that may stand there.
        blacklist: hashes of blocks that are never taken in.

    """

    def __init__(
        self, blocks: Holding, chain: DeliveredChain, whitelist: Mapping[int, bytes], blacklist: Iterable[bytes] = ()
    ) -> None:
        self._blocks = blocks
        self._chain = chain
        self._whitelist = dict(whitelist)
        self._blacklist = frozenset(blacklist)
        self._walk = _WALK_MAX
        self._reported: dict[bytes, None] = {}
        self.first: int | None = None
        """Blocks with a lower number were never delivered and never will be; None where that is not known."""

    def check_whitelist(self, delivered: Iterable[BlockRef]) -> None:
        """CursorMismatchError where the whitelist or the blacklist forbids a block that was delivered."""
        for ref in delivered:
            if ref.hash in self._blacklist:
                raise CursorMismatchError(
                    f"the blacklist names a block at {ref.number} that the cursor delivered; "
                    "start anew, or take the entry out",
                    expected=None,
                    found=ref.hash,
                )
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
        elif block.hash in self._blacklist:
            self._blocks.refuse(block, "the blacklist names it")
        elif block.parent in self._blacklist or self._blocks.refused(block.parent):
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

        Walking costs the length of the waiting chain, down to its lowest block and up to its heaviest; every block that
        waits earns a few steps, so that the work for a flood stays linear.
        """
        head, first = self._chain.head, self.first
        self._walk = min(self._walk + _WALK_GAIN, _WALK_MAX)
        if head is None or start is None or start.number < self._chain.floor:
            return
        if node.weight <= head.weight and not self._blocks.tree.children(node.hash):
            return
        lowest = self._lowest_below(node)
        below = start.number if first is None else start.number + 1
        if lowest is None or lowest.number >= below or lowest.linked or lowest.hash in self._reported:
            return
        tip = node if node.weight > head.weight else self._heaviest_above(node)
        if tip.weight > head.weight:
            self._reported[lowest.hash] = None
            if len(self._reported) > _REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
            self._blocks.reports.append(ForkBelowStart(BlockRef(tip.number, tip.hash), start))

    def _lowest_below(self, node: Node[Header]) -> Node[Header] | None:
        """The lowest ancestor that is held, None where that is too far down."""
        lowest = node
        for ancestor in self._blocks.tree.ancestors(node):
            lowest = ancestor
            self._walk -= 1
            if self._walk < 0:
                return None
        return lowest

    def _heaviest_above(self, node: Node[Header]) -> Node[Header]:
        """The heaviest of a waiting block and what waits above it, as far up as the steps allow."""
        best, pending = node, [node]
        while pending:
            current = pending.pop()
            best = max(best, current, key=lambda one: one.weight)
            children = self._blocks.tree.children(current.hash)
            if len(children) > self._walk:
                break
            self._walk -= len(children)
            pending += [child for child in children if child.number > current.number]
        return best
