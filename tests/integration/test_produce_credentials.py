"""`cardinal produce` and `repair` from a node that wants to be shown a token: by URL, settings file, environment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from commands import COMMAND
from ethereum_blocks import grow, replay
from feeding import asynchronous, serving

from cardinal import Consumer, apps
from cardinal.protocols.streams import split
from cardinal.transports import open_sink
from cardinal_devkit.testing.node import Demand
from cardinal_ethereum import payload_from_rpc

pytestmark = pytest.mark.process

TOKEN, OTHER = "s3cr3t-token-1", "s3cr3t-token-2"
DEADLINE = 60.0


def held(folder: Path, token: str) -> Path:
    file = folder / "token"
    file.write_text(f"{token}\n")
    return file


def published(folder: Path) -> list[bytes]:
    with Consumer(f"file://{folder}/log", idle_timeout=0.5) as consumer:
        return [block.hash for update in consumer for block in update.added]


async def produced(folder: Path, *arguments: str, command: str = "produce", **environ: str) -> tuple[int | None, str]:
    """How `cardinal produce` to the folder's log ended, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, command, "--to", f"file://{folder}/log", *arguments),
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE):
        said, _ = await process.communicate()
    assert b"s3cr3t" not in said
    return process.returncode, said.decode()


WAYS = ["url", "file", "file with another header", "environment", "environment's file", "two nodes"]


@pytest.mark.parametrize("way", WAYS)
@asynchronous
async def test_a_token_is_read_from_the_url_a_file_or_the_environment(tmp_path: Path, way: str) -> None:
    chain = grow(None, 6)
    file, config = held(tmp_path, TOKEN), tmp_path / "cardinal.toml"
    async with serving(replay(chain)) as node, serving(replay(chain)) as other:
        node.demand, other.demand = Demand.bearer(TOKEN), Demand.bearer(OTHER)
        arguments = ["--from", "own", "--start", "earliest", "--stop", "4", "--lag", "1"]
        environ = {}
        if way == "url":
            arguments[1] = f"{node.url}#token_file={file}"
        elif way == "file":
            config.write_text(f"[nodes.own]\nurl = '{node.url}'\ntoken_file = '{file}'")
        elif way == "file with another header":
            node.demand = Demand(TOKEN, "X-Api-Key")
            config.write_text(f"[nodes.own]\nurl = '{node.ws_url}'\ntoken = '{TOKEN}'\nheader = 'X-Api-Key'")
        elif way == "environment":
            environ = {"CARDINAL_OWN_URL": node.url, "CARDINAL_OWN_TOKEN": TOKEN}
        elif way == "environment's file":
            environ = {"CARDINAL_OWN_URL": f"{node.url}#poll=1", "CARDINAL_OWN_TOKEN_FILE": str(file)}
        else:  # the first is unreachable
            other.demand = Demand.bearer(TOKEN)
            arguments[1] = f"http://127.0.0.1:1#token=s3cr3t,{other.url}#token_file={file}&attempts=1"
        if config.exists():
            arguments += ["--config", str(config)]
        status, said = await produced(tmp_path, *arguments, **environ)
        assert status == 0, said
        assert (node.denials, other.denials) == (0, 0)
    assert await asyncio.to_thread(published, tmp_path) == [block.hash for block in chain[:5]]


@asynchronous
async def test_a_wrong_token_ends_produce_after_one_request(tmp_path: Path) -> None:
    file = held(tmp_path, OTHER)
    async with serving(replay(grow(None, 6))) as node:
        node.demand = Demand.bearer(TOKEN)
        status, said = await produced(tmp_path, "--from", f"{node.url}#token_file={file}")
        assert status == 1
        assert node.denials == 1
        assert said == (
            f"error: the node at {node.url} refuses the credentials (HTTP 401); check the token in {file}\n"
        )


@pytest.mark.parametrize("way", ["url", "file"])
@asynchronous
async def test_repair_sends_the_token_too(tmp_path: Path, way: str) -> None:
    chain = grow(None, 6)
    app = apps.get("evm", chain_id=1337)
    payloads = [payload_from_rpc(one.block, one.receipts, chain_id=1337) for one in chain]
    sink = open_sink(f"file://{tmp_path}/log", app, producer_id="killed")
    for payload in payloads:
        if payload.number != 3:
            sink.send(split(payload, app.topics, app.default_topic), None).result(DEADLINE)
    sink.close()
    file, config = held(tmp_path, OTHER), tmp_path / "cardinal.toml"
    async with serving(replay(chain)) as node:
        node.demand = Demand.bearer(TOKEN)
        source = f"{node.url}#token_file={file}"
        if way == "file":
            config.write_text(f"[nodes.own]\nurl = '{node.url}'\ntoken_file = '{file}'")
            source = "own"
        named = ["--config", str(config)] if config.exists() else []
        arguments = ("--from", source, "--start", "0", "--stop", "5", *named)
        status, said = await produced(tmp_path, *arguments, command="repair")
        assert status == 1
        assert said.endswith(f"refuses the credentials (HTTP 401); check the token in {file}\n")
        held(tmp_path, TOKEN)
        status, said = await produced(tmp_path, *arguments, command="repair")
        assert status == 0, said
        assert "1 missing, 0 partially published, 1 sent" in said
    assert await asyncio.to_thread(published, tmp_path) == [block.hash for block in chain]
