"""How deep a branch goes, where the topics cannot be asked just now."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal.errors import UnreachableError
from cardinal.producing.deep_reorg import BranchDepth
from cardinal.protocols.streams import Batch, Record, encode
from cardinal.protocols.streams.types import BlockRef
from streams import TOPIC, h


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
        branches.is_deep(above(990))
    branches.added(1_000)
    assert not branches.is_deep(above(990))
    assert branches.is_deep(above(990))
