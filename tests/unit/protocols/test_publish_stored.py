"""Blocks from other sources at the arbiter: what it lacks, what joins its chain, what waits for an ancestor."""

from __future__ import annotations

from cardinal.protocols.publish import Acknowledged, Arbiter, ArbiterSettings, BlockId


def test_blocks_by_number() -> None:
    arbiter = Arbiter(ArbiterSettings(first=5))
    assert arbiter.floor == 4
    assert [number for number in range(10) if arbiter.lacks(BlockId(number))] == [5, 6, 7, 8, 9]
    assert [number for number in range(10) if arbiter.joins(BlockId(number), BlockId(number - 1))] == [0, 1, 2, 3, 4, 5]
    assert arbiter.stored(BlockId(6), b"", 0.0) == []
    assert arbiter.unlinked(BlockId(6))
    assert not arbiter.lacks(BlockId(6))
    assert not arbiter.unlinked(BlockId(7))
    effects = arbiter.stored(BlockId(5), b"", 0.0)
    assert effects == [Acknowledged(BlockId(5), BlockId(4)), Acknowledged(BlockId(6), BlockId(5))]
    assert arbiter.floor == 6
    assert not arbiter.unlinked(BlockId(6))
    assert not arbiter.lacks(BlockId(6))


def test_branches() -> None:
    def block(number: int, fork: str = "a") -> BlockId:
        return BlockId(number, fork.encode() * 32)

    arbiter = Arbiter(ArbiterSettings(first=5, reorg_threshold=2))
    assert arbiter.joins(block(5), block(4))
    assert not arbiter.joins(block(6), block(5))
    for number in range(5, 9):
        arbiter.stored(block(number), block(number - 1).hash, 0.0)
    assert arbiter.floor == 6
    assert not arbiter.lacks(block(8))
    assert not arbiter.lacks(block(6, "b")), "it is too deep"
    assert arbiter.lacks(block(7, "b"))
    assert arbiter.joins(block(9, "b"), block(8))
    assert not arbiter.joins(block(9, "b"), block(8, "b"))
    arbiter.stored(block(9, "b"), block(8, "b").hash, 0.0)
    assert arbiter.unlinked(block(9, "b"))
    arbiter.stored(block(8, "b"), block(7).hash, 0.0)
    assert not arbiter.unlinked(block(9, "b"))
