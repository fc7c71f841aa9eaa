"""A development chain: the fork script of :mod:`cardinal.testing.forks`, each planned block built as it is reached.

It goes one way, step by step, and forgets what no later step can build on; who needs old blocks keeps them
(:class:`.node.DevNode` does).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cardinal.protocols.streams.types import Finality
from cardinal.testing.forks import HeadMove, fork_script

from .blocks import BlockBuilder, DevBlock
from .settings import DevSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step(NamedTuple):
    """One move of the script and its new blocks, parents first; the last of them is the head."""

    move: HeadMove
    mined: tuple[DevBlock, ...]

    @property
    def head(self) -> DevBlock:
        """The block that leads after this step."""
        return self.mined[-1]


class DevChain:
    """An iterator over the steps of a development chain, block 0 first. Equal settings give equal bytes."""

    def __init__(self, settings: DevSettings | None = None) -> None:
        self.settings = settings or DevSettings()
        self._builder = BlockBuilder(self.settings)
        self._moves = fork_script(self.settings.forks)
        self._built: dict[str, DevBlock] = {}
        self._order: deque[DevBlock] = deque()
        self._highest = 0

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        move = next(self._moves)
        mined = []
        for plan in move.mined:
            block = self._builder.build(plan, self._built.get(plan.parent))
            self._built[plan.name] = block
            self._order.append(block)
            mined.append(block)
        self._highest = max(self._highest, move.head.number)
        self._forget()
        return Step(move, tuple(mined))

    def parent(self, block: DevBlock) -> DevBlock | None:
        """The block below; None below block 0 and where it is forgotten."""
        return self._built.get(block.plan.parent)

    def block(self, name: str) -> DevBlock | None:
        """A block of the recent past by its name, such as ``3b``."""
        return self._built.get(name)

    def finality(self, head: DevBlock) -> Finality | None:
        """What a node calls safe and finalized at this head: blocks that no reorg removes. None before the merge."""
        if not self.settings.merged:
            return None
        depth = self.settings.max_depth
        return Finality(max(0, head.plan.number - depth), max(0, head.plan.number - 2 * depth))

    def _forget(self) -> None:
        """Drop what lies lower than twice the largest depth: rule 3 of the script."""
        lowest = self._highest - 2 * self.settings.max_depth
        while self._order[0].plan.number < lowest:
            del self._built[self._order.popleft().plan.name]
