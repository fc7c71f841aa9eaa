"""The total difficulty where nodes disagree on serving it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cardinal.config.url import Endpoint
from cardinal.errors import IntegrityError
from cardinal.protocols.streams.types import BlockRef
from cardinal.testing.node import JsonRpcNode
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum.chain.blocks import BlockHeader, ChainMovedError
from cardinal_connectors.ethereum.chain.fetch import BlockFetcher
from cardinal_connectors.ethereum.chain.recent_blocks import RecentBlocks
from cardinal_connectors.ethereum.rpc.client import RpcClient
from cardinal_connectors.ethereum.verify.total_difficulty import HEADERS_AT_ONCE, TotalDifficulties

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def header(number: int, *, difficulty: int, served: int | None = None) -> BlockHeader:
    return BlockHeader(
        number=hex(number),
        hash=f"0x{number:064x}",
        parent_hash=f"0x{max(0, number - 1):064x}",
        difficulty=hex(difficulty),
        total_difficulty=None if served is None else hex(served),
    )


def total_of(one: BlockHeader, *, parent_total: int | None = None) -> int:
    """Nobody listens on this node: what is told is told without asking."""

    async def ask() -> int:
        client = RpcClient(Endpoint.parse("http://127.0.0.1:9"))
        known = RecentBlocks([BlockRef(one.height - 1, one.parent)] if one.height else [], window=10)
        if parent_total is not None:
            known.learn(one.parent, parent_total)
        try:
            return await TotalDifficulties(BlockFetcher(client), known, sum_blocks=10).of(one)
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


@pytest.mark.parametrize("served", [None, 0, 1000, 10**30])
@pytest.mark.parametrize("parent_total", [None, 0])
def test_after_the_merge_a_total_that_nothing_tells_is_left_to_the_application(
    served: int | None, parent_total: int | None
) -> None:
    assert total_of(header(9, difficulty=0, served=served), parent_total=parent_total) == 0


@pytest.mark.parametrize("served", [None, 0, 1000, 1001])
def test_after_the_merge_the_parents_total_stays_whatever_the_node_serves(served: int | None) -> None:
    assert total_of(header(9, difficulty=0, served=served), parent_total=1000) == 1000


FORK = HEADERS_AT_ONCE - 50
"""The first number at which the two branches differ: in the first of two batches of headers."""

HEAD = HEADERS_AT_ONCE + 50
OWN, OTHER = 5, 7


def two_branches() -> ReplayChain:
    """Headers that serve no total, on two branches of other difficulties; the head is on the first."""
    chain = ReplayChain()
    for branch, difficulty in ((0, OWN), (1, OTHER)):
        for number in range(FORK if branch else 0, HEAD + 1):
            block: dict[str, Any] = {
                "number": hex(number),
                "hash": named(number, branch),
                "parentHash": named(number - 1, branch),
                "difficulty": hex(difficulty),
                "transactions": [],
            }
            chain.add(block, [])
    chain.set_head(named(HEAD, 0))
    return chain


def named(number: int, branch: int) -> str:
    """A block's hash; below the fork there is one branch."""
    return f"0x{branch if number >= FORK else 0:032x}{max(number, 0):032x}"


def summed(chain: ReplayChain, moves: Callable[[str], None]) -> int:
    """The head's total difficulty, added up while the chain moves: told which height is asked for next."""

    async def ask() -> int:
        def before(method: str, params: Sequence[object]) -> None:
            if method == "eth_getBlockByNumber":
                moves(str(params[0]))

        async with JsonRpcNode(chain) as node:
            client = RpcClient(Endpoint.parse(node.url))
            try:
                fetcher = BlockFetcher(client)
                head = await fetcher.header_by_hash(bytes.fromhex(named(HEAD, 0)[2:]))
                assert head is not None
                node.before = before
                return await TotalDifficulties(fetcher, RecentBlocks([], window=10), sum_blocks=HEAD).of(head)
            finally:
                await client.close()

    return asyncio.run(ask())


def test_difficulty_that_is_added_up_over_several_batches_of_headers_is_the_chains() -> None:
    assert summed(two_branches(), lambda _: None) == OWN * (HEAD + 1)


def test_chain_that_forks_and_comes_back_between_two_batches_of_headers_is_not_added_up() -> None:
    """The first batch is of one branch, the second of the other, which is the head's: each is whole in itself."""
    chain, turns = two_branches(), []

    def moves(height: str) -> None:
        branch = {hex(0): 1, hex(HEADERS_AT_ONCE): 0}.get(height)
        if branch is not None:
            turns.append(branch)
            chain.set_head(named(HEAD, branch))

    with pytest.raises(ChainMovedError, match="during the sum of its difficulties"):
        summed(chain, moves)
    assert turns == [1, 0]
    assert chain.hash_at(HEAD) == named(HEAD, 0), "it has come back"


def test_chain_that_has_forked_when_the_last_headers_are_read_is_not_added_up() -> None:
    chain = two_branches()
    with pytest.raises(ChainMovedError, match="during the sum of its difficulties"):
        summed(chain, lambda height: chain.set_head(named(HEAD, 1)) if height == hex(0) else None)
