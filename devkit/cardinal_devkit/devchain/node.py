"""Development node: a development chain with blocks by hash, a moving head, and subscribers.

    node = DevNode(DevSettings(seed=7))
    async with JsonRpcNode(node) as served:      # of cardinal_devkit.testing.node
        await node.play(rate=4)

Rules:

1. The head moves only when :meth:`DevNode.step` is called; :meth:`DevNode.play` calls it at a rate.
2. A step's blocks and receipts are available before its head is announced.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.testing.replay import Announce, ReplayChain

from .chain import ChainStep, DevChain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .settings import DevSettings

Orphans: TypeAlias = Literal["keep", "forget"]
"""Policy for orphans: available by hash, as on geth, or removed, as on anvil."""


class DevNode(ReplayChain):
    """Node on a development chain, at block 0.

    Arguments:
        settings: the chain.
        orphans: policy for orphans. A removed branch that returns is available again.
        announce: the announced blocks of a reorg: the ``final`` one, as on geth, or ``each``, as on anvil.

    Attributes:
        finished: the script has ended; the node still answers requests.

    """

    def __init__(
        self, settings: DevSettings | None = None, *, orphans: Orphans = "keep", announce: Announce = "final"
    ) -> None:
        self._script = DevChain(settings)
        self.settings = self._script.settings
        super().__init__(chain_id=self.settings.chain_id)
        self._forgets = orphans == "forget"
        self._announce: Announce = announce
        self.finished = False
        self._upcoming: ChainStep | None = None
        self.step()

    def step(self) -> ChainStep | None:
        """Play the next step of the script; None when it has ended."""
        step = self._upcoming or next(self._script, None)
        self._upcoming = None
        if step is None:
            self.finished = True
            return None
        for block in step.mined:
            self.add(block.block, block.receipts)
        if self._forgets:
            self._revive(step)
        marks = self._script.finality(step.head)
        if marks is not None:
            self.safe, self.finalized = marks.safe, marks.finalized
        self.set_head(step.head.block["hash"], announce=self._announce)
        if self._forgets:
            for name in step.move.removed:
                if (orphan := self._script.block(name)) is not None:
                    self.forget(orphan.block["hash"])
        return step

    def step_to(self, number: int) -> None:
        """Play without pauses until the head has this number, or the script has ended."""
        while not self.finished and self.head() < number:
            self.step()

    @property
    def reorg_is_next(self) -> bool:
        """True if the next step removes blocks from the chain."""
        if self._upcoming is None:
            self._upcoming = next(self._script, None)
        return self._upcoming is not None and bool(self._upcoming.move.removed)

    @property
    def subscribers(self) -> int:
        """Number of subscribers to new heads."""
        return len(self._listeners)

    async def play(self, rate: float, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Play to the end at ``rate`` blocks per second; ``before`` runs before each step and may delay it."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if before is not None:
                await before()
                due = max(due, clock() - 1 / rate)  # a delay is not followed by a burst
            step = self.step()
            if step is None:
                return
            due += len(step.mined) / rate
            await asyncio.sleep(max(0.0, due - clock()))

    def canonical(self) -> list[BlockRef]:
        """The current chain, block 0 first."""
        hashes = [self.hash_at(number) for number in range(self.head() + 1)]
        return [BlockRef(number, bytes.fromhex(name[2:])) for number, name in enumerate(hashes) if name is not None]

    def _revive(self, step: ChainStep) -> None:
        """Restore removed orphans that are on the chain again."""
        for name in step.move.added[: -len(step.mined)]:
            if (block := self._script.block(name)) is not None:
                self.add(block.block, block.receipts)
