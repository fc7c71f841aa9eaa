"""Memory of suspects and watermarks while a long backlog is read, partition after partition."""

from __future__ import annotations

from cardinal.protocols.streams.following.missing import MissingBlocks

A = ("t", 0)


def test_a_partition_that_is_no_longer_read_holds_no_proof_up() -> None:
    missing = MissingBlocks()
    missing.suspect(b"first")
    missing.proven({A: 0}, None)
    assert missing.proven({A: 10}, {A: 10, ("t", 1): 4}) == [b"first"]


def test_watermarks_are_bounded_and_the_newest_prove_for_those_between() -> None:
    missing = MissingBlocks()
    for number in range(1_000):
        missing.suspect(b"%d" % number)
        assert missing.proven({A: 0}, {A: number}) == []
    missing.proven({A: 0}, {A: 1_000})
    assert len(missing._proofs) <= 100
    assert missing.proven({A: 50}, None) == [b"%d" % number for number in range(50)]
    assert missing.proven({A: 999}, None) == [b"%d" % number for number in range(50, 99)]
    assert missing.proven({A: 1_000}, None) == [b"%d" % number for number in range(99, 1_000)]


def test_nothing_is_kept_of_suspects_that_came() -> None:
    missing = MissingBlocks()
    for number in range(10_000):
        missing.suspect(b"%d" % number)
        missing.proven({A: 0}, {A: number})
        missing.clear(b"%d" % number)
    assert not missing._suspects
    assert sum(len(suspects) for _, suspects in missing._proofs) <= 200
