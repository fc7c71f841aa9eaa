"""A development chain as a node has it: blocks by hash, the canonical chain, and a way to let time pass.

It implements :class:`cardinal.testing.node.NodeChain`, so :class:`cardinal.testing.node.JsonRpcNode` serves it.

Rules:

1. :meth:`DevChain.step` takes the script one step on; nothing happens otherwise.
2. Orphans are kept, like on geth, unless ``forget`` is set, like on anvil.
3. Only the last block of a step is announced, as geth does after a reorg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .blocks import BlockBuilder, DevBlock
from .script import ScriptSettings, script

CHAIN_ID: Final = 1337


@dataclass(frozen=True, slots=True)
class DevSettings:
    """A development chain: its script, its id, and the most transactions in a block."""

    script: ScriptSettings = field(default_factory=ScriptSettings)
    chain_id: int = CHAIN_ID
    transactions: int = 6
    forget: bool = False


class DevChain:
    """The chain; it begins with its genesis block."""

    def __init__(self, settings: DevSettings | None = None) -> None:
        self.settings = settings or DevSettings()
        self._builder = BlockBuilder(self.settings.script.seed, self.settings.chain_id, self.settings.transactions)
        self._steps: Iterator[tuple[DevBlock, ...]] = self._play()
        self._by_index: dict[int, DevBlock] = {}
        self._blocks: dict[str, DevBlock] = {}
        self._canonical: list[DevBlock] = []
        self._listeners: list[Callable[[object], None]] = []
        self.finished = False
        self.step()

    def _play(self) -> Iterator[tuple[DevBlock, ...]]:
        for step in script(self.settings.script):
            built = []
            for plan in step.blocks:
                block = self._builder.build(plan, self._by_index.get(plan.parent))
                self._by_index[plan.index] = block
                built.append(block)
            yield tuple(built)

    def step(self) -> tuple[DevBlock, ...]:
        """Take the next step of the script; returns its new blocks, oldest first, none at the end."""
        built = next(self._steps, ())
        if not built:
            self.finished = True
            return ()
        orphans = self._canonical[built[0].plan.number :]
        del self._canonical[built[0].plan.number :]
        self._canonical += built
        for block in built:
            self._blocks[block.hash] = block
        if self.settings.forget:
            for orphan in orphans:
                del self._blocks[orphan.hash]
        for listener in list(self._listeners):
            listener(_header(built[-1]))
        return built

    @property
    def subscribers(self) -> int:
        """How many are told of new heads."""
        return len(self._listeners)

    def canonical(self) -> list[DevBlock]:
        """The chain as it stands, the genesis block first."""
        return list(self._canonical)

    # --- what a node answers ---------------------------------------------------------------------------------

    def chain_id(self) -> int:
        """The chain id."""
        return self.settings.chain_id

    def head(self) -> int:
        """The number of the newest block."""
        return self._canonical[-1].plan.number

    def mark(self, tag: str) -> int | None:
        """Nothing is safe or finalized before the merge."""
        del tag
        return None

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block with this number."""
        return self._canonical[number].hash if 0 <= number < len(self._canonical) else None

    def block(self, block_hash: str, *, full: bool) -> dict[str, Any] | None:
        """The block, canonical or an orphan that is kept."""
        found = self._blocks.get(block_hash)
        if found is None or full:
            return None if found is None else found.block
        return {**found.block, "transactions": [transaction["hash"] for transaction in found.block["transactions"]]}

    def receipts(self, block_hash: str) -> list[dict[str, Any]] | None:
        """The block's receipts in order."""
        found = self._blocks.get(block_hash)
        return None if found is None else found.receipts

    def transaction_receipt(self, transaction_hash: str) -> dict[str, Any] | None:
        """The receipt of a transaction of the canonical chain."""
        for block in reversed(self._canonical):
            for receipt in block.receipts:
                if receipt["transactionHash"] == transaction_hash:
                    return receipt
        return None

    def uncle(self, block_hash: str, index: int) -> None:
        """There are no uncles."""
        del block_hash, index

    def subscribe(self, listener: Callable[[object], None]) -> Callable[[], None]:
        """Tell ``listener`` every new head until the returned call is made."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def _header(block: DevBlock) -> dict[str, Any]:
    return {name: value for name, value in block.block.items() if name not in ("transactions", "uncles", "size")}
