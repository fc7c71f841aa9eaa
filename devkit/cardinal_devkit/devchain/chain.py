"""Development chain: the fork script of :mod:`cardinal_devkit.testing.forks` with a built block for each planned one.

It advances step by step and prunes blocks on which no later step can build; :class:`.node.DevNode` stores all blocks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cardinal.protocols.streams.types import Finality
from cardinal_devkit.testing.forks import HeadMove, fork_script

from .blocks import BlockBuilder, DevBlock
from .settings import DevSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


class ChainStep(NamedTuple):
    """Step of the script with its new blocks, parents first; the last of them is the head."""

    move: HeadMove
    mined: tuple[DevBlock, ...]

    @property
    def head(self) -> DevBlock:
        """The head after this step."""
        return self.mined[-1]


class DevChain:
    """Iterator over the steps of a development chain, block 0 first. Equal settings give equal bytes."""

    def __init__(self, settings: DevSettings | None = None) -> None:
        self.settings = settings or DevSettings()
        self._builder = BlockBuilder(self.settings)
        self._moves = fork_script(self.settings.forks)
        self._built: dict[str, DevBlock] = {}
        self._order: deque[DevBlock] = deque()
        self._highest = 0

    def __iter__(self) -> Iterator[ChainStep]:
        return self

    def __next__(self) -> ChainStep:
        move = next(self._moves)
        mined = []
        for plan in move.mined:
            block = self._builder.build(plan, self._built.get(plan.parent))
            self._built[plan.name] = block
            self._order.append(block)
            mined.append(block)
        self._highest = max(self._highest, move.head.number)
        self._prune()
        return ChainStep(move, tuple(mined))

    def parent(self, block: DevBlock) -> DevBlock | None:
        """The parent block; None for block 0 and for a pruned parent."""
        return self._built.get(block.plan.parent)

    def block(self, name: str) -> DevBlock | None:
        """A block of the recent past by its name, such as ``3b``."""
        return self._built.get(name)

    def finality(self, head: DevBlock) -> Finality | None:
        """Finality at this head, which no reorg removes; None before the merge."""
        if not self.settings.merged:
            return None
        depth = self.settings.max_depth
        return Finality(max(0, head.plan.number - depth), max(0, head.plan.number - 2 * depth))

    def _prune(self) -> None:
        """Prune blocks more than twice the largest depth below the highest: rule 3 of the script."""
        lowest = self._highest - 2 * self.settings.max_depth
        while self._order[0].plan.number < lowest:
            del self._built[self._order.popleft().plan.name]
