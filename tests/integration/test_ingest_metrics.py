"""Metrics of an ingest node, scraped from the command and compared with what publishers did."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from commands import command
from prometheus_client.parser import text_string_to_metric_families
from test_ingest_faults import addresses, arguments, is_ready
from test_produce_away import says

from cardinal.protocols.publish import Acknowledgement, BehindPublisher, BlockItemSet, EndOfStream, SkipBlock
from publishers import header, publisher
from serving import page


def scrape(address: str) -> dict[str, float]:
    families = text_string_to_metric_families(page(address, "/metrics")[1])
    return {
        " ".join((sample.name.removeprefix("cardinal_ingest_"), *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_what_publishers_did(tmp_path: Path) -> None:
    async def run() -> None:
        log = tmp_path / "err"
        async with command(log, *arguments(tmp_path, f"file://{tmp_path}/stream")):
            port, address = await addresses(log)
            await is_ready(address, lambda found: found[0] == 200)
            before = await asyncio.to_thread(scrape, address)
            assert (before["ready"], before["publishers"], before["acknowledged_blocks_total"]) == (1, 0, 0)
            assert "last_acknowledged" not in before
            async with publisher(port) as one, AsyncExitStack() as later:
                for number in range(5, 8):
                    await one.block(number)
                    assert await one.next() == Acknowledgement(number)
                two = await later.enter_async_context(publisher(port))
                await two.send(BlockItemSet((header(7),)), BlockItemSet((header(20),)))
                assert [type(await two.next()) for _ in range(3)] == [SkipBlock, Acknowledgement, BehindPublisher]
                await two.send(BlockItemSet(()))
                assert isinstance(await two.next(), EndOfStream)
                await says(log, "blocks 8 to 19 are missing here, and publishers have newer ones")
                await says(log, r"block 7 acknowledged: [0-9.]+ blocks/s, [12] publishers, 0 open blocks")
                now = await asyncio.to_thread(scrape, address)
            wanted = {
                "publishers": 1,
                "open_blocks": 0,
                "memory_bytes": 0,
                "last_acknowledged": 7,
                "acknowledged_blocks_total": 3,
                "acknowledgement_seconds_count": 3,
                "responses_total skip": 1,
                "responses_total behind": 1,
                "responses_total invalid_request": 1,
                "first_copies_total ipv4:127.0.0.1": 3,
                "events_total catch_up": 1,
            }
            assert {name: now[name] for name in wanted} == wanted
            async with asyncio.timeout(60):
                while now.get("promoted_blocks_total") != 3:
                    now = await asyncio.to_thread(scrape, address)
            assert (now["pool_bytes"], now["waiting_blocks"], now["last_promoted"]) == (0, 0, 7)

    asyncio.run(run())
