"""Origin of a stream's weights: whoever starts, where and when, a block has one weight on the topics."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from ethereum_blocks import Built, build, grow, replay
from feeding import QUICK, asynchronous, everything, opened, serving
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from blocks import DEADLINE
from cardinal import Consumer, apps
from cardinal.errors import CardinalError, NodeAnswerError, ReorgTooDeepError
from cardinal.producer import Producer
from cardinal.protocols.streams.types import ORIGIN_HEADER
from cardinal.protocols.streams.wire.codec import decode as decode_message
from cardinal.protocols.streams.wire.messages import Batch
from cardinal.server.produce import ProduceService
from cardinal_devkit.testing.memory import MemoryBroker
from cardinal_ethereum import Chain, decode, frames, verify_payload
from cardinal_ethereum.chains import CHAINS, Checkpoint
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.chain.blocks import BlockHeader
from cardinal_ethereum.feed.chain.recent_blocks import RecentBlocks
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.feed.settings import FeedSettings, StartTotal
from cardinal_ethereum.feed.verify.total_difficulty import TotalDifficulties
from cardinal_ethereum.from_rpc.header import write_header
from cardinal_ethereum.from_rpc.structures import RpcHeader
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.weights import ORIGIN, is_relative

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload

CHAIN_ID = 1337
APP = apps.get("evm", chain_id=CHAIN_ID)
FAR = 200_000
"""Number of the first block that the nodes have: too high for a sum from block 0."""
BEFORE = 10**20
"""Total difficulty below it."""


def far_chain(count: int, branch: str = "a", *, serve_total: bool = False) -> list[Built]:
    """Blocks high up in a chain; the nodes do not have what is below."""
    first = build(None, branch, number=FAR, serve_total=False)
    first.total += BEFORE
    if serve_total:
        first.block["totalDifficulty"] = hex(first.total)
    return [first, *grow(first, count - 1, branch, serve_total=serve_total)]


def batches(broker: MemoryBroker) -> dict[bytes, set[tuple[int, int]]]:
    """Number and weight of each block in all of its Batches."""
    found: dict[bytes, set[tuple[int, int]]] = defaultdict(set)
    for record in broker.records(APP.default_topic):
        if record.key and isinstance(message := decode_message(record.key, record.value), Batch):
            found[message.hash].add((message.number, message.weight))
    return found


def consumed(broker: MemoryBroker) -> list[Payload]:
    with Consumer(broker.url, APP, until="end") as consumer:
        return [block for update in consumer for block in update.added]  # type: ignore[misc] # nothing is missing here


async def published(
    broker: MemoryBroker, chain: Sequence[Built], start: int, name: str = "one", settings: FeedSettings = QUICK
) -> None:
    """Publish a chain from a block on, to its end."""
    async with serving(replay(list(chain), chain_id=CHAIN_ID)) as node:
        feed = open_feed(node.url, settings=settings)
        service = ProduceService(feed, broker.url, APP, producer_id=name, start=start, stop=chain[-1].number)
        try:
            async with asyncio.timeout(DEADLINE):
                await service.prepare()
                await service.run()
        finally:
            await service.close()


@pytest.mark.parametrize("serving_totals", [(), (0,), (1,), (0, 1)], ids=["none", "first", "second", "both"])
@pytest.mark.parametrize("starts", [(0, 5), (5, 0), (3, 3), (1, 2)])
@asynchronous
async def test_producers_that_start_together_at_different_blocks_agree_on_every_weight(
    starts: tuple[int, int], serving_totals: tuple[int, ...]
) -> None:
    """Nodes differ in what they serve, too; both producers survey the empty topics before either has published."""
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        chains = [far_chain(12, serve_total=at in serving_totals) for at in range(2)]
        async with AsyncExitStack() as opened_nodes:
            services = []
            for at, chain in enumerate(chains):
                node = await opened_nodes.enter_async_context(serving(replay(chain, chain_id=CHAIN_ID)))
                feed = open_feed(node.url, settings=QUICK)
                services.append(
                    ProduceService(
                        *(feed, broker.url, APP), producer_id=f"p{at}", start=FAR + starts[at], stop=chain[-1].number
                    )
                )
                opened_nodes.push_async_callback(services[-1].close)
            async with asyncio.timeout(DEADLINE):
                await asyncio.gather(*(service.prepare() for service in services))
                await asyncio.gather(*(service.run() for service in services))
        found = batches(broker)
        assert found.keys() >= {block.hash for block in chains[0][max(starts) :]}
        assert all(len(weights) == 1 for weights in found.values()), found
        weights = dict(next(iter(weights)) for weights in found.values())
        numbers = sorted(weights)
        assert [weights[number] - weights[number - 1] for number in numbers[1:]] == [1000] * (len(numbers) - 1)
        assert {is_relative(weight) for weight in weights.values()} in ({True}, {False})
        if serving_totals == (0, 1):
            assert weights[FAR + 11] == chains[0][-1].total


@asynchronous
async def test_a_stream_with_an_origin_has_no_total_difficulty_and_everything_else() -> None:
    chain = far_chain(4)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        await published(broker, chain, FAR)
        blocks = await asyncio.to_thread(consumed, broker)
    assert [block.weight - ORIGIN for block in blocks] == [1000, 2000, 3000, 4000]
    for block in blocks:
        verify_payload(block, Chain(chain_id=CHAIN_ID, name="far", unchecked=frozenset({"contracts"})))
        decoded = decode(block)
        assert decoded.total_difficulty is None
        assert decoded.encode() == block
    assert frames(blocks)["blocks"].column("total_difficulty").to_pylist() == [None] * 4


@asynchronous
async def test_a_restart_continues_at_the_published_parent_also_of_a_node_that_serves_totals() -> None:
    chain = far_chain(9)
    with_totals = far_chain(9, serve_total=True)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        await published(broker, chain[:1], FAR)  # the only published block is the origin
        await published(broker, chain[:4], FAR + 2)
        await published(broker, with_totals, FAR + 6, "two")
        blocks = await asyncio.to_thread(consumed, broker)
        assert all(len(weights) == 1 for weights in batches(broker).values())
    assert [block.weight - ORIGIN for block in blocks] == [1000 * at for at in range(1, 10)]


@asynchronous
async def test_a_reorg_at_the_origin_has_its_weights() -> None:
    chain = far_chain(6)
    other = build(None, "b", number=FAR, serve_total=False)
    branch = [other, *grow(other, 7, "b", serve_total=False)]
    with MemoryBroker(uuid.uuid4().hex) as broker:
        served = replay(chain, branch, chain_id=CHAIN_ID)
        async with serving(served) as node:
            feed = open_feed(node.url, settings=QUICK)
            service = ProduceService(feed, broker.url, APP, producer_id="one", start=FAR, stop=branch[-1].number)
            await service.prepare()
            running = asyncio.create_task(service.run())
            async with asyncio.timeout(DEADLINE):
                while service.progress.published != chain[-1].number:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
                served.set_head(branch[-1].name, announce="final")
                await running
            await service.close()
        weights = {block: next(iter(found))[1] - ORIGIN for block, found in batches(broker).items()}
    assert [weights[block.hash] for block in branch] == [1000 * at for at in range(1, 9)]


@asynchronous
async def test_an_origin_whose_producer_died_before_its_first_block_is_adopted() -> None:
    chain = far_chain(8)
    with MemoryBroker(uuid.uuid4().hex, partitions=4) as broker:
        with Producer(broker.url, APP, producer_id="dead") as dead:
            assert dead.settle_origin(f"{FAR + 4} 0x{chain[4].hash.hex()} {ORIGIN}").startswith(f"{FAR + 4} ")
            assert dead.settle_origin("1 0x00 0").startswith(f"{FAR + 4} ")  # the first one counts
        await published(broker, chain, FAR + 2)
        weights = {number: weight - ORIGIN for found in batches(broker).values() for number, weight in found}
    assert weights == {FAR + at: 1000 * (at - 4) for at in range(2, 8)}


@asynchronous
async def test_an_origin_that_is_not_on_the_nodes_chain_is_refused_by_name() -> None:
    chain, other = far_chain(6), far_chain(6, "b")
    with MemoryBroker(uuid.uuid4().hex) as broker:
        with Producer(broker.url, APP, producer_id="dead") as dead:
            dead.settle_origin(f"{FAR + 2} 0x{other[2].hash.hex()} {ORIGIN}")
        with pytest.raises(ReorgTooDeepError, match=rf"block {FAR + 2} \(0x{other[2].hash.hex()}\).*--topic"):
            await published(broker, chain, FAR + 4)
        assert not batches(broker)


@asynchronous
async def test_an_origin_too_far_away_is_refused_by_name() -> None:
    chain = far_chain(20)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        with Producer(broker.url, APP, producer_id="dead") as dead:
            dead.settle_origin(f"{FAR + 1} 0x{chain[1].hash.hex()} {ORIGIN}")
        with pytest.raises(CardinalError, match=f"count from block {FAR + 1} .*at most 5 blocks from it"):
            await published(broker, chain, FAR + 15, settings=replace(QUICK, sum_blocks=5))
        assert not batches(broker)


@asynchronous
async def test_a_range_whose_parent_is_not_published_gets_no_invented_weight() -> None:
    """As a repair below the origin: a served total would be of another kind than the stream's weights."""
    chain = far_chain(6, serve_total=True)
    async with opened(replay(chain, chain_id=CHAIN_ID)) as (_, feed):
        assert isinstance(feed, NodeFeed)
        feed.learn({chain[4].hash: ORIGIN + 1000})
        with pytest.raises(NodeAnswerError, match="parent is not published"):
            await everything(feed.follow(start=FAR + 1, until=FAR + 2))
        (continued,) = await everything(feed.follow(start=FAR + 5, until=FAR + 5))
    assert continued.weight == ORIGIN + 2000


