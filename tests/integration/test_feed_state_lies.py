"""Nodes with false or missing state: a delta is the true one, from any node, or the block is refused."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import Anvil, anvil
from ethereum_blocks import text
from feeding import QUICK, asynchronous, connected, everything, take
from recording_proxy import RecordingProxy, recording_proxy
from storage_contract import CREATING, word

from cardinal.errors import FeedError, IntegrityError, NodeAnswerError, NodeUnreachableError

if TYPE_CHECKING:
    from cardinal.protocols.streams import Payload

pytestmark = pytest.mark.node

Reply = dict[str, Any]
FIRST, LAST = 2, 7


@asynccontextmanager
async def busy() -> AsyncIterator[tuple[Anvil, RecordingProxy]]:
    """A chain with a contract, slots, transfers and nothing, and a proxy to it that may lie.

    The first slots are set to zero where nothing is: anvil writes them down, and no trace of changes names them.
    """
    async with anvil() as node, recording_proxy(node.url) as proxy:
        accounts = await node.ask("eth_accounts")
        await node.ask("evm_mine")
        sent = {"from": accounts[1], "gas": hex(200_000)}
        created = await node.ask("eth_sendTransaction", sent | {"data": text(CREATING)})
        await node.ask("evm_mine")
        contract = (await node.ask("eth_getTransactionReceipt", created))["contractAddress"]
        for block in range(3):
            for slot in range(4):
                stored = {"to": contract, "data": text(word(slot) + word(slot * 300 * block))}
                await node.ask("eth_sendTransaction", sent | stored | {"from": accounts[slot]})
            await node.ask("evm_mine")
        await node.mine(1, 3)
        await node.ask("evm_mine")
        yield node, proxy


async def read(url: str) -> list[Payload]:
    async with connected(f"{url}#state=yes", QUICK) as feed:
        return await everything(feed.follow(start=FIRST, until=LAST))


def state(payload: Payload) -> tuple[Any, ...]:
    return dict(payload.updates), payload.deletes, payload.sub_batches


@asynchronous
async def test_block_that_one_node_cannot_prove_is_proven_by_the_other() -> None:
    def lies(method: str, _: list[Any], reply: Reply) -> Reply:
        return reply | {"result": {"accountProof": [], "storageProof": []}} if method == "eth_getProof" else reply

    async with busy() as (node, proxy):
        true = await read(node.url)
        proxy.change = lies
        assert list(map(state, await read(f"{proxy.url},{node.url}"))) == list(map(state, true))
        with pytest.raises(IntegrityError) as refused:
            await read(proxy.url)
        assert (refused.value.check, refused.value.number) == ("state", FIRST)


@asynchronous
async def test_block_that_no_node_proves_is_refused_also_where_the_other_does_not_trace() -> None:
    def lies(method: str, _: list[Any], reply: Reply) -> Reply:
        return reply | {"result": {"accountProof": [], "storageProof": []}} if method == "eth_getProof" else reply

    def refuses(method: str, _: list[Any], reply: Reply) -> Reply:
        if method != "debug_traceBlockByHash":
            return reply
        return {"jsonrpc": "2.0", "id": reply["id"], "error": {"code": -32601, "message": "no such method"}}

    async with busy() as (node, proxy), recording_proxy(node.url) as other:
        proxy.change, other.change = lies, refuses
        with pytest.raises(FeedError) as refused:
            await read(f"{proxy.url},{other.url}")
        assert isinstance(refused.value, IntegrityError | NodeAnswerError)


@asynchronous
async def test_one_trace_of_a_batch_that_fails_once_costs_nothing_but_time() -> None:
    failing = [1]

    def fails(method: str, _: list[Any], reply: Reply) -> Reply:
        if method != "debug_traceBlockByHash" or not failing:
            return reply
        failing.pop()
        return {"jsonrpc": "2.0", "id": reply["id"], "error": {"code": -32000, "message": "execution timeout"}}

    async with busy() as (node, proxy):
        true = await read(node.url)
        proxy.change = fails
        assert list(map(state, await read(proxy.url))) == list(map(state, true))
    assert not failing


@asynchronous
async def test_a_node_that_never_traces_one_block_in_time_is_waited_for_and_named_with_its_message() -> None:
    def fails(method: str, params: list[Any], reply: Reply) -> Reply:
        if method != "debug_traceBlockByHash" or params[0] != hard:
            return reply
        return {"jsonrpc": "2.0", "id": reply["id"], "error": {"code": -32000, "message": "execution timeout"}}

    async with busy() as (node, proxy):
        hard = (await node.ask("eth_getBlockByNumber", "0x4", *(False,)))["hash"]
        proxy.change = fails
        async with connected(f"{proxy.url}#state=yes", QUICK) as feed:
            payloads = feed.follow(start=FIRST, until=LAST)
            assert [payload.number for payload in await take(payloads, 2)] == [2, 3]
            with pytest.raises(NodeUnreachableError, match="execution timeout; the node counts as unreachable"):
                await take(payloads, 1)


def _forgets_a_node(dice: random.Random, reply: Reply) -> None:
    nodes = _proof(dice, reply)
    if nodes:
        nodes.pop(dice.randrange(len(nodes)))


def _alters_a_node(dice: random.Random, reply: Reply) -> None:
    nodes = _proof(dice, reply)
    if nodes:
        at = dice.randrange(len(nodes))
        place = dice.randrange(2, len(nodes[at]))
        nodes[at] = nodes[at][:place] + dice.choice("0123456789abcdef") + nodes[at][place + 1 :]


def _adds_a_node(dice: random.Random, reply: Reply) -> None:
    _proof(dice, reply).append("0x" + dice.randbytes(40).hex())


def _says_nothing(_: random.Random, reply: Reply) -> None:
    reply["result"] = None


def _proof(dice: random.Random, reply: Reply) -> list[str]:
    result = reply["result"]
    proofs = [result["accountProof"], *(slot["proof"] for slot in result.get("storageProof") or ())]
    return dice.choice(proofs)  # type: ignore[no-any-return] # JSON


def _traces_less(dice: random.Random, reply: Reply) -> None:
    if reply["result"]:
        trace = dice.choice(reply["result"])["result"]
        for side in ("pre", "post"):
            if trace[side]:
                trace[side].pop(dice.choice(sorted(trace[side])))


def _traces_other_code(_: random.Random, reply: Reply) -> None:
    for trace in reply["result"]:
        for account in trace["result"]["post"].values():
            if "code" in account:
                account["code"] += "00"


def _traces_nothing(_: random.Random, reply: Reply) -> None:
    reply["result"] = []


LIES: dict[str, list[Callable[[random.Random, Reply], None]]] = {
    "eth_getProof": [_forgets_a_node, _alters_a_node, _adds_a_node, _says_nothing],
    "debug_traceBlockByHash": [_traces_less, _traces_other_code, _traces_nothing],
}


@pytest.mark.parametrize("attempts", [12, pytest.param(400, marks=pytest.mark.soak)])
@asynchronous
async def test_node_that_lies_about_state_publishes_nothing_wrong(attempts: int) -> None:
    """Lies of any kind, now and then: what is given is true, state and all, and what is not is refused."""
    dice, told, refused = random.Random(attempts), 0, 0

    def lies(method: str, _: list[Any], reply: Reply) -> Reply:
        nonlocal told
        if method not in LIES or reply.get("result") is None or dice.random() > rate:
            return reply
        told += 1
        lie = copy.deepcopy(reply)
        dice.choice(LIES[method])(dice, lie)
        return lie

    async with busy() as (node, proxy):
        true = {payload.hash: state(payload) for payload in await read(node.url)}
        proxy.change = lies
        for _ in range(attempts):
            rate = 10 ** dice.uniform(-3, 0)
            async with connected(f"{proxy.url}#state=yes", QUICK) as feed:
                try:
                    async for payload in feed.follow(start=FIRST, until=LAST):
                        assert state(payload) == true[payload.hash]
                except FeedError:
                    refused += 1
    assert told > attempts
    assert 0 < refused < attempts
