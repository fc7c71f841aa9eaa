"""The node feed's requests: shapes of answers, batch sizes, rates, busy gateways."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anvil_node import anvil
from ethereum_blocks import grow, replay
from feeding import QUICK as FOLLOWING
from feeding import asynchronous, everything, given, hashes, opened, take
from geth_node import geth
from rpc_script import QUICK, calls, numbers, refusal, result, scripted

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError, NodeUnreachableError
from cardinal_devkit.testing.node import JsonRpcNode
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.outcomes import RpcCall, parse
from cardinal_ethereum.feed.settings import RpcSettings

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_answers_in_any_order_find_their_calls(scheme: str) -> None:
    async with scripted(lambda requested: (200, [result(one) for one in reversed(requested)]), scheme) as client:
        assert await numbers(client, 7) == list(range(7))


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("shape", ["array", "object", "nameless"])
@asynchronous
async def test_batch_that_is_refused_as_a_whole_is_cut(scheme: str, shape: str) -> None:
    requested_sizes: list[int] = []

    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        if isinstance(requested, dict):
            return 200, result(requested)
        requested_sizes.append(len(requested))
        if len(requested) <= 4:
            return 200, [result(one) for one in requested]
        refused = refusal(-32600, "batch too large", None if shape == "nameless" else requested[0]["id"])
        return 200, [refused] if shape == "array" else refused

    async with scripted(script, scheme) as client:
        assert await numbers(client, 16) == list(range(16))
        assert await numbers(client, 9) == list(range(9))
    assert requested_sizes == [16, 8, 4, 4, 4, 4, 4, 4]


@asynchronous
async def test_a_single_call_that_is_refused_as_too_large_is_reported() -> None:
    async with scripted(lambda _: (413, "too large")) as client:
        for outcome in await client.batch(calls(4)):
            assert isinstance(outcome, NodeAnswerError)
            assert "refuses a request of this size" in str(outcome)


@asynchronous
async def test_error_of_one_call_is_its_outcome_and_the_others_have_theirs() -> None:
    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        answers = [
            refusal(-32000, "missing trie node", one["id"]) if one["params"] == [1] else result(one)
            for one in (requested if isinstance(requested, list) else [requested])
        ]
        return 200, answers if isinstance(requested, list) else answers[0]

    async with scripted(script) as client:
        good, bad, other = await client.batch(calls(3))
    assert isinstance(good, msgspec.Raw)
    assert isinstance(other, msgspec.Raw)
    assert isinstance(bad, NodeAnswerError)
    assert bad.code == -32000
    assert "missing trie node" in str(bad)


@asynchronous
async def test_only_transient_failures_are_retried() -> None:
    seen: list[list[int]] = []

    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = requested if isinstance(requested, list) else [requested]
        seen.append([one["params"][0] for one in whole])
        answers = [
            refusal(-32005, "slow down", one["id"]) if one["params"] == [2] and len(seen) < 3 else result(one)
            for one in whole
        ]
        return 200, answers

    async with scripted(script) as client:
        assert await numbers(client, 3) == [0, 1, 2]
    assert seen == [[0, 1, 2], [2], [2]]


@asynchronous
async def test_a_call_that_is_missing_in_a_batch_answer_is_retried() -> None:
    rounds: list[int] = []

    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = requested if isinstance(requested, list) else [requested]
        rounds.append(len(whole))
        return 200, [result(one) for one in whole][: 2 if len(rounds) == 1 else None]

    async with scripted(script) as client:
        assert await numbers(client, 3) == [0, 1, 2]
    assert rounds == [3, 1]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@asynchronous
async def test_a_transient_status_is_retried(status: int) -> None:
    answers = iter([(status, "later"), (status, "later")])
    async with scripted(lambda requested: next(answers, (200, result(requested)))) as client:
        assert msgspec.json.decode(await client.call("echo", 5)) == [5]
    async with scripted(lambda _: (status, "later")) as client:
        with pytest.raises(NodeUnreachableError, match=f"HTTP {status}"):
            await client.call("echo")


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, "no", "credentials"),
        (403, "no", "credentials"),
        (404, "no", "HTTP 404"),
        (404, {"message": "no Route matched"}, "HTTP 404"),
        (400, refusal(-32602, "invalid argument 0"), "-32602: invalid argument 0"),
        (500, refusal(-32603, "missing trie node"), "-32603: missing trie node"),
    ],
)
@asynchronous
async def test_answer_that_stays_is_reported_after_the_attempts(status: int, body: Any, says: str) -> None:  # noqa: ANN401 - JSON
    requested: list[object] = []
    async with scripted(lambda one: (requested.append(one), (status, body))[1]) as client:
        with pytest.raises(NodeAnswerError, match=says):
            await client.call("echo")
    assert len(requested) == (1 if status in {401, 403} else QUICK.attempts)  # a wrong token may lock its owner out


@pytest.mark.parametrize("body", ["", "hello", "[1]", "{}", "[]", "<html>welcome</html>", "[[]]"])
@asynchronous
async def test_replies_that_are_no_json_rpc_are_refused_in_one_sentence(body: str) -> None:
    async with scripted(lambda _: (200, body)) as client:
        with pytest.raises(NodeAnswerError, match=r"not in JSON-RPC|without a result"):
            await client.call("echo")


@pytest.mark.parametrize("around", ["%s", '{"id": 1, "result": %s}'])
@asynchronous
async def test_replies_nested_too_deeply_are_refused_in_one_sentence(around: str) -> None:
    async with scripted(lambda _: (200, around % DEEP.decode())) as client:
        with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
            await client.call("echo")


def test_a_result_that_is_nested_without_end_is_one_sentence() -> None:
    with pytest.raises(NodeAnswerError, match="result for echo"):
        parse(dict, msgspec.Raw(b'{"x":%b}' % DEEP), "echo")


@asynchronous
async def test_result_of_another_type_is_one_sentence_and_null_is_none() -> None:
    async with scripted(lambda requested: (200, result(requested))) as client:
        with pytest.raises(NodeAnswerError, match="result for echo"):
            await client.read(str, "echo")
    async with scripted(lambda requested: (200, {"id": requested["id"], "result": None})) as client:
        assert await client.read(str, "echo") is None


@asynchronous
async def test_request_is_kept_below_the_bound() -> None:
    sizes: list[int] = []
    small = RpcSettings(timeout=2, attempts=1, body=600)

    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        sizes.append(len(json.dumps(requested, separators=(",", ":"))))
        whole = requested if isinstance(requested, list) else [requested]
        return 200, [result(one) for one in whole]

    async with scripted(script, settings=small) as client:
        assert await numbers(client, 100) == list(range(100))
    assert max(sizes) <= 600


@asynchronous
async def test_server_for_tests_answers_like_a_node() -> None:
    async with JsonRpcNode(replay(grow(None, 3), chain_id=5)) as node:
        client = RpcClient(Endpoint.parse(node.url), QUICK)
        assert await client.read(str, "eth_chainId") == "0x5"
        assert await client.read(str, "net_version") == "5"
        assert await client.read(str, "eth_blockNumber") == "0x2"
        assert await client.read(bool, "eth_syncing") is False
        assert await client.read(dict, "eth_getBlockByNumber", "0x63", False) is None  # noqa: FBT003 - JSON-RPC
        for method, params, code in [
            ("eth_nothing", (), -32601),
            ("eth_subscribe", ("newHeads",), -32601),
            ("eth_getBlockByHash", (), -32602),
            ("eth_getBlockByNumber", ("finalized", False), -39001),
            ("eth_getBlockByNumber", ("five", False), -32602),
        ]:
            with pytest.raises(NodeAnswerError) as refused:
                await client.call(method, *params)
            assert refused.value.code == code
        await client.close()


# --- how much the client asks for, and how often, of nodes that bear little, count calls, or are slow ----------------


LATER, TOO_LARGE = -32005, -32003


class Bearer:
    """A node that bears so many calls in a batch; ``refuse`` says how it refuses more."""

    def __init__(self, bears: int, refuse: Any) -> None:  # noqa: ANN401 - JSON
        self.bears = bears
        self.sizes: list[int] = []
        self._refuse = refuse

    def __call__(self, requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = requested if isinstance(requested, list) else [requested]
        self.sizes.append(len(whole))
        if len(whole) > self.bears:
            return self._refuse(whole)  # type: ignore[no-any-return] # JSON
        answers = [result(one) for one in whole]
        return 200, answers if isinstance(requested, list) else answers[0]


def too_long_in_the_middle(requested: list[Any]) -> tuple[int, Any]:
    """As geth cuts a batch whose answers are too long together: those that fitted, and an error for each other."""
    cut = [refusal(TOO_LARGE, "response too large", one["id"]) for one in requested[3:]]
    return 200, [*(result(one) for one in requested[:3]), *cut]


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


@asynchronous
async def test_node_that_is_always_too_slow_is_given_up_after_the_attempts() -> None:
    requested_sizes: list[int] = []

    async def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        requested_sizes.append(len(requested))
        await asyncio.sleep(60)
        return 200, []

    async with scripted(script, settings=replace(QUICK, timeout=0.1, attempts=3)) as client:
        with pytest.raises(NodeUnreachableError, match="did not answer within"):
            await client.batch(calls(100))
    assert requested_sizes == [100, 50, 25]


@asynchronous
async def test_calls_a_second_are_kept_to_over_all_requests() -> None:
    made: list[tuple[float, int]] = []

    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        made.append((time.monotonic(), len(requested)))
        return 200, [result(one) for one in requested]

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

    async def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        return 200, [result(one) for one in requested]

    async with scripted(script, settings=replace(QUICK, batch=2, connections=3)) as client:
        await asyncio.gather(*(numbers(client, 6) for _ in range(8)))
    assert most == 3


# --- gateways that have no time or no node now, and say so in JSON: they are waited for as if they said it in HTTP ---


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
async def test_a_node_that_is_busy_in_json_is_retried_and_unreachable_after_the_attempts(
    status: int,
    body: Any,  # noqa: ANN401 - JSON
    *,
    whole: bool,
) -> None:
    requested: list[object] = []

    def script(one: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        requested.append(one)
        if len(requested) < 3:
            return status, body
        return 200, [result(each) for each in one] if whole else result(one)

    async with scripted(script) as client:
        assert await numbers(client, 3 if whole else 1) == list(range(3 if whole else 1))
    assert [len(one) for one in requested if isinstance(one, list)] == ([3, 3, 3] if whole else [])
    requested.clear()
    async with scripted(lambda one: (requested.append(one), (status, body))[1]) as client:
        with pytest.raises(NodeUnreachableError):
            await client.batch(calls(3 if whole else 1))
    assert len(requested) == QUICK.attempts


@pytest.mark.slow
@pytest.mark.parametrize("body", [LIMITED, refusal(-32005, "API rate limit exceeded"), "API rate limit exceeded"])
@asynchronous
async def test_the_message_of_a_busy_gateway_is_reported_and_its_pause_observed(body: Any) -> None:  # noqa: ANN401 - JSON
    times: list[float] = []

    def script(requested: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        times.append(time.monotonic())
        return (429, body, "1") if len(times) == 1 else (200, result(requested))

    async with scripted(script) as client:
        await client.call("echo", 1)
    assert times[1] - times[0] >= 1.0
    async with scripted(lambda _: (429, body), settings=replace(QUICK, attempts=1)) as client:
        with pytest.raises(NodeUnreachableError, match=r"HTTP 429: .*API rate limit exceeded"):
            await client.call("echo")


@asynchronous
async def test_a_page_that_comes_with_a_status_is_not_reported() -> None:
    async with scripted(lambda _: (502, "<html>Bad Gateway</html>")) as client:
        with pytest.raises(NodeUnreachableError, match=r"\(HTTP 502\)"):
            await client.call("echo")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@asynchronous
async def test_batch_that_is_refused_as_too_large_is_cut_whatever_the_status(status: int) -> None:
    def script(requested: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        if isinstance(requested, list) and len(requested) > 2:
            return status, refusal(-32600, "batch too large")
        whole = [result(one) for one in requested] if isinstance(requested, list) else result(requested)
        return status, whole  # results count, whatever the status

    async with scripted(script) as client:
        assert await numbers(client, 7) == list(range(7))


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


MANY = 2_500


"""Calls: geth takes a thousand in a batch."""


async def assert_all_are_answered(url: str, call: RpcCall, count: int = MANY) -> None:
    client = RpcClient(Endpoint.parse(url), RpcSettings(batch=MANY, body=50_000_000, attempts=8, backoff=0.01))
    outcomes = await client.batch([call] * count)
    await client.close()
    assert len(outcomes) == count
    assert not [outcome for outcome in outcomes if isinstance(outcome, NodeAnswerError)]
    assert len({bytes(outcome) for outcome in outcomes if not isinstance(outcome, NodeAnswerError)}) == 1


@pytest.mark.node
@pytest.mark.slow  # compiles geth
@asynchronous
async def test_geth_that_refuses_a_batch_gets_smaller_ones(tmp_path: Path) -> None:
    async with geth(tmp_path) as node:
        for url in (node.url, node.ws_url, node.ipc_url):
            await assert_all_are_answered(url, RpcCall("eth_chainId"))
            await assert_all_are_answered(url, RpcCall("eth_getBlockByNumber", ("0x0", True)))


@pytest.mark.node
@pytest.mark.slow  # compiles geth
@asynchronous
async def test_geth_that_refuses_a_body_gets_smaller_ones(tmp_path: Path) -> None:
    """Six megabytes in 500 calls: HTTP answers with a status, other transports close the connection."""
    padded = RpcCall("eth_call", ({"to": "0x" + "22" * 20, "data": "0x" + "00" * 6_000}, "latest"))
    async with geth(tmp_path) as node:
        await assert_all_are_answered(node.url, padded, 500)


@pytest.mark.node
@asynchronous
async def test_anvil_that_breaks_off_gets_smaller_batches() -> None:
    padded = RpcCall("eth_call", ({"to": "0x" + "22" * 20, "data": "0x" + "00" * 3_000}, "latest"))
    async with anvil() as node:
        await node.mine(1)
        for url in (node.url, node.ws_url):
            await assert_all_are_answered(url, RpcCall("eth_chainId"))
        client = RpcClient(
            Endpoint.parse(node.url), RpcSettings()
        )  # as it is set, no request is as long as anvil takes none
        outcomes = await client.batch([padded] * 500)
        await client.close()
        assert not [outcome for outcome in outcomes if isinstance(outcome, NodeAnswerError)]