# --- where a total is known ------------------------------------------------------------------------------------------


def described(*checkpoints: Built) -> FeedSettings:
    known = tuple(Checkpoint(number=one.number, hash=one.name, total=one.total) for one in checkpoints)
    return replace(QUICK, chain=Chain(chain_id=CHAIN_ID, name="described", checkpoints=known), sum_blocks=6)


@pytest.mark.parametrize("at", [2, 4, 5, 6, 7, 9], ids=str)
@asynchronous
async def test_a_checkpoint_is_summed_up_to_the_first_block_from_either_side(at: int) -> None:
    chain = far_chain(12)
    async with opened(replay(chain, chain_id=CHAIN_ID), settings=described(chain[at])) as (_, feed):
        payloads = await everything(feed.follow(start=FAR + 6, until=FAR + 11))
    assert [payload.weight for payload in payloads] == [block.total for block in chain[6:]]


@asynchronous
async def test_a_checkpoint_of_another_branch_counts_for_nothing() -> None:
    chain, other = far_chain(12), far_chain(12, "b")
    async with opened(replay(chain, chain_id=CHAIN_ID), settings=described(other[5], chain[8])) as (_, feed):
        payloads = await everything(feed.follow(start=FAR + 6, until=FAR + 6))
    assert [payload.weight for payload in payloads] == [chain[6].total]


