"""The JSON-RPC client against answers of every shape that nodes were seen to give."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from ethereum_blocks import grow, replay
from feeding import asynchronous
from rpc_script import QUICK, calls, numbers, refusal, result, scripted

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError, NodeUnreachableError
from cardinal.testing.node import JsonRpcNode
from cardinal_connectors.ethereum.rpc.client import RpcClient, parse
from cardinal_connectors.ethereum.settings import RpcSettings

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("scheme", ["http", "ws"])
@asynchronous
async def test_answers_in_any_order_find_their_calls(scheme: str) -> None:
    async with scripted(lambda asked: (200, [result(one) for one in reversed(asked)]), scheme) as client:
        assert await numbers(client, 7) == list(range(7))


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("shape", ["array", "object", "nameless"])
@asynchronous
async def test_batch_that_is_refused_as_a_whole_is_cut(scheme: str, shape: str) -> None:
    asked_for: list[int] = []

    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        if isinstance(asked, dict):
            return 200, result(asked)
        asked_for.append(len(asked))
        if len(asked) <= 4:
            return 200, [result(one) for one in asked]
        refused = refusal(-32600, "batch too large", None if shape == "nameless" else asked[0]["id"])
        return 200, [refused] if shape == "array" else refused

    async with scripted(script, scheme) as client:
        assert await numbers(client, 16) == list(range(16))
        assert await numbers(client, 9) == list(range(9))
    assert asked_for == [16, 8, 4, 4, 4, 4, 4, 4]


@asynchronous
async def test_body_that_is_refused_is_cut_and_a_single_one_is_reported() -> None:
    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = asked if isinstance(asked, list) else [asked]
        return (413, "too large") if len(whole) > 2 else (200, [result(one) for one in whole])

    async with scripted(script) as client:
        assert await numbers(client, 8) == list(range(8))
    async with scripted(lambda _: (413, "too large")) as client:
        with pytest.raises(NodeAnswerError, match="refuses a request of this size"):
            await client.batch(calls(4))


@asynchronous
async def test_error_of_one_call_is_its_outcome_and_the_others_have_theirs() -> None:
    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        return 200, [
            refusal(-32000, "missing trie node", one["id"]) if one["params"] == [1] else result(one) for one in asked
        ]

    async with scripted(script) as client:
        good, bad, other = await client.batch(calls(3))
    assert isinstance(good, msgspec.Raw)
    assert isinstance(other, msgspec.Raw)
    assert isinstance(bad, NodeAnswerError)
    assert bad.code == -32000
    assert "missing trie node" in str(bad)


@asynchronous
async def test_only_what_may_pass_is_asked_again() -> None:
    seen: list[list[int]] = []

    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = asked if isinstance(asked, list) else [asked]
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
async def test_call_that_is_left_out_of_a_batch_is_asked_again() -> None:
    rounds: list[int] = []

    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        whole = asked if isinstance(asked, list) else [asked]
        rounds.append(len(whole))
        return 200, [result(one) for one in whole][: 2 if len(rounds) == 1 else None]

    async with scripted(script) as client:
        assert await numbers(client, 3) == [0, 1, 2]
    assert rounds == [3, 1]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@asynchronous
async def test_status_that_may_pass_is_asked_again(status: int) -> None:
    answers = iter([(status, "later"), (status, "later")])
    async with scripted(lambda asked: next(answers, (200, result(asked)))) as client:
        assert msgspec.json.decode(await client.call("echo", 5)) == [5]
    async with scripted(lambda _: (status, "later")) as client:
        with pytest.raises(NodeUnreachableError, match=f"HTTP {status}"):
            await client.call("echo")


@pytest.mark.parametrize(("status", "sentence"), [(401, "credentials"), (403, "credentials"), (404, "HTTP 404")])
@asynchronous
async def test_status_that_stays_is_reported_at_once(status: int, sentence: str) -> None:
    asked: list[object] = []
    async with scripted(lambda one: (asked.append(one), (status, "no"))[1]) as client:
        with pytest.raises(NodeAnswerError, match=sentence):
            await client.call("echo")
    assert len(asked) == 1


@asynchronous
async def test_nodes_error_inside_a_bad_status_is_preferred() -> None:
    async with scripted(lambda asked: (400, refusal(-32602, "invalid argument 0", asked["id"]))) as client:
        with pytest.raises(NodeAnswerError, match="-32602: invalid argument 0"):
            await client.call("echo")


@pytest.mark.parametrize("body", ["", "hello", "[1]", '{"id": "x", "error": 5}', "[[]]"])
@asynchronous
async def test_what_is_no_json_rpc_is_one_sentence(body: str) -> None:
    async with scripted(lambda _: (200, body)) as client:
        with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
            await client.call("echo")


@pytest.mark.parametrize("around", ["%s", '{"id": 1, "result": %s}'])
@asynchronous
async def test_what_is_nested_without_end_is_one_sentence(around: str) -> None:
    async with scripted(lambda _: (200, around % DEEP.decode())) as client:
        with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
            await client.call("echo")


def test_a_result_that_is_nested_without_end_is_one_sentence() -> None:
    with pytest.raises(NodeAnswerError, match="result for echo"):
        parse(dict, msgspec.Raw(b'{"x":%b}' % DEEP), "echo")


@asynchronous
async def test_result_of_another_type_is_one_sentence_and_null_is_none() -> None:
    async with scripted(lambda asked: (200, result(asked))) as client:
        with pytest.raises(NodeAnswerError, match="result for echo"):
            await client.read(str, "echo")
    async with scripted(lambda asked: (200, {"id": asked["id"], "result": None})) as client:
        assert await client.read(str, "echo") is None


@asynchronous
async def test_answer_above_the_bound_is_refused_before_it_fills_the_memory() -> None:
    small = RpcSettings(timeout=2, attempts=1, answer=1000)
    async with scripted(lambda asked: (200, {"id": asked["id"], "result": "x" * 5000}), settings=small) as client:
        with pytest.raises(NodeAnswerError, match="longer than 1000 bytes"):
            await client.call("echo")


@asynchronous
async def test_request_is_kept_below_the_bound() -> None:
    sizes: list[int] = []
    small = RpcSettings(timeout=2, attempts=1, body=600)

    def script(asked: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        sizes.append(len(json.dumps(asked, separators=(",", ":"))))
        whole = asked if isinstance(asked, list) else [asked]
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
