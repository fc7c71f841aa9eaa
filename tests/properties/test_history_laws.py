"""History of the delivered chain, compared with a list of its blocks."""

from __future__ import annotations

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cardinal.protocols.streams.ordering.history import ChainHistory
from cardinal.protocols.streams.types import BlockRef

MOST = 8
HASHES = [bytes([name]) * 32 for name in range(40)]


class Histories(RuleBasedStateMachine):
    """Blocks join and leave at the top, numbers are skipped, older ones are recalled, and the bound is met."""

    def __init__(self) -> None:
        super().__init__()
        self.history = ChainHistory(MOST)
        self.blocks: list[BlockRef] = []
        self.next = 20

    @rule(skipped=st.sampled_from([0, 0, 0, 3]), hashes=st.sampled_from(HASHES))
    def deliver(self, skipped: int, hashes: bytes) -> None:
        if hashes in [block.hash for block in self.blocks]:
            return  # a chain holds a block once
        number = self.next + skipped
        block = BlockRef(number, hashes)
        self.history.append(block)
        if self.blocks and skipped:
            self.blocks.clear()
        self.blocks.append(block)
        if len(self.blocks) > MOST + MOST // 4:
            del self.blocks[:-MOST]
        self.next = number + 1

    @precondition(lambda self: len(self.blocks) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.blocks) - 1))
        self.history.cut(count)
        self.next -= count
        if count:
            del self.blocks[-count:]

    @rule(parents=st.dictionaries(st.sampled_from(HASHES), st.sampled_from(HASHES)), floor=st.integers(10, 30))
    def recall(self, parents: dict[bytes, bytes], floor: int) -> None:
        """Any parents at all, also such as lead round in a circle."""
        added = 0
        while self.blocks and len(self.blocks) < MOST and self.blocks[0].number > floor:
            parent = parents.get(self.blocks[0].hash)
            if parent is None or parent in [block.hash for block in self.blocks]:
                break
            self.blocks.insert(0, BlockRef(self.blocks[0].number - 1, parent))
            added += 1
        assert self.history.recall(parents, floor) == added
        event(f"{min(added, 3)} or more recalled")

    @invariant()
    def holds_the_same(self) -> None:
        history = self.history
        assert len(history) == len(self.blocks)
        assert history.lowest == (self.blocks[0] if self.blocks else None)
        assert {one for one in HASHES if one in history} == {block.hash for block in self.blocks}
        assert [history.at(block.number) for block in self.blocks] == [block.hash for block in self.blocks]


TestHistories = Histories.TestCase
