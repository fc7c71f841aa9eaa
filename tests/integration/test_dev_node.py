"""A development node over JSON-RPC: the same chain as the feed in process, for feeds and for other processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from feeding import assert_lawful, asynchronous, connected, everything, given, opened

from cardinal.errors import NodeAnswerError
from cardinal_devkit.devchain import DevChain, DevFeed, DevNode, DevSettings

SETTINGS = DevSettings(seed=4, blocks=40, reorg_rate=0.3)
COMMAND = Path(sys.executable).with_name("cardinal")


def canonical(settings: DevSettings) -> list[bytes]:
    """The chain in the end."""
    node = DevNode(settings)
    node.step_to(settings.blocks)
    return [ref.hash for ref in node.canonical()]


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("merged", [False, True])
@asynchronous
async def test_a_dev_node_serves_the_blocks_of_the_feed(scheme: str, *, merged: bool) -> None:
    settings = DevSettings(seed=4, blocks=40, merged=merged)
    node = DevNode(settings)
    node.step_to(settings.blocks)
    async with opened(node, scheme) as (_, feed):
        assert await feed.chain_id() == settings.chain_id
        payloads = await everything(feed.follow(until=settings.blocks))
    assert given(payloads) == canonical(settings)
    in_process = {payload.hash: payload for payload in await everything(DevFeed(settings).follow())}
    marks = {f"c/{settings.chain_id:x}/n/{tag}" for tag in ("safe", "finalized")}
    for payload in payloads:
        other = in_process[payload.hash]
        assert (payload.number, payload.parent, payload.weight) == (other.number, other.parent, other.weight)
        assert {k: v for k, v in payload.updates.items() if k not in marks} == {
            k: v for k, v in other.updates.items() if k not in marks
        }


@pytest.mark.parametrize("orphans", ["keep", "forget"])
@pytest.mark.parametrize("announce", ["final", "each", "silent"])
@asynchronous
async def test_a_feed_follows_a_playing_node_through_all_its_reorgs_to_its_end(
    orphans: Literal["keep", "forget"], announce: Literal["final", "each", "silent"]
) -> None:
    node = DevNode(SETTINGS, orphans=orphans, announce=announce)
    async with opened(node, "ws") as (_, feed):
        playing = asyncio.create_task(node.play(rate=400))
        payloads = await everything(feed.follow(until=SETTINGS.blocks))
        await playing
    assert_lawful(payloads)
    assert node.finished
    by_hash = {payload.hash: payload for payload in payloads}
    heaviest = max(payloads, key=lambda payload: payload.weight)
    chain = [heaviest]
    while (parent := by_hash.get(chain[-1].parent)) is not None:
        chain.append(parent)
    assert [payload.hash for payload in reversed(chain)] == canonical(SETTINGS)


def test_orphans_can_be_read_where_they_are_kept_and_only_there() -> None:
    keeping, forgetting = DevNode(SETTINGS), DevNode(SETTINGS, orphans="forget")
    hashes = {block.plan.name: block.block["hash"] for step in DevChain(SETTINGS) for block in step.mined}
    away: set[str] = set()
    while (step := keeping.step()) is not None:
        forgetting.step()
        away = (away | set(step.move.removed)) - set(step.move.added)
        for name in away:
            assert keeping.block(hashes[name], full=True) is not None
            assert keeping.receipts(hashes[name]) is not None
            assert forgetting.block(hashes[name], full=True) is None
            assert forgetting.receipts(hashes[name]) is None
        for name in step.move.added:
            assert forgetting.block(hashes[name], full=True) is not None
    assert away
    assert forgetting.canonical() == keeping.canonical()


@asynchronous
async def test_finality_marks_are_refused_before_the_merge_and_never_reorged_after_it() -> None:
    async with opened(DevNode(SETTINGS)) as (served, _):
        with pytest.raises(NodeAnswerError):
            served._hash_of("finalized")
    node = DevNode(DevSettings(seed=4, blocks=60, reorg_rate=0.4, merged=True))
    safe: set[str | None] = set()
    while not node.finished:
        assert node.safe is not None
        safe.add(node.hash_at(node.safe))
        node.step()
    assert safe <= {"0x" + ref.hash.hex() for ref in node.canonical()}


# --- the command -----------------------------------------------------------------------------------------------


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`cardinal dev-node --json`, and the line that it prints."""
    process = subprocess.Popen([COMMAND, "dev-node", "--json", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=60)


def failed(options: Sequence[str]) -> str:
    """What a command that cannot work says."""
    done = subprocess.run([COMMAND, "dev-node", *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.process
@asynchronous
async def test_several_processes_share_one_node() -> None:
    options = ("--seed", "4", "--blocks", "40", "--reorg-rate", "0.3", "--rate", "200", "--ahead", "10")
    with running(*options) as (process, said):
        assert said["pid"] == process.pid
        assert said["chain_id"] == 1337
        async with connected(said["http"]) as first, connected(said["ws"]) as second:
            one, other = await asyncio.gather(
                everything(first.follow(until=40)), everything(second.follow(start=5, until=40))
            )
        assert {one[-1].hash, other[-1].hash} == {canonical(SETTINGS)[-1]}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


@pytest.mark.process
def test_the_node_stops_quietly_on_a_signal_while_it_plays() -> None:
    with running("--rate", "1") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.mark.process
def test_a_port_in_use_and_an_option_out_of_bounds_are_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in failed(["--port", str(port)])
    assert "reorg-rate must be 0 to 1" in failed(["--reorg-rate", "2"])
    assert "blocks must be" in failed(["--blocks", "-1"])


@pytest.mark.process
def test_help_needs_nothing_of_the_extra() -> None:
    code = "import sys, cardinal_devkit.devchain.command; sys.exit(bool({'tiny_keccak', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0
