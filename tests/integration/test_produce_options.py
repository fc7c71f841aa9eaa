"""What `cardinal produce` tells its feed, on a real node: where to begin, how far to stay behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from anvil_node import anvil
from commands import Processes, fresh_chain_id

from cardinal import Consumer

if TYPE_CHECKING:
    from pathlib import Path


def _numbers(folder: Path) -> list[int]:
    """The blocks of the stream in a folder."""
    with Consumer(f"file://{folder}", idle_timeout=0.5) as consumer:
        return [block.number for update in consumer for block in update.added]


async def _produce(folder: Path) -> None:
    async with anvil("--chain-id", str(fresh_chain_id())) as node:
        await node.mine(8)
        chain = await node.chain()
        with Processes(folder) as processes:

            async def run(name: str, *args: str) -> list[int]:
                arguments = ("produce", "--from", node.url, "--to", f"file://{folder / name}", *args)
                status, _, said = await asyncio.to_thread(processes.run, *arguments)
                assert status == 0, said
                return await asyncio.to_thread(_numbers, folder / name)

            assert await run("number", "--start", "3", "--stop", "8") == [3, 4, 5, 6, 7, 8]
            assert await run("hash", "--start", chain[5]["hash"], "--stop", "8") == [5, 6, 7, 8]
            # Named again, the beginning is of no matter where blocks are published.
            assert await run("hash", "--start", chain[2]["hash"], "--stop", "8") == [5, 6, 7, 8]
            assert await run("lag", "--start", "earliest", "--lag", "2", "--stop", "6") == list(range(7))
            behind = processes.start(
                *("produce", "--from", node.url, "--to", f"file://{folder / 'behind'}"),
                *("--start", "earliest", "--lag", "4", "--stop", "8"),
            )
            await node.mine(4)
            assert (await asyncio.to_thread(processes.end, behind))[0] == 0
            assert await asyncio.to_thread(_numbers, folder / "behind") == list(range(9))


@pytest.mark.slow
@pytest.mark.node
def test_it_begins_where_it_is_told_and_stays_behind_the_head(tmp_path: Path) -> None:
    asyncio.run(_produce(tmp_path))
