"""Policy `quorum:k`: producers that are very far apart."""

from __future__ import annotations

from collections.abc import Iterator

from cardinal.protocols.streams import Batch, BlockRef, Completed, Incomplete, Orderer, Record, Update, encode
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER

BLOCKS = 30_000
STEP = 500


def written(producer: bytes, begin: int) -> Iterator[list[Record]]:
    """A long chain of small blocks, in reads."""
    headers = ((PRODUCER_HEADER, producer),)
    names = [number.to_bytes(32, "big") for number in range(BLOCKS + 1)]
    value = {"value": Update(value=bytes(100))}
    for first in range(1, BLOCKS + 1, STEP):
        chain = (Batch(names[at], at, at, names[at - 1], value) for at in range(first, first + STEP))
        yield [Record("chain", 0, begin + one.number, *encode(one), 0, headers) for one in chain]


def test_producers_that_are_thirty_thousand_blocks_apart_agree_on_all_of_them_and_nothing_is_read_twice() -> None:
    bounds = Bounds(finished_bytes=8 << 20)
    assembler, orderer = QuorumReassembler(2, ("a", "b"), bounds=bounds), Orderer(start=BlockRef(0, bytes(32)))
    for records in written(b"a", 0):
        assert {type(event) for event in assembler.receive(records)} <= {Incomplete}
    assert len(assembler.open_blocks()) == BLOCKS
    assert assembler.held_bytes < bounds.finished_bytes + BLOCKS * 1_500
    assert 0.9 < assembler.fullness < 1
    assert assembler.open_positions() == {("chain", 0): 1}
    delivered: list[int] = []
    for records in written(b"b", BLOCKS):
        for event in assembler.receive(records):
            assert isinstance(event, Completed)
            delivered += [block.number for update in orderer.receive(event) for block in update.added]
        assert not assembler.head_moved(delivered[-1])
    assert delivered == list(range(1, BLOCKS + 1))
    assert assembler.open_blocks() == []
    assert assembler.open_positions() == {}
    assert assembler.held_bytes <= bounds.finished_bytes
