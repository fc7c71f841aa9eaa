"""Arbiter: streams that are not to be read, for what they send could not be accepted."""

from __future__ import annotations

import pytest

from cardinal_ingest.body.body_pb2 import Header, Item, Proof
from cardinal_ingest.protocols.publish import Arbiter, ArbiterSettings, BlockEnd, BlockId, BlockItemSet, Failure

MOST = 3


def header(number: int, branch: str = "") -> bytes:
    hashes = {"hash": label(number, branch), "parent": label(number - 1, branch)} if branch else {}
    item: bytes = Item(header=Header(number=number, **hashes)).SerializeToString()
    return item


def label(number: int, branch: str) -> bytes:
    return f"{number}{branch}".encode().ljust(32, b".")


def push(arbiter: Arbiter, connection: str, number: int, branch: str = "") -> None:
    """A complete block."""
    proof = Item(proof=Proof(number=number)).SerializeToString()
    arbiter.receive(connection, BlockItemSet((header(number, branch), proof)), 0.0)
    arbiter.receive(connection, BlockEnd(number), 0.0)


@pytest.fixture
def line() -> Arbiter:
    arbiter = Arbiter(ArbiterSettings(first=1, max_open_blocks=MOST))
    for connection in "ab":
        arbiter.connect(connection, connection, 0.0)
    return arbiter


def test_a_stream_is_not_read_between_blocks_while_as_many_are_open_as_may_be(line: Arbiter) -> None:
    for number in range(1, MOST + 1):
        assert not line.must_wait("a")
        push(line, "a", number)
    assert line.must_wait("a")
    assert line.must_wait("b")
    line.persisted(BlockId(1), 1, 0.0)
    assert line.must_wait("a"), "it is not verified"
    line.verified(BlockId(1), 1, 0.0)
    assert not line.must_wait("a")
    assert not line.must_wait("c"), "nobody is connected by this name"


def test_the_stream_of_an_open_block_is_read(line: Arbiter) -> None:
    push(line, "a", 1)
    push(line, "a", 2)
    line.receive("b", BlockItemSet((header(3),)), 0.0)
    assert line.must_wait("a")
    assert not line.must_wait("b")


def test_a_block_that_is_wanted_is_read_from_any(line: Arbiter) -> None:
    for number in range(1, MOST + 1):
        push(line, "a", number)
    assert line.must_wait("b")
    line.failed(BlockId(1), 1, Failure.BAD, 0.0)
    assert not line.must_wait("b")


def test_with_forks_a_branch_and_an_identity_are_bounded() -> None:
    stored = {BlockId(0, label(0, "a")): label(-1, "a")}
    arbiter = Arbiter(ArbiterSettings(max_open_blocks=MOST, reorg_threshold=8), stored)
    for connection, identity in (("a", "one"), ("b", "two"), ("c", "one")):
        arbiter.connect(connection, identity, 0.0)
    for number in range(1, MOST + 1):
        assert not arbiter.must_wait("a")
        push(arbiter, "a", number, "a")
    assert arbiter.must_wait("a")
    assert not arbiter.must_wait("b"), "it has offered nothing yet"
    push(arbiter, "b", MOST, "a")
    assert arbiter.must_wait("b"), "it follows the same branch"
    arbiter.persisted(BlockId(1, label(1, "a")), 1, 0.0)
    arbiter.verified(BlockId(1, label(1, "a")), 1, 0.0)
    assert not arbiter.must_wait("a")
