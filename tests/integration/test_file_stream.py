"""A stream in a folder: `cardinal produce` is killed and restarted, and `cardinal tail` follows."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, Processes, fresh_chain_id, replayed, run_here

from cardinal.feeds import open_feed
from cardinal.transports.file.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.protocols.streams import Payload


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "err").mkdir()
    with Processes(tmp_path / "err") as processes:
        yield processes


async def chain_of(node: str) -> list[str]:
    feed = open_feed(node)
    blocks: list[Payload] = [payload async for payload in feed.follow()]
    await feed.close()
    by_hash = {block.hash: block for block in blocks}
    at: Payload | None = max(blocks, key=lambda block: block.weight)
    chain = []
    while at is not None:
        chain.append(f"0x{at.hash.hex()}")
        at = by_hash.get(at.parent)
    return chain[::-1]


def records_in(folder: Path) -> int:
    log = Log(folder)
    count = sum(log.ends().values())
    log.close()
    return count


@pytest.mark.slow
def test_a_producer_killed_at_random_leaves_the_nodes_chain_in_the_folder(
    processes: Processes, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chain_id = fresh_chain_id()
    node, folder = f"dev://?seed=5&chain-id={chain_id}&blocks=400", tmp_path / "log"
    stream = f"file://{folder}?segment.bytes=200000"
    rng = random.Random(9)
    for _ in range(3):
        producer = processes.start("produce", "--from", node, "--to", stream, "--producer-id", "one")
        goal = records_in(folder) + rng.randrange(50, 900)
        deadline = time.monotonic() + DEADLINE
        while producer.poll() is None and records_in(folder) < goal:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        producer.send_signal(signal.SIGKILL)
        producer.wait(DEADLINE)
    status, _, said = run_here(capfd, "produce", "--from", node, "--to", stream, "--producer-id", "one")
    assert status == 0, said
    expected = asyncio.run(chain_of(node))
    last = str(len(expected) - 1)
    status, out, said = run_here(capfd, "tail", f"file://{folder}", "--format", "json", "--stop", last)
    assert status == 0, said
    assert replayed(json.loads(line) for line in out.splitlines()) == expected
    assert len(list(folder.glob("*.avro"))) > 1
