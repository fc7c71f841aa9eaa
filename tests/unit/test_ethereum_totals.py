"""The total difficulty where nodes disagree on serving it."""

from __future__ import annotations

import asyncio

import pytest

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.types import BlockRef
from cardinal_connectors.ethereum.fetch import BlockFetcher, Header
from cardinal_connectors.ethereum.known import KnownBlocks
from cardinal_connectors.ethereum.rpc import RpcClient
from cardinal_connectors.ethereum.totals import Totals


def header(number: int, *, difficulty: int, served: int | None = None) -> Header:
    return Header(
        number=hex(number),
        hash=f"0x{number:064x}",
        parent_hash=f"0x{max(0, number - 1):064x}",
        difficulty=hex(difficulty),
        total_difficulty=None if served is None else hex(served),
    )


def total_of(one: Header, *, parent_total: int | None = None) -> int:
    """Nobody listens on this node: what is told is told without asking."""

    async def ask() -> int:
        client = RpcClient("http://127.0.0.1:9")
        known = KnownBlocks([BlockRef(one.height - 1, one.parent)] if one.height else [], window=10)
        if parent_total is not None:
            known.learn(one.parent, parent_total)
        try:
            return await Totals(BlockFetcher(client), known, sum_blocks=10).of(one)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_first_blocks_difficulty_is_its_total() -> None:
    assert total_of(header(0, difficulty=17)) == 17
    assert total_of(header(0, difficulty=17, served=17)) == 17


def test_what_the_node_serves_counts_where_nothing_contradicts_it() -> None:
    assert total_of(header(9, difficulty=5, served=1000)) == 1000
    assert total_of(header(9, difficulty=5, served=1000), parent_total=995) == 1000


@pytest.mark.parametrize("served", [None, 0])
def test_parents_total_and_own_difficulty_are_added_where_none_is_served(served: int | None) -> None:
    assert total_of(header(9, difficulty=5, served=served), parent_total=995) == 1000


@pytest.mark.parametrize(("number", "served"), [(9, 1001), (9, 999), (9, 5)])
def test_total_that_does_not_add_up_is_refused(number: int, served: int) -> None:
    with pytest.raises(IntegrityError) as refused:
        total_of(header(number, difficulty=5, served=served), parent_total=995)
    assert refused.value.check == "total difficulty"


def test_first_block_with_another_total_than_its_difficulty_is_refused() -> None:
    with pytest.raises(IntegrityError):
        total_of(header(0, difficulty=17, served=18))


@pytest.mark.parametrize("parent_total", [None, 0, 1000])
def test_after_the_merge_an_unserved_total_is_left_to_the_application(parent_total: int | None) -> None:
    assert total_of(header(9, difficulty=0, served=0), parent_total=parent_total) == 0


def test_after_the_merge_a_served_total_stays_or_is_refused() -> None:
    assert total_of(header(9, difficulty=0, served=1000), parent_total=1000) == 1000
    assert total_of(header(9, difficulty=0, served=1000), parent_total=0) == 1000
    with pytest.raises(IntegrityError):
        total_of(header(9, difficulty=0, served=1001), parent_total=1000)
