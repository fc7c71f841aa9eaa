"""How deep a branch goes, where the topics cannot be asked just now, and where one goes again later."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from cardinal.errors import UnreachableError
from cardinal.producing.deep_reorg import BranchDepth
from cardinal.protocols.streams import Batch, Record, encode
from cardinal.protocols.streams.types import BlockRef
from streams import TOPIC, h

TIP = h("tip")


class Topics:
    """What a sink says of its newest records; away as often as ``away`` says."""

    def __init__(self, head: int, away: int = 0) -> None:
        key, value = encode(Batch(h("1a"), head, 1, h("0a")))
        self.record = Record(TOPIC, 0, 0, key, value, 0)
        self.away = away

    def recent(self, _limit: int) -> list[Record]:
        if self.away:
            self.away -= 1
            raise UnreachableError("the broker starts again", address="broker")
        return [self.record]


def depth(head: int = 0, away: int = 0) -> BranchDepth:
    topics: Any = Topics(head, away)
    return BranchDepth(topics, 128)


def above(number: int) -> BlockRef:
    return BlockRef(number, h("ancestor"))


def test_where_the_topics_cannot_be_read_what_was_added_has_to_do_and_the_next_branch_asks_again() -> None:
    branches = depth(head=2_000, away=2)
    with pytest.raises(UnreachableError):
        branches.is_deep(above(990), TIP)
    branches.added(1_000)
    assert not branches.is_deep(above(990), TIP)
    assert branches.is_deep(above(990), TIP)


def test_a_branch_that_failed_goes_again_as_it_went_while_nothing_is_above_it() -> None:
    branches = depth()
    branches.added(1_000)
    assert not branches.is_deep(above(900), TIP)
    branches.began(TIP, 1_001)
    branches.added(1_001)
    assert not branches.is_deep(above(900), TIP)
    branches.began(TIP, 1_200)
    branches.added(1_200)
    assert not branches.is_deep(above(900), TIP), "its own blocks do not make it deeper"
    failed = Future[None]()
    failed.set_exception(RuntimeError("a broker"))
    branches.ended(TIP, failed)
    assert not branches.is_deep(above(900), TIP)
    branches.added(1_201)
    assert branches.is_deep(above(900), TIP), "the chain went on above it"


def test_a_branch_that_went_well_is_forgotten_and_so_are_the_oldest_of_many() -> None:
    branches = depth()
    branches.began(TIP, 1_000)
    branches.added(1_000)
    well = Future[None]()
    well.set_result(None)
    branches.ended(TIP, well)
    assert branches.is_deep(above(100), TIP)
    for number in range(1_000):
        branches.began(h(f"{number}b"), 1_000)
    assert len(branches._shallow) < 100
    assert not branches.is_deep(above(100), h("999b"))