@asynchronous
async def test_a_total_that_the_user_names_counts_and_its_block_must_exist() -> None:
    chain = far_chain(8)
    named = replace(QUICK, start_total=StartTotal(chain[3].total, chain[3].hash))
    with MemoryBroker(uuid.uuid4().hex) as broker:
        await published(broker, chain, FAR + 5, settings=named)
        assert sorted(weight for found in batches(broker).values() for _, weight in found) == [
            block.total for block in chain[5:]
        ]
    with MemoryBroker(uuid.uuid4().hex) as broker:
        absent = replace(QUICK, start_total=StartTotal(7, bytes(32)))
        with pytest.raises(CardinalError, match="check the hash"):
            await published(broker, chain, FAR + 5, settings=absent)


@pytest.mark.parametrize("form", ["text", "object", "number"])
@asynchronous
async def test_a_total_is_requested_by_a_method_of_its_own(form: str) -> None:
    chain = far_chain(3)
    total = chain[0].total
    answer = {"text": hex(total), "object": {"totalDifficulty": total % 2**60}, "number": total % 2**60}[form]
    async with opened(replay(chain, chain_id=CHAIN_ID)) as (node, feed):
        node._handlers["eth_getTdByHash"] = lambda params: answer if params == [chain[0].name] else None
        (payload,) = await everything(feed.follow(start=FAR + 1, until=FAR + 1))
    assert payload.weight == (total if form == "text" else total % 2**60) + 1000


