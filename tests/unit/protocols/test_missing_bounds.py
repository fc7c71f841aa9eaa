"""Memory of suspects and watermarks while a long backlog is read, partition after partition."""

from __future__ import annotations

from cardinal.protocols.streams.following.missing import MissingBlocks

A = ("t", 0)


def test_a_partition_that_is_no_longer_read_holds_no_proof_up() -> None:
    missing = MissingBlocks()
    missing.suspect(b"first")
    missing.proven({A: 0}, None)
    assert missing.proven({A: 10}, {A: 10, ("t", 1): 4}) == [b"first"]


def test_suspects_that_become_due_before_watermarks_are_passed_are_proven_by_the_next_ones() -> None:
    missing = MissingBlocks()
    missing.suspect(b"0")
    assert missing.proven({A: 0}, None) == []
    assert missing.needs_watermarks
    assert missing.proven({A: 0}, {A: 500}) == []
    for number in range(1, 1_000):
        missing.suspect(b"%d" % number)
        assert not missing.needs_watermarks
        assert missing.proven({A: 499}, {A: number}) == []
    assert missing.proven({A: 500}, None) == [b"0"]
    assert missing.needs_watermarks
    assert missing.proven({A: 999}, {A: 1_000}) == []
    assert missing.proven({A: 1_000}, None) == [b"%d" % number for number in range(1, 1_000)]


def test_nothing_is_kept_of_suspects_that_came() -> None:
    missing = MissingBlocks()
    for number in range(10_000):
        missing.suspect(b"%d" % number)
        missing.proven({A: 0}, {A: number})
        missing.clear(b"%d" % number)
    assert not missing._suspects
    assert len(missing._requested) <= 1
