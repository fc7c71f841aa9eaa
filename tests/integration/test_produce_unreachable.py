"""`cardinal produce` while its node is unreachable: at the start, and later."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, command
from ethereum_blocks import grow, replay
from feeding import asynchronous

from cardinal import Consumer
from cardinal_devkit.testing.node import JsonRpcNode
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


async def says(log: Path, pattern: str) -> str:
    """The log, once it has a line like this."""
    deadline = time.monotonic() + DEADLINE
    while not re.search(pattern, said := await asyncio.to_thread(log.read_text)):
        assert time.monotonic() < deadline, said
        await asyncio.sleep(0.02)
    return said


def ready(address: str) -> tuple[int, str]:
    with closing(HTTPConnection(address, timeout=DEADLINE)) as connection:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read().decode()


def published(address: str) -> str:
    with closing(HTTPConnection(address, timeout=DEADLINE)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode().partition("\ncardinal_produce_published_head ")[2].split()[0]


@asynchronous
async def test_an_unreachable_node_is_waited_for_at_the_start_and_later(tmp_path: Path) -> None:
    chain, log, stream = grow(None, 8), tmp_path / "err", f"file://{tmp_path}/log"
    served = replay(chain)
    served.set_head(chain[4].name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node, metrics = f"http://127.0.0.1:{port}#attempts=1", "127.0.0.1:0"
    options = ("--start", "earliest", "--producer-id", "one", "--metrics", metrics)
    async with command(log, "produce", "--from", node, "--to", stream, *options) as process:
        said = await says(log, "no node answers at .*; the service waits")
        address = said.partition("metrics at http://")[2].partition("/")[0]
        status, sentence = await asyncio.to_thread(ready, address)
        assert (status, sentence.startswith("no node answers at ")) == (503, True), sentence
        async with JsonRpcNode(served, port=port):
            await says(log, r"the node answers \(after ")
            await says(log, r"block 4, node head 4, lag 0")
        await says(log, "no node answers at .*; retrying\n")
        served.set_head(chain[7].name, announce="silent")
        async with JsonRpcNode(served, port=port):
            await asyncio.to_thread(until, lambda: published(address) == "7.0")
            process.terminate()
            assert await asyncio.wait_for(process.wait(), DEADLINE) == 0
    with Consumer(stream, chain_id=1337, until="end") as consumer:
        assert [block.number for update in consumer for block in update.added] == list(range(8))
