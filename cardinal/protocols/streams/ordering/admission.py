"""Admission rules: blocks that are refused, and forks that leave below the start.

A block is refused that cannot be (its parent is no hash or itself, its number negative), that a whitelist or blacklist
excludes, or that descends from a refused one. A waiting chain that is heavier than the head and can only leave below
the start is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cardinal.errors import CursorMismatchError
from cardinal.protocols.streams.events import BlockHeader, ForkBelowStart
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.types import HASH_SIZE, BlockRef

from .forktree import ForkTree, Node

DESCENDS: Final = "it descends from a refused block"

REMEMBERED: Final = 4096
"""Blocks that are no longer held and whose last state is remembered."""

_STEPS_PER_BLOCK: Final = 16
_STEPS_MAX: Final = 20_000
_REPORTED_MAX: Final = 1024


class Admission:
    """Refusals. ``whitelist``: number to the only hash that is accepted there. ``blacklist``: refused hashes."""

    def __init__(self, whitelist: Mapping[int, bytes] | None = None, blacklist: Iterable[bytes] = ()) -> None:
        self._whitelist = dict(whitelist or {})
        self._blacklist = frozenset(blacklist)
        self.refused: BoundedDict[bytes, None] = BoundedDict(REMEMBERED)

    def check_delivered(self, delivered: Iterable[BlockRef]) -> None:
        """Raise CursorMismatchError when the whitelist or the blacklist forbids a block that was delivered."""
        for ref in delivered:
            pinned = self._whitelist.get(ref.number)
            if ref.hash in self._blacklist:
                found, pinned = f"the blacklist names a block at {ref.number} that the cursor delivered", None
            elif pinned is not None and pinned != ref.hash:
                found = f"the whitelist pins another block at {ref.number} than the cursor delivered"
            else:
                continue
            message = f"{found}: start without a cursor, or remove the entry"
            raise CursorMismatchError(message, expected=pinned, found=ref.hash)

    def refusal(self, block: BlockHeader) -> str | None:
        """The reason to refuse a block, None when there is none."""
        reason = None
        if len(block.parent) != HASH_SIZE:
            reason = "its parent is no hash"
        elif block.parent == block.hash:
            reason = "it names itself as its parent"
        elif block.number < 0:
            reason = "its number is negative"
        elif self._whitelist.get(block.number, block.hash) != block.hash:
            reason = "the whitelist pins another block at its number"
        elif block.hash in self._blacklist:
            reason = "the blacklist names it"
        elif block.parent in self._blacklist or block.parent in self.refused:
            reason = DESCENDS
        return reason


class StartForks:
    """Reports of heavier chains below the start, within a budget.

    The search costs the length of the waiting chain, down to its lowest block and up to its heaviest; every block that
    waits adds a few steps, so that the work for a flood stays linear.
    """

    def __init__(self, tree: ForkTree) -> None:
        self._tree = tree
        self._steps = _STEPS_MAX
        self._reported: BoundedDict[bytes, None] = BoundedDict(_REPORTED_MAX)

    def found(self, node: Node, head: Node, start: BlockRef, unlinkable: int) -> ForkBelowStart | None:
        """The report on the chain of a waiting block, None when there is none.

        ``start``: the first block of the stream, or the configured one below it. ``unlinkable``: the highest number at
        which the parent of a block can never be linked.
        """
        self._steps = min(self._steps + _STEPS_PER_BLOCK, _STEPS_MAX)
        if node.weight <= head.weight and not self._tree.is_parent(node.hash):
            return None
        lowest = self._lowest_below(node)
        if lowest is None or lowest.number > unlinkable or lowest.linked or lowest.hash in self._reported:
            return None
        tip = node if node.weight > head.weight else self._heaviest_above(node)
        if tip.weight <= head.weight:
            return None
        self._reported[lowest.hash] = None
        return ForkBelowStart(BlockRef(tip.number, tip.hash), start)

    def _lowest_below(self, node: Node) -> Node | None:
        """The lowest ancestor that is held, None when the steps are used up."""
        lowest = node
        for ancestor in self._tree.ancestors(node):
            lowest = ancestor
            self._steps -= 1
            if self._steps < 0:
                return None
        return lowest

    def _heaviest_above(self, node: Node) -> Node:
        """The heaviest of a waiting block and the blocks that wait above it, as far up as the steps allow."""
        best, pending = node, [node]
        while pending:
            current = pending.pop()
            best = max(best, current, key=lambda one: one.weight)
            children = self._tree.children(current.hash)
            if len(children) > self._steps:
                break
            self._steps -= len(children)
            pending += [child for child in children if child.number > current.number]
        return best
