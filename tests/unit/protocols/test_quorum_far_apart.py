"""Policy `quorum:k`: producers that are very far apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cardinal.protocols.streams import Batch, BlockRef, Completed, Incomplete, Orderer, Record, Update, encode
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER

STEP = 500


def written(producer: bytes, begin: int, blocks: int) -> Iterator[list[Record]]:
    """A long chain of small blocks, in reads."""
    headers = ((PRODUCER_HEADER, producer),)
    names = [number.to_bytes(32, "big") for number in range(blocks + 1)]
    value = {"value": Update(value=bytes(100))}
    for first in range(1, blocks + 1, STEP):
        chain = (Batch(names[at], at, at, names[at - 1], value) for at in range(first, first + STEP))
        yield [Record("chain", 0, begin + one.number, *encode(one), 0, headers) for one in chain]


@pytest.mark.parametrize("blocks", [3_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_producers_that_are_far_apart_agree_on_all_blocks_and_nothing_is_read_twice(blocks: int) -> None:
    bounds = Bounds(finished_bytes=280 * blocks, votes=blocks * 32_768 // 30_000)
    assembler, orderer = QuorumReassembler(2, ("a", "b"), bounds=bounds), Orderer(start=BlockRef(0, bytes(32)))
    for records in written(b"a", 0, blocks):
        assert {type(event) for event in assembler.receive(records)} <= {Incomplete}
    assert len(assembler.open_blocks()) == blocks
    assert assembler.held_bytes < bounds.finished_bytes + blocks * 1_500
    assert 0.9 < assembler.fullness < 1
    assert assembler.open_positions() == {("chain", 0): 1}
    delivered: list[int] = []
    for records in written(b"b", blocks, blocks):
        for event in assembler.receive(records):
            assert isinstance(event, Completed)
            delivered += [block.number for update in orderer.receive(event) for block in update.added]
        assert not assembler.head_moved(delivered[-1])
    assert delivered == list(range(1, blocks + 1))
    assert assembler.open_blocks() == []
    assert assembler.open_positions() == {}
    assert assembler.held_bytes <= bounds.finished_bytes
