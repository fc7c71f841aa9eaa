"""How much the client asks for, and how often, of nodes that bear little, count calls, or are slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from feeding import asynchronous
from rpc_script import QUICK, calls, numbers, refusal, result, scripted

from cardinal.errors import NodeAnswerError, NodeUnreachableError
from cardinal_connectors.ethereum.settings import RpcSettings

LATER, TOO_LARGE = -32005, -32003


class Bearer:
    """A node that bears so many calls in a batch; ``refuse`` says how it refuses more."""

    def __init__(self, bears: int, refuse: Any) -> None:  # noqa: ANN401 - JSON
        self.bears = bears
        self.sizes: list[int] = []
        self._refuse = refuse

    def __call__(self, asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = asked if isinstance(asked, list) else [asked]
        self.sizes.append(len(whole))
        if len(whole) > self.bears:
            return self._refuse(whole)  # type: ignore[no-any-return] # JSON
        answers = [result(one) for one in whole]
        return 200, answers if isinstance(asked, list) else answers[0]


def too_long_in_the_middle(asked: list[Any]) -> tuple[int, Any]:
    """As geth cuts a batch whose answers are too long together: those that fitted, and an error for each other."""
    cut = [refusal(TOO_LARGE, "response too large", one["id"]) for one in asked[3:]]
    return 200, [*(result(one) for one in asked[:3]), *cut]


REFUSALS = {
    "http 413": lambda _: (413, "too large"),
    "one error": lambda _: (200, refusal(-32600, "batch too large")),
    "one error that sounds like later": lambda _: (200, [refusal(LATER, "batch limit of 10 exceeded")]),
    "an error of a provider": lambda _: (400, refusal(-32000, "maximum number of calls is 10")),
    "errors inside": too_long_in_the_middle,
    "http 504": lambda _: (504, "gateway timeout"),
}


@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
@asynchronous
async def test_batch_is_halved_until_it_is_borne_and_grows_again_when_more_is(refuse: Any) -> None:  # noqa: ANN401
    node = Bearer(10, refuse)
    async with scripted(node, settings=replace(QUICK, batch=64, attempts=5)) as client:
        assert await numbers(client, 64) == list(range(64))
        assert node.sizes[:5] == [64, 32, 16, 8, 8]
        node.sizes.clear()
        node.bears = 64
        assert await numbers(client, 2000) == list(range(2000))
        assert max(node.sizes) > 10
        assert sorted(node.sizes[:-1]) == node.sizes[:-1]


@pytest.mark.parametrize("scheme", ["http"])
@asynchronous
async def test_batch_that_takes_too_long_is_halved_like_one_that_is_refused(scheme: str) -> None:
    sizes: list[int] = []

    async def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        sizes.append(len(asked))
        await asyncio.sleep(0 if len(asked) <= 8 else 60)
        return 200, [result(one) for one in asked]

    async with scripted(script, scheme, replace(QUICK, timeout=0.2, attempts=4)) as client:
        assert await numbers(client, 32) == list(range(32))
    assert sizes == [32, 16, 8, 8, 8, 8]


@asynchronous
async def test_node_that_is_always_too_slow_is_given_up_after_the_attempts() -> None:
    asked_for: list[int] = []

    async def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        asked_for.append(len(asked))
        await asyncio.sleep(60)
        return 200, []

    async with scripted(script, settings=replace(QUICK, timeout=0.1, attempts=3)) as client:
        with pytest.raises(NodeUnreachableError, match="did not answer within"):
            await client.batch(calls(100))
    assert asked_for == [100, 50, 25]


@asynchronous
async def test_pause_that_the_node_asks_for_is_kept() -> None:
    times: list[float] = []

    def script(asked: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        times.append(time.monotonic())
        return (429, "slow down", "1") if len(times) == 1 else (200, result(asked))

    async with scripted(script) as client:
        await client.call("echo", 1)
    assert times[1] - times[0] >= 1.0


@asynchronous
async def test_calls_a_second_are_kept_to_over_all_requests() -> None:
    made: list[tuple[float, int]] = []

    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        made.append((time.monotonic(), len(asked)))
        return 200, [result(one) for one in asked]

    settings = RpcSettings(rate=100.0, batch=20, connections=4)
    async with scripted(script, settings=settings) as client:
        began = time.monotonic()
        await asyncio.gather(*(numbers(client, 60) for _ in range(4)))
    total = 0
    for at, count in made:
        total += count
        assert total <= 100 * (at - began) + 100 + 20
    assert total == 240


@asynchronous
async def test_no_more_requests_are_on_their_way_than_allowed() -> None:
    under_way = most = 0

    async def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return 200, [result(one) for one in asked]

    async with scripted(script, settings=replace(QUICK, batch=2, connections=3)) as client:
        await asyncio.gather(*(numbers(client, 6) for _ in range(8)))
    assert most == 3


@asynchronous
async def test_nodes_own_words_reach_whoever_asked() -> None:
    async with scripted(lambda asked: (200, refusal(-32000, "missing trie node 0xabc", asked["id"]))) as client:
        with pytest.raises(NodeAnswerError, match="error -32000: missing trie node 0xabc") as refused:
            await client.call("debug_traceBlockByHash", "0x1")
    assert refused.value.code == -32000
