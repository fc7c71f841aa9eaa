"""Gateways that have no time or no node now, and say so in JSON: they are waited for as if they said it in HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ethereum_blocks import grow, replay
from feeding import QUICK as FOLLOWING
from feeding import asynchronous, everything, given, hashes, opened, take
from rpc_script import QUICK, calls, numbers, refusal, result, scripted

from cardinal.errors import NodeAnswerError, NodeUnreachableError

LIMITED = {"message": "API rate limit exceeded"}
"""As gateways answer that speak no JSON-RPC of their own."""

BUSY = [
    *((status, LIMITED) for status in (429, 500, 502, 503)),
    *((status, {}) for status in (429, 500, 502, 503)),
    *((status, refusal(-32005, "API rate limit exceeded")) for status in (429, 502, 503)),
    *((status, refusal(-32603, "no backend")) for status in (429, 502, 503)),
    *((status, refusal(0, "API rate limit exceeded")) for status in (429, 500)),
    *((200, refusal(code, "API rate limit exceeded")) for code in (-32005, -32016, 429)),
    *((200, refusal(-32603, said)) for said in ("No Backend is available", "upstream timed out")),
    *((500, refusal(-32603, said)) for said in ("no backend", "upstream timed out")),
    (200, LIMITED),
]


@pytest.mark.parametrize("whole", [False, True], ids=["one call", "a batch"])
@pytest.mark.parametrize(("status", "body"), BUSY)
@asynchronous
async def test_who_is_busy_in_json_is_asked_again_and_is_away_after_the_attempts(
    status: int,
    body: Any,  # noqa: ANN401 - JSON
    *,
    whole: bool,
) -> None:
    asked: list[object] = []

    def script(one: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        asked.append(one)
        if len(asked) < 3:
            return status, body
        return 200, [result(each) for each in one] if whole else result(one)

    async with scripted(script) as client:
        assert await numbers(client, 3 if whole else 1) == list(range(3 if whole else 1))
    assert [len(one) for one in asked if isinstance(one, list)] == ([3, 3, 3] if whole else [])
    asked.clear()
    async with scripted(lambda one: (asked.append(one), (status, body))[1]) as client:
        with pytest.raises(NodeUnreachableError):
            await client.batch(calls(3 if whole else 1))
    assert len(asked) == QUICK.attempts


@pytest.mark.parametrize("body", [LIMITED, refusal(-32005, "API rate limit exceeded"), "API rate limit exceeded"])
@asynchronous
async def test_what_a_busy_gateway_says_is_told_and_its_pause_kept(body: Any) -> None:  # noqa: ANN401 - JSON
    times: list[float] = []

    def script(asked: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        times.append(time.monotonic())
        return (429, body, "1") if len(times) == 1 else (200, result(asked))

    async with scripted(script) as client:
        await client.call("echo", 1)
    assert times[1] - times[0] >= 1.0
    async with scripted(lambda _: (429, body), settings=replace(QUICK, attempts=1)) as client:
        with pytest.raises(NodeUnreachableError, match=r"HTTP 429: .*API rate limit exceeded"):
            await client.call("echo")


@asynchronous
async def test_a_page_that_comes_with_a_status_is_not_told() -> None:
    async with scripted(lambda _: (502, "<html>Bad Gateway</html>")) as client:
        with pytest.raises(NodeUnreachableError, match=r"\(HTTP 502\)"):
            await client.call("echo")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@asynchronous
async def test_results_count_whatever_the_status(status: int) -> None:
    async with scripted(lambda asked: (status, [result(one) for one in asked])) as client:
        assert await numbers(client, 3) == [0, 1, 2]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@asynchronous
async def test_batch_that_is_refused_as_too_large_is_cut_whatever_the_status(status: int) -> None:
    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        if isinstance(asked, list) and len(asked) > 2:
            return status, refusal(-32600, "batch too large")
        return 200, [result(one) for one in asked] if isinstance(asked, list) else result(asked)

    async with scripted(script) as client:
        assert await numbers(client, 7) == list(range(7))


@asynchronous
async def test_an_error_of_the_node_under_500_is_told_at_once() -> None:
    asked: list[object] = []
    error = refusal(-32603, "missing trie node")
    async with scripted(lambda one: (asked.append(one), (500, error))[1]) as client:
        with pytest.raises(NodeAnswerError, match="-32603: missing trie node"):
            await client.call("echo")
    assert len(asked) == 1


@asynchronous
async def test_json_that_is_no_json_rpc_is_no_answer_under_another_status() -> None:
    async with scripted(lambda _: (404, {"message": "no Route matched"})) as client:
        with pytest.raises(NodeAnswerError, match="HTTP 404"):
            await client.call("echo")


@asynchronous
async def test_a_feed_waits_for_a_gateway_that_is_busy_for_longer_than_all_attempts() -> None:
    chain = grow(None, 10)
    served = replay(chain)
    served.set_head(chain[4].name)
    async with opened(served) as (node, feed):
        payloads = feed.follow(until=9)
        taken = await take(payloads, 5)
        refusals = iter(range(5 * FOLLOWING.rpc.attempts))

        def limit(method: str, params: Sequence[object]) -> None:
            if (method, params[0]) == ("eth_getBlockByNumber", "latest") and next(refusals, None) is not None:
                raise NodeAnswerError("limit exceeded", code=-32005)

        node.before = limit
        served.set_head(chain[9].name)
        taken += await everything(payloads)
        assert next(refusals, None) is None
    assert given(taken) == hashes(chain)