@pytest.mark.parametrize("start", [2, 3, 4, 6])
@asynchronous
async def test_a_chain_that_merged_late_weighs_the_same_wherever_a_producer_starts(start: int) -> None:
    before = grow(None, 4, serve_total=False)
    chain = [*before, *grow(before[-1], 5, difficulty=0, serve_total=False)]
    with MemoryBroker(uuid.uuid4().hex) as broker:
        await published(broker, chain, start)
        found = sorted(next(iter(weights)) for weights in batches(broker).values())
    assert found == [(block.number, block.total + (block.number if block.number > 3 else 0)) for block in chain[start:]]


@asynchronous
async def test_no_origin_is_sent_where_weights_follow_from_the_chain() -> None:
    chain = grow(None, 4, difficulty=0)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        await published(broker, chain, 2)
        assert not [1 for record in broker.records() if any(name == ORIGIN_HEADER for name, _ in record.headers)]


# --- AuRa: a total follows from a header's step ----------------------------------------------------------------------


def sealed_by_authorities(steps: Sequence[int]) -> list[RpcHeader]:
    """Headers of authorities from block 0 on, one for each step."""
    made: list[RpcHeader] = []
    zero = f"0x{bytes(32).hex()}"
    for number, step in enumerate(steps):
        before = made[-1] if made else None
        difficulty = 0x20000 if before is None else 2**128 - 1 + steps[number - 1] - step
        header = RpcHeader(
            parent_hash=zero if before is None else before.hash,
            **dict.fromkeys(("sha3_uncles", "state_root", "transactions_root", "receipts_root"), zero),
            miner=f"0x{bytes(20).hex()}",
            logs_bloom=f"0x{bytes(256).hex()}",
            difficulty=hex(difficulty),
            number=hex(number),
            **dict.fromkeys(("gas_limit", "gas_used", "timestamp"), "0x1"),
            extra_data="0x",
            step=hex(step),
            signature=f"0x{bytes(65).hex()}",
        )
        made.append(structs.replace(header, hash=f"0x{keccak(write_header(header)).hex()}"))
    return made


def short(header: RpcHeader) -> BlockHeader:
    return BlockHeader(
        number=header.number, hash=header.hash, parent_hash=header.parent_hash, difficulty=header.difficulty
    )


class Authorities:
    """A node of such a chain that serves no totals."""

    def __init__(self, headers: Sequence[RpcHeader]) -> None:
        self._headers = headers

    async def header(self, number: int) -> BlockHeader:
        return short(self._headers[number])

    async def header_by_hash(self, block_hash: bytes) -> BlockHeader:
        return short(next(one for one in self._headers if one.hash == f"0x{block_hash.hex()}"))

    async def call(self, kind: object, method: str, name: str, *_: object) -> RpcHeader:
        if kind is not RpcHeader:
            raise NodeAnswerError(f"there is no {method}", code=-32601)
        return next(one for one in self._headers if one.hash == name)


@given(st.lists(st.integers(1, 2**40), min_size=2, max_size=12, unique=True).map(sorted))
def test_a_total_of_authorities_is_the_sum_of_all_difficulties_without_a_sum(steps: list[int]) -> None:
    headers = sealed_by_authorities([0, *steps])
    node: Any = Authorities(headers)
    chain = Chain(chain_id=9, name="authorities", step_difficulty=True)
    totals = TotalDifficulties(node, RecentBlocks([], window=9), sum_blocks=0, chain=chain)
    sums = list(itertools.accumulate(int(header.difficulty, 16) for header in headers))
    assert [asyncio.run(totals.of(short(header))) for header in headers] == sums


def test_gnosis_ended_with_the_total_that_its_last_step_gives() -> None:
    """Five seconds a step: block 25,349,536 is of the day on which Gnosis merged."""
    final = CHAINS[100].final_total_difficulty
    assert CHAINS[100].step_difficulty
    assert final is not None
    step = 0x20000 + 25_349_536 * (2**128 - 1) - final
    assert datetime.fromtimestamp(5 * step, UTC).date() == date(2022, 12, 8)


def test_checkpoints_stand_below_the_chains_final_total_and_grow() -> None:
    for chain in CHAINS.values():
        totals = [one.total for one in sorted(chain.checkpoints, key=lambda one: one.number)]
        assert totals == sorted(totals)
        assert all(total <= (chain.final_total_difficulty or 2**256) for total in totals)
