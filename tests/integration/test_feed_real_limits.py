"""Limits of real nodes per request, and their detection by the client: anvil, and geth over all transports."""

from __future__ import annotations

from pathlib import Path

import pytest
from anvil_node import anvil
from feeding import asynchronous
from geth_node import geth

from cardinal.config.url import Endpoint
from cardinal.errors import NodeAnswerError
from cardinal_connectors.ethereum.rpc.client import RpcCall, RpcClient
from cardinal_connectors.ethereum.settings import RpcSettings

pytestmark = pytest.mark.node

MANY = 2_500
"""Calls: geth takes a thousand in a batch."""


async def assert_all_are_answered(url: str, call: RpcCall, count: int = MANY) -> None:
    client = RpcClient(Endpoint.parse(url), RpcSettings(batch=MANY, body=50_000_000, attempts=8, backoff=0.01))
    outcomes = await client.batch([call] * count)
    await client.close()
    assert len(outcomes) == count
    assert not [outcome for outcome in outcomes if isinstance(outcome, NodeAnswerError)]
    assert len({bytes(outcome) for outcome in outcomes if not isinstance(outcome, NodeAnswerError)}) == 1


@pytest.mark.slow  # compiles geth
@asynchronous
async def test_geth_that_refuses_a_batch_is_asked_for_less(tmp_path: Path) -> None:
    async with geth(tmp_path) as node:
        for url in (node.url, node.ws_url, node.ipc_url):
            await assert_all_are_answered(url, RpcCall("eth_chainId"))
            await assert_all_are_answered(url, RpcCall("eth_getBlockByNumber", ("0x0", True)))


@pytest.mark.slow  # compiles geth
@asynchronous
async def test_geth_that_refuses_a_body_is_asked_for_less(tmp_path: Path) -> None:
    """Six megabytes in 500 calls: what is too much over HTTP is told by a status, elsewhere by a closed connection."""
    padded = RpcCall("eth_call", ({"to": "0x" + "22" * 20, "data": "0x" + "00" * 6_000}, "latest"))
    async with geth(tmp_path) as node:
        await assert_all_are_answered(node.url, padded, 500)


@asynchronous
async def test_anvil_that_breaks_off_is_asked_for_less() -> None:
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
