"""What a node's errors do to a feed: which are waited for, which end it, and which way of fetching comes next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from ethereum_blocks import Built, grow, replay
from feeding import QUICK, SCHEMES, address, asynchronous, connected, everything, given, hashes, opened, serving, take
from rpc_script import answering

from cardinal.errors import IntegrityError, NodeAnswerError
from cardinal_devkit.testing.node import Demand, JsonRpcNode
from examples import few
from waiting import until_async as until

FAST = replace(QUICK, poll=0.01, patience=None, rpc=replace(QUICK.rpc, backoff=0.001))
RECEIPTS = "eth_getBlockReceipts"


def refuses(
    method: str, code: int, said: str, *, times: int = 10**9, fits: Callable[[Any], bool] = bool
) -> Callable[[str, Sequence[object]], None]:
    """A hook of a node that refuses a method so many times."""
    left = [times]

    def before(requested: str, params: Sequence[object]) -> None:
        if requested == method and left[0] and fits(params):
            left[0] -= 1
            raise NodeAnswerError(said, code=code)

    return before


def is_hash(params: Sequence[Any]) -> bool:
    return len(params[0]) == 66


@pytest.mark.parametrize("scheme", few(1, SCHEMES))
@pytest.mark.parametrize(
    ("code", "said"),
    [(-32000, "header not found"), (-32603, "Internal error"), (-32007, "50/second request limit reached")],
)
@asynchronous
async def test_an_error_about_a_request_is_waited_for_however_long_and_named(
    scheme: str, code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = grow(None, 12)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served, scheme, FAST) as (node, feed):
        payloads = feed.follow(until=11)
        taken = await take(payloads, 5)
        node.before = refuses("eth_getBlockByHash", code, said, times=8 * FAST.rpc.attempts)
        served.set_head(chain[11].name)
        coming = asyncio.ensure_future(everything(payloads))
        await until(lambda: said in feed.report.waits_for)  # type: ignore[attr-defined]
        assert "counts as unreachable" in feed.report.waits_for  # type: ignore[attr-defined]
        taken += await coming
        kinds = feed.report.nodes[0].errors  # type: ignore[attr-defined]
    assert given(taken) == hashes(chain)
    assert kinds["unreachable"] >= 1
    assert kinds["rate" if "limit" in said else "request"] == 8 * FAST.rpc.attempts
    assert said in caplog.text


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("code", "said"),
    [(4444, "pruned history unavailable"), (-32000, "missing trie node"), (-32602, "Invalid params")],
)
@asynchronous
async def test_an_error_that_no_wait_heals_ends_the_feed_if_every_node_has_it(
    scheme: str, code: int, said: str
) -> None:
    chain = grow(None, 6)
    async with serving(replay(chain)) as one, serving(replay(chain)) as two:
        for node in (one, two):
            node.before = refuses("eth_getBlockByNumber", code, said, fits=lambda params: params[0] == "0x3")
        async with connected(f"{address(one, scheme)},{address(two, scheme)}", replace(FAST, walk=1)) as feed:
            with pytest.raises(NodeAnswerError, match=said):
                await everything(feed.follow())
        two.before = None
        async with connected(f"{address(one, scheme)},{address(two, scheme)}", FAST) as feed:
            assert given(await everything(feed.follow(until=5))) == hashes(chain)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("code", "said"), [(4444, "pruned history unavailable"), (-32600, "Invalid Request")])
@asynchronous
async def test_such_an_error_once_ends_nothing(scheme: str, code: int, said: str) -> None:
    chain = grow(None, 6)
    async with opened(replay(chain), scheme, FAST) as (node, feed):
        node.before = refuses(RECEIPTS, code, said, times=2)
        assert given(await everything(feed.follow(until=5))) == hashes(chain)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("code", "said"),
    [(-32601, "no"), (-32001, "rpc method is not whitelisted"), (-32600, "Unsupported method"), (-32602, "bad")],
)
@asynchronous
async def test_receipts_by_hash_that_are_refused_are_requested_by_number(
    scheme: str, code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = grow(None, 20)
    served = replay(chain)
    served.set_head(chain[3].name)
    async with opened(served, scheme, FAST) as (node, feed):
        payloads = feed.follow(until=19)
        node.before = refuses(RECEIPTS, code, said, fits=is_hash)
        taken = await take(payloads, 4)
        for block in chain[4:]:
            served.set_head(block.name)
            taken += await take(payloads, 1)
        assert node.calls.get("eth_getTransactionReceipt") is None
    assert given(taken) == hashes(chain)
    assert len([one for one in caplog.records if "receipts are not requested by hash" in one.getMessage()]) == 1


@asynchronous
async def test_receipts_of_another_block_at_the_number_are_not_those_of_the_hash() -> None:
    """By number a node returns those of its chain, which may have moved meanwhile: they are requested one by one."""
    chain = grow(None, 6)
    served = replay(chain)
    served.swap(chain[4].name, "receipts", chain[3].receipts, 1)
    async with opened(served, settings=FAST) as (node, feed):
        await feed.chain_id()
        node.before = refuses(RECEIPTS, -32602, "bad params", fits=is_hash)
        payload = await feed.block(chain[4].hash)  # type: ignore[attr-defined]
        assert payload is not None
        assert payload.hash == chain[4].hash
        assert node.calls["eth_getTransactionReceipt"] == len(chain[4].receipts)


@asynchronous
async def test_receipts_that_are_too_large_for_one_answer_are_requested_one_by_one() -> None:
    chain = grow(None, 6)
    async with opened(replay(chain), settings=FAST) as (node, feed):
        node.before = refuses(
            RECEIPTS, -32008, "Response is too big", fits=lambda params: params[0] in {"0x3", chain[3].name}
        )
        assert given(await everything(feed.follow(until=5))) == hashes(chain)
        assert node.calls["eth_getTransactionReceipt"] == len(chain[3].receipts)


@asynchronous
async def test_a_required_method_that_no_node_ever_had_ends_the_start() -> None:
    async with opened(replay(grow(None, 3)), settings=FAST) as (node, feed):
        node.methods = frozenset({"eth_chainId"})
        with pytest.raises(NodeAnswerError, match="does not exist"):
            await feed.chain_id()


# --- addresses at which no node answers, or not now -----------------------------------------------------------------


def page(status: int, text: str = "<html>hello</html>") -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="text/html")

    return answer


@pytest.mark.parametrize("scheme", few(1, ["http", "ws"]))
@pytest.mark.parametrize("status", [200, 400, 403, 404, 501, 505])
@asynchronous
async def test_an_address_that_never_answered_well_ends_the_start(scheme: str, status: int) -> None:
    async with answering(page(status)) as url, connected(url.replace("http", scheme, 1), FAST) as feed:
        with pytest.raises(NodeAnswerError) as ended:
            await feed.chain_id()
    assert not ended.value.retriable


@asynchronous
async def test_tls_to_a_plain_port_ends_the_start() -> None:
    async with answering(page(200)) as url, connected(url.replace("http", "https", 1), FAST) as feed:
        with pytest.raises(NodeAnswerError, match="does not speak TLS"):
            await feed.chain_id()


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("status", [200, 400, 403, 404, 429, 500, 501, 502, 503, 505, 520, 524])
@asynchronous
async def test_a_page_after_a_good_answer_is_waited_for(scheme: str, status: int) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    served.set_head(chain[3].name)
    left = [0]
    async with serving(served) as node:
        handler = node._request

        async def answer(request: web.Request) -> web.StreamResponse:
            if left[0]:
                left[0] -= 1
                return await page(status)(request)  # type: ignore[no-any-return]
            return await handler(request)

        async with answering(answer) as url, connected(url.replace("http", scheme, 1), FAST) as feed:
            payloads = feed.follow(until=7)
            taken = await take(payloads, 4)
            left[0] = 3 * FAST.rpc.attempts
            await node.disconnect()
            served.set_head(chain[7].name)
            taken += await everything(payloads)
    assert left == [0]
    assert given(taken) == hashes(chain)


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_refused_credentials_end_a_feed_also_after_good_answers(scheme: str) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    served.set_head(chain[3].name)
    async with opened(served, scheme, FAST) as (node, feed):
        payloads = feed.follow(until=7)
        await take(payloads, 4)
        node.demand = Demand.bearer("other")
        await node.disconnect()
        with pytest.raises(NodeAnswerError, match="refuses the credentials"):
            await everything(payloads)


# --- well-formed answers that are wrong -----------------------------------------------------------------------------


def _wrong(chain: Sequence[Built]) -> dict[str, tuple[str, object]]:
    cut = [{**one, "logs": []} for one in chain[5].receipts]
    return {
        "receipts of another block": ("receipts", chain[4].receipts),
        "no receipts": ("receipts", None),
        "cut logs": ("receipts", cut),
        "a receipt less": ("receipts", chain[5].receipts[:-1]),
        "no block": ("block", None),
        "another block": ("block", chain[4].block),
        "no object": ("block", "later"),
        "a malformed block": ("block", {**chain[5].block, "transactions": None}),
    }


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("at_head", [False, True], ids=["backfill", "head"])
@pytest.mark.parametrize("scheme", few(1, SCHEMES))
@pytest.mark.parametrize("lie", list(_wrong(grow(None, 6))))
@asynchronous
async def test_a_wrong_answer_is_requested_again(lie: str, scheme: str, times: int, *, at_head: bool) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    what, wrong = _wrong(chain)[lie]
    served.swap(chain[5].name, what, wrong, times)  # type: ignore[arg-type] # one of the two
    served.set_head(chain[4 if at_head else 7].name)
    async with opened(served, scheme, FAST) as (_, feed):
        payloads = feed.follow(until=7)
        taken = await take(payloads, 5)
        served.set_head(chain[7].name)
        taken += await everything(payloads)
        assert feed.report.nodes[0].errors["wrong"] >= 1  # type: ignore[attr-defined]
    assert given(taken) == hashes(chain)


@asynchronous
async def test_only_what_every_node_gets_wrong_is_an_integrity_error() -> None:
    chain = grow(None, 6)
    cut = [{**one, "logs": []} for one in chain[3].receipts]
    one, two = replay(chain), replay(chain)
    one.swap(chain[3].name, "receipts", cut, 10**9)
    async with serving(one) as first, JsonRpcNode(two) as second:
        urls = f"{first.url},{second.url}"
        async with connected(urls, FAST) as feed:
            assert given(await everything(feed.follow(until=5))) == hashes(chain)
        two.swap(chain[3].name, "receipts", cut, 10**9)
        async with connected(urls, FAST) as feed:
            with pytest.raises(IntegrityError):
                await everything(feed.follow(until=5))


@asynchronous
async def test_a_long_pause_of_one_node_is_spent_at_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    chain = grow(None, 10)
    one, two = replay(chain), replay(chain)
    one.set_head(chain[3].name)
    two.set_head(chain[3].name)
    async with serving(one) as first, serving(two) as second:
        urls = f"{first.url},{second.url}"
        async with connected(urls, replace(FAST, watch=0.001)) as feed, asyncio.timeout(20):
            payloads = feed.follow(until=9)
            taken = await take(payloads, 4)
            while feed.report.nodes[1].head is None:  # type: ignore[attr-defined]
                coming = asyncio.ensure_future(anext(payloads))
                await asyncio.sleep(0.01)
                one.set_head(chain[len(taken)].name)
                two.set_head(chain[len(taken)].name)
                taken.append(await coming)
            first.before = refuses("eth_getBlockByNumber", -32005, "rate limited, retry in 300s")
            one.set_head(chain[9].name)
            two.set_head(chain[9].name)
            taken += await everything(payloads)
    assert given(taken) == hashes(chain)
    assert f"switching to the node at {second.url}" in caplog.text
