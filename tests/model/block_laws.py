"""Laws about single blocks: what is explained, and what is still held (laws 4 and 5 of :mod:`.laws`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cardinal.protocols.streams.events import Explanation
from cardinal.protocols.streams.following.follower import Follower
from cardinal.protocols.streams.payload import AnyPayload
from cardinal.protocols.streams.types import Partition
from cardinal_devkit.testing.generator import block_name

from .block_model import BlockModel, Model
from .scenario import Scenario

_A_STEP = 2
"""Blocks to look at after every step, in turn."""


class BlockLaws:
    """The blocks of one session; see :class:`~.laws.Laws` for the arguments."""

    def __init__(self, scenario: Scenario, follower: Follower, model: Model, began: Mapping[Partition, int]) -> None:
        self._scenario = scenario
        self._follower = follower
        self._model = model
        self._began = began
        self._whole: dict[bytes, bool] = {}
        self._turn = 0

    def look(self, chain: Sequence[AnyPayload], floor: int, given_up: Collection[bytes]) -> str | None:
        """What is wrong with the next blocks, None where nothing is.

        Arguments:
            chain: what was delivered.
            floor: blocks with a lower number may be forgotten.
            given_up: blocks that the core gave up.

        """
        blocks = list(self._model.blocks.values())
        if self._follower.resuming:
            return None
        for _ in range(min(_A_STEP, len(blocks))):
            self._turn += 1
            block = blocks[self._turn % len(blocks)]
            number = block.batch.number if block.batch else None
            if number is not None and number < floor and self._follower.orderer.holds(block.hash):
                return f"{name(block.hash)} is held, far below the head"
            if block.lowest is not None and block.lowest <= floor + self._scenario.settings.reorg_threshold // 8:
                continue  # it may be given up, or forgotten
            root = self._model.chain.root
            if block.hash in given_up or (root is not None and block.hash == root.hash) or not self._read_whole(block):
                continue
            said = self._follower.explain(block.hash)
            if not self._right(block, said, delivered=block.hash in (one.hash for one in chain)):
                return f"{name(block.hash)} is explained as {said}, it lacks {self.lacking(block.hash)}"
        return None

    def lacking(self, block_hash: bytes) -> str:
        """What the model says is missing."""
        block = self._model.blocks.get(block_hash)
        return "everything" if block is None else "nothing" if block.payload else str(block.missing())

    def _read_whole(self, block: BlockModel) -> bool:
        """Whether the session began below everything of this block."""
        known = self._whole.get(block.hash)
        if known is None:
            began = self._began
            known = self._whole[block.hash] = all(
                record.offset >= began.get((record.topic, record.partition), 0)
                for record in (self._scenario.records if any(began.values()) else ())
                if record.key[1:33] == block.hash
            )
        return known

    def _right(self, block: BlockModel, said: Explanation, *, delivered: bool) -> bool:
        if delivered:
            without = block.hash in self._scenario.doubtful and said.state == "delivered without its content"
            return without or said.state == "delivered"
        if block.payload is not None:
            return said.state not in ("open", "unknown", "delivered")
        if block.lowest is None and said.state == "unknown":
            return True  # nothing of it is followed, as far as anybody can tell
        there = (said.missing_batch, dict(said.missing_counts), said.missing_headers, dict(said.missing_parts))
        return said.state == "abandoned" or (said.state == "open" and there == tuple(block.missing()))


def name(of: bytes | None) -> str:
    """A block's name, for one line."""
    return "nothing" if of is None else block_name(of)
