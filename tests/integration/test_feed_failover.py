"""Failover between several nodes of one chain: outages, lag, forks and false blocks."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from ethereum_blocks import Built, grow, replay
from feeding import (
    QUICK,
    SCHEMES,
    address,
    assert_lawful,
    asynchronous,
    connected,
    everything,
    given,
    hashes,
    looks,
    next_after_looks,
    opened,
    refs,
    serving,
    take,
)
from rpc_script import QUICK as QUICK_RPC
from rpc_script import answering, calls, refusal, result, scripted

from cardinal.config.url import Endpoint
from cardinal.errors import (
    CardinalError,
    IntegrityError,
    NodeAnswerError,
    NodeUnreachableError,
    ReorgTooDeepError,
    WrongChainError,
)
from cardinal_devkit.testing.node import JsonRpcNode, NodeLimits
from cardinal_devkit.testing.proxy import Link, TcpProxy
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.nodes.retry_policy import RetryPolicy
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.settings import FeedSettings, RpcSettings

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed


SOON = replace(QUICK, watch=0.01, rest=60.0)


@dataclass
class Several:
    nodes: list[JsonRpcNode]
    feed: BlockFeed


@asynccontextmanager
async def several(*chains: ReplayChain, scheme: str = "http", options: str = "") -> AsyncIterator[Several]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(serving(chain)) for chain in chains]
        urls = ",".join(address(node, scheme) for node in nodes)
        yield Several(nodes, await stack.enter_async_context(connected(urls + options, SOON)))


def at(chain: Sequence[Built], head: int) -> ReplayChain:
    """A replay whose head is this block of the chain."""
    served = replay(list(chain))
    served.set_head(chain[head].name, announce="silent")
    return served


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_goes_away_is_left_for_the_other_at_once(scheme: str) -> None:
    chain = grow(None, 30)
    first, second = at(chain, 9), at(chain, 9)
    async with several(first, second, scheme=scheme) as these:
        payloads = these.feed.follow(until=29)
        taken = await take(payloads, 10)
        await these.nodes[0].stop()
        second.set_head(chain[29].name)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_all_nodes_away_are_waited_for_and_any_that_comes_back_will_do() -> None:
    chain = grow(None, 12)
    first, second = at(chain, 5), at(chain, 5)
    async with several(first, second, options="#patience=20") as these:
        payloads = these.feed.follow(until=11)
        taken = await take(payloads, 6)
        coming = asyncio.ensure_future(anext(payloads))
        for node in these.nodes:
            await node.stop()
        second.set_head(chain[11].name)
        await these.nodes[1].start()
        async with asyncio.timeout(60):
            taken.append(await coming)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_all_nodes_away_for_longer_than_the_patience_is_one_sentence() -> None:
    chain = grow(None, 5)
    async with several(at(chain, 4), at(chain, 4), options="#patience=0.2&attempts=1") as these:
        payloads = these.feed.follow()
        await take(payloads, 5)
        for node in these.nodes:
            await node.stop()
        with pytest.raises(NodeUnreachableError, match="no node answers at"):
            await take(payloads, 1)


@asynchronous
async def test_failover_node_that_lags_gives_nothing_twice_and_continues_when_it_is_there() -> None:
    chain = grow(None, 30)
    first, second = at(chain, 20), at(chain, 12)
    async with several(first, second) as these:
        payloads = these.feed.follow(until=29)
        taken = await take(payloads, 21)
        await these.nodes[0].stop()
        coming = asyncio.ensure_future(anext(payloads))
        await looks(these.nodes[1])
        assert not coming.done()
        second.set_head(chain[18].name)
        await looks(these.nodes[1])
        assert not coming.done()
        second.set_head(chain[29].name)
        taken += [await coming, *await everything(payloads)]
    assert given(taken) == hashes(chain)


@asynchronous
async def test_failover_node_on_another_fork_is_followed_from_the_common_ancestor() -> None:
    trunk = grow(None, 10)
    ours, theirs = grow(trunk[-1], 4, "a"), grow(trunk[-1], 6, "b")
    first, second = replay([*trunk, *ours]), replay([*trunk, *theirs])
    async with several(first, second) as these:
        payloads = these.feed.follow(until=15)
        taken = await take(payloads, 14)
        await these.nodes[0].stop()
        taken += await everything(payloads)
    assert given(taken) == hashes([*trunk, *ours, *theirs])
    assert_lawful(taken)


@asynchronous
async def test_failover_node_that_has_nothing_of_the_stream_is_never_followed() -> None:
    trunk, ours = grow(None, 1), grow(None, 20)[1:]
    stranger = replay([*trunk, *grow(trunk[-1], 30, "z")])
    chain = [*trunk, *ours]
    first = at(chain, 15)
    published = refs(chain[10:13])
    async with several(first, stranger, options="#patience=20") as these:
        payloads = these.feed.follow(published, until=19)
        taken = await take(payloads, 3)
        await these.nodes[0].stop()
        coming = asyncio.ensure_future(anext(payloads))
        await looks(these.nodes[1], 2)
        first.set_head(chain[19].name)
        await these.nodes[0].start()
        async with asyncio.timeout(60):
            taken.append(await coming)
        taken += await everything(payloads)
        assert given(taken) == hashes(chain[13:])
    async with several(stranger, stranger) as these:
        with pytest.raises(ReorgTooDeepError):
            await everything(these.feed.follow(published, until=19))


@asynchronous
async def test_node_that_falls_behind_is_left_while_it_still_answers(caplog: pytest.LogCaptureFixture) -> None:
    chain = grow(None, 40)
    first, second = at(chain, 10), at(chain, 10)
    with caplog.at_level(logging.WARNING):
        async with several(first, second) as these:
            payloads = these.feed.follow(until=39)
            taken = await take(payloads, 11)
            second.set_head(chain[39].name)
            taken += await everything(payloads)
    assert given(taken) == hashes(chain)
    assert any("blocks behind" in message for message in caplog.messages)


@asynchronous
async def test_block_that_one_node_gets_wrong_is_fetched_from_the_other() -> None:
    chain = grow(None, 10)
    first, second = at(chain, 9), at(chain, 9)
    wrong = copy.deepcopy(chain[4].receipts)
    wrong[0]["logs"].clear()
    first.swap(chain[4].name, "receipts", wrong, 1000)
    async with several(first, second) as these:
        taken = await everything(these.feed.follow(until=9))
        assert given(taken) == hashes(chain)
        assert these.nodes[1].calls["eth_getBlockByHash"] == 1


@asynchronous
async def test_block_that_no_node_gets_right_is_reported_and_never_given() -> None:
    chain = grow(None, 10)
    nodes = [at(chain, 9), at(chain, 9)]
    for served in nodes:
        wrong = copy.deepcopy(chain[4].block)
        wrong["stateRoot"] = wrong["transactionsRoot"]
        served.swap(chain[4].name, "block", wrong, 10_000)
    async with several(*nodes) as these:
        payloads = these.feed.follow(until=9)
        assert given(await take(payloads, 4)) == hashes(chain[:4])
        with pytest.raises(IntegrityError) as refused:
            await take(payloads, 1)
    assert (refused.value.number, refused.value.check) == (4, "hash")


@asynchronous
async def test_chain_that_one_node_made_up_is_left_for_the_other_nodes() -> None:
    chain = grow(None, 20)
    lies = [copy.deepcopy(block) for block in chain]
    for block in lies[8:]:
        block.block["gasUsed"] = "0x1"
    first, second = replay(lies), at(chain, 19)
    async with several(first, second) as these:
        assert given(await everything(these.feed.follow(until=19))) == hashes(chain)


@asynchronous
async def test_node_of_another_chain_is_named_and_never_used(caplog: pytest.LogCaptureFixture) -> None:
    chain, another = grow(None, 10), grow(None, 30, "z")
    for stranger in (replay(chain, chain_id=6), replay(another)):
        first = at(chain, 5)
        async with several(first, stranger, options="#patience=0.2&attempts=1") as these:
            payloads = these.feed.follow()
            taken = await take(payloads, 6)
            change = partial(first.set_head, chain[9].name)
            taken.append(await next_after_looks(payloads, these.nodes[0], change))
            taken += await take(payloads, 3)
            assert given(taken) == hashes(chain)
            await these.nodes[0].stop()
            with pytest.raises(NodeUnreachableError):
                await take(payloads, 1)
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2
    assert "serves chain 6, not chain 1337" in told[0]
    assert "first block" in told[1]


@asynchronous
async def test_node_that_comes_back_with_another_chain_is_left_for_the_other() -> None:
    chain, another = grow(None, 10), grow(None, 30, "z")
    first, second = at(chain, 5), at(chain, 5)
    async with several(first, second, options="#patience=20") as these:
        payloads = these.feed.follow(until=9)
        taken = await take(payloads, 6)
        coming = asyncio.ensure_future(anext(payloads))
        for node in these.nodes:
            await node.stop()
        these.nodes[0].chain = replay(another)
        await these.nodes[0].start()
        second.set_head(chain[9].name)
        await these.nodes[1].start()
        async with asyncio.timeout(60):
            taken.append(await coming)
        taken += await everything(payloads)
    assert given(taken) == hashes(chain)


@asynchronous
async def test_block_by_hash_comes_from_whichever_node_has_it() -> None:
    trunk = grow(None, 5)
    orphan = grow(trunk[-1], 1, "b")
    async with several(replay(trunk), replay(trunk, orphan)) as these:
        payload = await these.feed.block(orphan[0].hash)  # type: ignore[attr-defined] # what a feed may have beside
        assert payload is not None
        assert payload.hash == orphan[0].hash
        await these.nodes[0].stop()
        assert await these.feed.block(orphan[0].hash) == payload  # type: ignore[attr-defined] # the same


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_a_node_that_accepts_only_small_batches_gets_smaller_ones(scheme: str) -> None:
    chain = grow(None, 60)
    async with serving(replay(chain), limits=NodeLimits(batch=5, body=4096)) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        assert given(await everything(feed.follow(until=59))) == hashes(chain)
        await feed.close()


@asynchronous
async def test_receipts_are_requested_singly_of_a_node_without_block_receipts() -> None:
    chain = grow(None, 30)
    async with opened(replay(chain)) as (node, feed):
        node.methods = frozenset(
            {"eth_chainId", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionReceipt"}
        )
        assert given(await everything(feed.follow(until=29))) == hashes(chain)
    assert node.calls["eth_getTransactionReceipt"] == sum(len(block.receipts) for block in chain)


@asynchronous
async def test_nodes_own_error_text_is_passed_on() -> None:
    async with opened(replay(grow(None, 4)), settings=replace(QUICK, patience=0.1)) as (node, feed):
        await feed.chain_id()

        def break_down(method: str, _: object) -> None:
            if method == "eth_getBlockReceipts":
                raise NodeAnswerError("leveldb: corrupted block 0x2", code=-32000)

        node.before = break_down
        with pytest.raises(NodeUnreachableError, match=r"eth_getBlockReceipts .*-32000: leveldb: corrupted block 0x2"):
            await everything(feed.follow(until=3))


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_socket_that_is_lost_is_opened_again(scheme: str) -> None:
    chain = grow(None, 30)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served, scheme) as (node, feed):
        payloads = feed.follow()
        taken = await take(payloads, 5)
        for block in chain[5:]:
            await node.disconnect()
            served.set_head(block.name)
            taken += await take(payloads, 1)
    assert given(taken) == hashes(chain)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_node_that_was_never_there_is_one_sentence_without_the_urls_secrets(scheme: str) -> None:
    async with JsonRpcNode(replay(grow(None, 1))) as node:
        port = node.port
    feed = open_feed(f"{scheme}://user:sesame@127.0.0.1:{port}/v3/sesame?key=sesame", settings=QUICK)
    with pytest.raises(NodeUnreachableError) as away:
        await everything(feed.follow())
    await feed.close()
    assert away.value.address == f"{scheme}://127.0.0.1:{port}"
    assert away.value.address in str(away.value)
    assert_secret_kept(away.value)


@asynchronous
async def test_node_that_stays_away_is_given_up_after_the_patience(caplog: pytest.LogCaptureFixture) -> None:
    chain = grow(None, 3)
    impatient = FeedSettings(rpc=RpcSettings(attempts=2, backoff=0.01), poll=0.02, patience=0.3)
    async with JsonRpcNode(replay(chain)) as node:
        feed = open_feed(f"http://user:sesame@127.0.0.1:{node.port}/sesame", settings=impatient)
        payloads = feed.follow()
        await take(payloads, 3)
        await node.stop()
        with caplog.at_level(logging.INFO), pytest.raises(NodeUnreachableError) as away:
            await take(payloads, 1)
        await feed.close()
    assert_secret_kept(away.value)
    assert "retrying for 0.3 seconds" in caplog.text
    assert "sesame" not in caplog.text


def test_node_is_waited_for_without_end_where_no_patience_is_set() -> None:
    now = [0.0]
    retries = RetryPolicy("http://node", FeedSettings(), lambda: now[0])
    away = NodeUnreachableError("no node answers at http://node", address="http://node")
    for now[0] in (0.0, 3_600.0, 1e9):
        assert retries.unreachable(away, delivered=False) == FeedSettings().poll
        assert retries.waits_for == str(away)


@asynchronous
async def test_node_that_has_not_caught_up_is_waited_for() -> None:
    chain = grow(None, 12)
    served = replay(chain)
    served.set_head(chain[3].name)
    async with opened(served) as (node, feed):
        payloads = feed.follow(refs(chain[6:9]), until=11)
        first = await next_after_looks(payloads, node, lambda: served.set_head(chain[11].name))
        assert given([first, *await everything(payloads)]) == hashes(chain[9:])


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_feed_that_is_closed_while_it_reads_leaves_nothing_open(scheme: str) -> None:
    async with opened(replay(grow(None, 200)), scheme) as (node, feed):
        payloads = feed.follow()
        await take(payloads, 3)
        node.delay = 0.2
        await feed.close()
        with pytest.raises(NodeAnswerError, match="was closed"):
            await everything(payloads)
        await feed.close()


def assert_secret_kept(error: CardinalError) -> None:
    chain: BaseException | None = error
    while chain is not None:
        assert "sesame" not in f"{chain} {chain!r} {vars(chain)}"
        chain = chain.__cause__


# --- what may happen to bytes on their way from a node: cut, too many, packed, sent elsewhere, their socket replaced -


PATIENT = replace(QUICK, rpc=RpcSettings(timeout=5, attempts=30, backoff=0.001), fetch_blocks=5, patience=60.0)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_connection_that_is_cut_in_the_middle_of_an_answer_loses_nothing(scheme: str) -> None:
    """Connections live for so many bytes, now few and now many; they end in headers, between frames and inside them."""
    chain = grow(None, 60)
    served = replay(chain)
    dice = random.Random(7)
    async with serving(served) as node:
        with TcpProxy(f"127.0.0.1:{node.port}") as proxy:
            async with connected(f"{scheme}://{proxy.address}", PATIENT) as feed:
                payloads = feed.follow(until=59)
                taken = []
                weather = asyncio.create_task(_weather(proxy, dice))
                taken += await take(payloads, 40)
                weather.cancel()
                await asyncio.gather(weather, return_exceptions=True)
                proxy.heal()
                taken += await everything(payloads)
            assert proxy.stats.cut > 5
    assert given(taken) == hashes(chain)
    assert_lawful(taken)


async def _weather(proxy: TcpProxy, dice: random.Random) -> None:
    while True:
        proxy.impair(Link(), Link(cut_after=int(10 ** dice.uniform(0, 5.3))))
        await asyncio.sleep(0.02)


@asynchronous
async def test_socket_file_that_is_replaced_is_reopened_and_its_node_compared(tmp_path: Path) -> None:
    chain, another = grow(None, 12), grow(None, 20, "z")
    before, after = replay(chain), replay(chain)
    before.set_head(chain[5].name)
    file = tmp_path / "node.ipc"
    async with JsonRpcNode(before, socket=file) as first, connected(f"ipc://{file}", QUICK) as feed:
        payloads = feed.follow()
        taken = await take(payloads, 6)
        file.unlink()  # the node that is gone has no time to
        async with JsonRpcNode(after, socket=file) as second:
            await first.disconnect()
            taken += await take(payloads, 6)
            assert given(taken) == hashes(chain)
            file.unlink()
            async with JsonRpcNode(replay(another), socket=file):
                await second.disconnect()
                with pytest.raises(WrongChainError, match="first block"):
                    await take(payloads, 1)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_answers_above_the_bound_are_requested_in_smaller_batches(scheme: str) -> None:
    chain = grow(None, 60)
    bounded = replace(QUICK, rpc=replace(QUICK.rpc, answer=40_000), walk=1, fetch_blocks=50)
    async with serving(replay(chain)) as node, connected(address(node, scheme), bounded) as feed:
        assert given(await everything(feed.follow(until=59))) == hashes(chain)


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_answer_above_the_bound_that_cannot_be_cut_is_one_sentence(scheme: str) -> None:
    async with serving(replay(grow(None, 5))) as node:
        client = RpcClient(Endpoint.parse(address(node, scheme)), replace(QUICK_RPC, answer=500))
        with pytest.raises(NodeAnswerError, match="longer than 500 bytes"):
            await client.call("eth_getBlockByNumber", "0x1", *(True,))
        await client.close()


@asynchronous
async def test_packed_answers_are_unpacked_and_bounded_by_what_they_hold() -> None:
    def body(length: int) -> bytes:
        return gzip.compress(json.dumps({"id": 1, "result": "x" * length}).encode(), compresslevel=1)

    bodies = iter([body(10), body(20_000_000)])

    async def packed(request: web.Request) -> web.Response:
        assert "gzip" in request.headers["Accept-Encoding"]
        return web.Response(body=next(bodies), headers={"Content-Encoding": "gzip"})

    async with answering(packed) as url:
        client = RpcClient(Endpoint.parse(url), RpcSettings(answer=1_000_000))
        assert await client.read(str, "echo") == "x" * 10
        with pytest.raises(NodeAnswerError, match="longer than 1000000 bytes"):  # a fiftieth of that on its way
            await client.call("echo")
        await client.close()


@pytest.mark.parametrize("place", ["/login", "http://[", ""])
@asynchronous
async def test_redirection_to_nowhere_is_one_sentence(place: str) -> None:
    async def sends(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": place})

    async with answering(sends) as url:
        client = RpcClient(Endpoint.parse(url), QUICK_RPC)
        with pytest.raises(NodeAnswerError, match=r"another URL \(HTTP 302\): use that URL"):
            await client.call("eth_chainId")
        await client.close()


@asynchronous
async def test_a_pause_of_years_is_not_waited_for_in_a_call_but_observed() -> None:
    requested_at: list[float] = []

    def script(requested: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        requested_at.append(time.monotonic())
        later = next(dates, None)
        return (429, "slow down", later) if later else (200, result(requested))

    dates = iter(["soon", "Fri, 31 Dec 2100 23:59:59 GMT"])
    async with scripted(script) as client, asyncio.timeout(60):
        for says in ("HTTP 429", "requested a pause, of which 3[56]00 seconds are left"):
            with pytest.raises(NodeUnreachableError, match=says):
                await client.call("echo", 1)
    assert len(requested_at) == 2


KEY = "s3cr3t-a1b2c3"


LOUD = f"pruned, but for http://u:s3cr3t-pass@h/v3/{KEY}?token=s3cr3t-t0k3n\x1b[2J\nsecond line " + "z" * 5000


def _many(requested: Any) -> Any:  # noqa: ANN401 - JSON
    return (
        [refusal(-32000, LOUD, one["id"]) for one in requested]
        if isinstance(requested, list)
        else refusal(-32000, LOUD)
    )


@asynchronous
async def test_nodes_words_are_shown_on_one_line_without_what_the_url_hides() -> None:
    async def loud(request: web.Request) -> web.Response:
        return web.json_response(_many(json.loads(await request.read())))

    async with answering(loud) as url:
        client = RpcClient(
            Endpoint.parse(f"{url.replace('//', '//u:s3cr3t-pass@')}/v3/{KEY}?token=s3cr3t-t0k3n"), QUICK_RPC
        )
        with pytest.raises(NodeAnswerError) as refused:
            await client.call("eth_chainId")
        outcomes = await client.batch(calls(2))
        await client.close()
    for one in (refused.value, *outcomes):
        said = str(one)
        assert "pruned, but for http://u:…@h/v3/…?token=…" in said
        assert said.isprintable()
        assert len(said) < 600
