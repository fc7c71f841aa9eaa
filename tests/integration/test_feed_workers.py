"""Long ranges checked by other processes: the same payloads, whatever is wrong with a block or a process."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from ethereum_blocks import Built, build, grow, replay
from feeding import QUICK, asynchronous, connected, everything, given, hashes, serving, take

from cardinal.errors import IntegrityError
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum.feed.settings import FeedSettings
from cardinal_ethereum.feed.verify.rules import Rules
from cardinal_ethereum.feed.verify.worker import VerificationJob, prepare
from cardinal_ethereum.feed.verify.worker_pool import worker_count

BESIDE = replace(QUICK, workers=2, worker_blocks=10, worker_bytes=0, fetch_blocks=8)
ONE_BESIDE = replace(BESIDE, workers=1)
ALONE = replace(QUICK, workers=0)


def children() -> set[int]:
    """The processes that this one started and that have not ended."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    if not own.exists():
        pytest.skip("the children of a process are listed by Linux only")
    return {int(pid) for pid in own.read_text().split()}


def long_chain() -> tuple[list[Built], ReplayChain]:
    """A hundred blocks, one of them with an uncle; the later ones come after the merge."""
    chain = grow(None, 50)
    uncle = build(chain[47], "u")
    chain.append(build(chain[-1], uncles=[{key: value for key, value in uncle.block.items() if key != "transactions"}]))
    chain += grow(chain[-1], 49, difficulty=0)
    served = replay(chain)
    served.safe, served.finalized = 90, 70
    return chain, served


@pytest.mark.process
@asynchronous
async def test_payloads_are_those_of_a_feed_alone() -> None:
    chain, served = long_chain()
    before = children()
    async with serving(served) as node:
        async with connected(node.url, ALONE) as feed:
            alone = await everything(feed.follow(until=99))
        async with connected(node.url, BESIDE) as feed:
            payloads = feed.follow(until=99)
            beside = await take(payloads, 5)
            assert len(children() - before) == 2
            beside += await everything(payloads)
    assert given(beside) == hashes(chain)
    assert beside == alone
    assert children() <= before


@pytest.mark.process
@asynchronous
async def test_lies_are_retried_and_repeated_ones_are_reported() -> None:
    chain, served = long_chain()
    for number in (20, 60):
        wrong = copy.deepcopy(chain[number].receipts)
        wrong[0]["logs"].clear()
        served.swap(chain[number].name, "receipts", wrong, 1 if number == 20 else 1000)
    served.hold(chain[30].name, "receipts", 1)
    async with serving(served) as node, connected(node.url, ONE_BESIDE) as feed:
        payloads = feed.follow(until=99)
        assert given(await take(payloads, 60)) == hashes(chain[:60])
        with pytest.raises(IntegrityError) as refused:
            await take(payloads, 1)
    assert refused.value.number == 60


@pytest.mark.process
@asynchronous
async def test_processes_that_are_killed_cost_nothing_but_speed() -> None:
    chain, served = long_chain()
    before = children()
    async with serving(served) as node, connected(node.url, BESIDE) as feed:
        payloads = feed.follow(until=99)
        taken = await take(payloads, 5)
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@pytest.mark.process
@asynchronous
async def test_reader_that_stops_leaves_no_process_behind() -> None:
    _, served = long_chain()
    before = children()
    async with serving(served) as node, connected(node.url, ONE_BESIDE) as feed:
        payloads = feed.follow(until=99)
        await take(payloads, 5)
        await payloads.aclose()  # type: ignore[attr-defined] # a generator
        assert children() <= before


@pytest.mark.process
@asynchronous
async def test_node_without_block_receipts_is_read_without_processes() -> None:
    chain, served = long_chain()
    async with serving(served) as node, connected(node.url, ONE_BESIDE) as feed:
        node.methods = frozenset(
            {"eth_chainId", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionReceipt"}
            | {"eth_getUncleByBlockHashAndIndex"}
        )
        assert given(await everything(feed.follow(until=99))) == hashes(chain)


@pytest.mark.process
@asynchronous
async def test_processes_are_started_only_where_enough_is_still_to_come() -> None:
    chain, served = long_chain()
    before = children()
    async with serving(served) as node:
        size = sum(len(msgspec.json.encode([block.block, block.receipts])) for block in chain)
        for enough, count in ((size // 4, 2), (size * 2, 0)):
            async with connected(node.url, replace(BESIDE, worker_bytes=enough)) as feed:
                payloads = feed.follow(until=99)
                taken = await take(payloads, 5)
                assert len(children() - before) == count
                taken += await everything(payloads)
            assert given(taken) == hashes(chain)


def test_a_block_that_is_nested_without_end_is_left_to_the_feed() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    job = VerificationJob(Rules.of(1337, QUICK), None, 0, [(deep, b"[]"), (b'{"x":%b}' % deep, b"[]")])
    assert prepare(job) == [None, None]


@pytest.mark.parametrize(("processors", "count"), [(1, 0), (2, 2), (5, 5), (64, 8)])
def test_there_is_a_process_for_each_of_several_processors_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, processors: int, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    assert worker_count(5000, FeedSettings()) == count
    assert worker_count(5000, FeedSettings(workers=3)) == 3
    assert worker_count(5000, FeedSettings(workers=0)) == 0
    assert worker_count(999, FeedSettings(workers=3)) == worker_count(999, FeedSettings()) == 0
