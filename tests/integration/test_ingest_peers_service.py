"""Linked ingest nodes as processes: killed in mid catch-up, on topics of their own or shared, beside hostile peers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import command
from test_ingest_faults import addresses, resident
from test_ingest_metrics import scrape
from test_ingest_peers import far_ahead, flood
from test_produce_away import says

from cardinal.apps import get, items
from cardinal.consumer import Consumer
from cardinal.protocols.publish import Acknowledgement
from cardinal.protocols.streams import Payload
from cardinal.testing.proxy import CLEAR, Link, TcpProxy
from peering import announcing, body, lying, named, reply
from publishers import Publisher, publisher

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka

MEBIBYTE = 1 << 20
ITEM = b"\x12\x90\x4e" + bytes(10_000)


def arguments(folder: Path, to: str, *more: str) -> tuple[str, ...]:
    """A node of its own name and folder."""
    options = ("--node-id", folder.name, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--app", "items")
    return ("ingest", *options, "--to", to, "--data", str(folder), "--peer-listen", "127.0.0.1:0", *more)


async def peer_port(log: Path) -> int:
    return int(
        (await says(log, "peers are served on port [0-9]+\n")).partition("peers are served on port ")[2].split()[0]
    )


async def push(one: Publisher, first: int, last: int) -> None:
    """Publish blocks, few in flight, and wait until all are acknowledged."""
    acknowledged = first - 1
    for number in range(first, last + 1):
        await one.block(number, ITEM)
        while acknowledged < number - 20 or (number == last and acknowledged < last):
            response = await one.next()
            assert isinstance(response, Acknowledgement)
            acknowledged = response.block_number


async def reaches(address: str, name: str, value: float) -> dict[str, float]:
    """The metrics, once one of them is so high."""
    async with asyncio.timeout(60):
        found = await asyncio.to_thread(scrape, address)
        while found.get(name, -1) < value:
            await asyncio.sleep(0.02)
            found = await asyncio.to_thread(scrape, address)
    return found


def consumed(url: str, app: Application, last: int) -> Iterator[items.Block]:
    """The blocks of a stream, as a consumer gets them."""
    with Consumer(url, app, idle_timeout=60) as consumer:
        for update in consumer:
            assert not update.removed
            for added in update.added:
                assert isinstance(added, Payload)
                yield items.read(added)
            if update.added[-1].number >= last:
                return


async def away(folder: Path, urls: tuple[str, str], *more: str, last: int) -> None:
    """Node b is killed, misses 200 blocks, is killed in mid catch-up, and is level in the end; a is published to."""
    log = folder / "a.err"
    async with command(log, *arguments(folder / "a", urls[0], *more)):
        port, address = await addresses(log)
        with TcpProxy(f"127.0.0.1:{await peer_port(log)}") as proxy:
            options = arguments(folder / "b", urls[1], "--peers", proxy.address, "--first", "0", *more)
            async with publisher(port) as one:
                await push(one, 0, 10)
                async with command(folder / "b.0.err", *options) as process:
                    _, other = await addresses(folder / "b.0.err")
                    await reaches(other, "last_acknowledged", 10)
                    process.kill()
                    await process.wait()
                await push(one, 11, 230)
                proxy.impair(Link(bytes_per_second=500_000))
                pushing = asyncio.ensure_future(push(one, 231, last))
                async with command(folder / "b.1.err", *options) as process:
                    _, other = await addresses(folder / "b.1.err")
                    found = await reaches(other, "fetched_blocks_total", 20)
                    assert found["last_acknowledged"] < 200, "it is in mid catch-up"
                    assert (found["peers"], found["peers_absent"]) == (1, 0)
                    process.kill()
                    await process.wait()
                proxy.impair(CLEAR)
                async with command(folder / "b.2.err", *options) as process:
                    _, other = await addresses(folder / "b.2.err")
                    await pushing
                    found = await reaches(other, "last_acknowledged", last)
                    await reaches(other, "promoted_blocks_total", found["acknowledged_blocks_total"])
                    served = await asyncio.to_thread(scrape, address)
                    assert served["served_blocks_total"] >= found["fetched_blocks_total"] > 0
                    assert served["peer_clients"] == 1
                    assert not [name for name in (*served, *found) if "peer_refusals_total" in name]
                    process.terminate()
                    assert await process.wait() == 0
    for name in ("a", "b.0", "b.1", "b.2"):
        assert "Traceback" not in (folder / f"{name}.err").read_text()


def test_a_node_that_is_killed_in_mid_catch_up_has_every_block_on_topics_of_its_own(tmp_path: Path) -> None:
    urls, last = (f"file://{tmp_path}/stream-a", f"file://{tmp_path}/stream-b"), 500
    asyncio.run(away(tmp_path, urls, last=last))
    app = get("items", chain_id=1)
    for url in urls:
        blocks = list(consumed(url, app, last))
        assert [block.number for block in blocks] == list(range(last + 1))
        assert all(block.items[1] == ITEM for block in blocks)


@pytest.mark.slow
@pytest.mark.broker
def test_nodes_on_shared_topics_leave_one_stream_whole(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    url, topic, last = f"kafka://{cardinal_broker.bootstrap}", f"items-{uuid.uuid4().hex}", 500
    asyncio.run(away(tmp_path, (url, url), "--topic", topic, last=last))
    blocks = list(consumed(url, get("items", topic=topic), last))
    assert [block.number for block in blocks] == list(range(last + 1))


def test_hostile_peers_cost_a_node_no_memory_and_its_publisher_nothing(tmp_path: Path) -> None:
    """Peers that send without end, and clients of its own peer port that do: a publisher's blocks pass all the same."""
    garbage = bytes(1 << 16)

    async def push_garbage(port: int) -> None:
        while True:
            with suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                while True:
                    writer.write(garbage)
                    await writer.drain()
            await asyncio.sleep(0.01)

    def settled() -> Iterator[tuple[object, int]]:
        while True:
            yield named(0), len(body(0))

    async def run() -> None:
        log = tmp_path / "err"
        repeating = announcing(settled(), lambda found: reply(*(body(one.number) for one in found)))  # type: ignore[arg-type]
        async with lying(flood) as one, lying(far_ahead()) as two, lying(repeating) as three:
            peers = ",".join(f"127.0.0.1:{liar.port}" for liar in (one, two, three))
            options = arguments(tmp_path / "a", "null://", "--peers", peers, "--first", "0")
            async with command(log, *options) as process:
                port, address = await addresses(log)
                hostile = asyncio.ensure_future(push_garbage(await peer_port(log)))
                before = resident(process.pid, "VmRSS")
                async with publisher(port) as source:
                    await push(source, 0, 300)
                found = await reaches(address, "promoted_blocks_total", 301)
                hostile.cancel()
                assert found["last_acknowledged"] == 300
                assert found["peer_refusals_total DecoderFailure"] > 10
                assert {"peer_refusals_total ExceededSizeLimit", "peer_refusals_total unlinked"} <= found.keys()
                assert found["pool_bytes"] < MEBIBYTE
                assert resident(process.pid, "VmHWM") - before < 100 * MEBIBYTE
        assert "Traceback" not in log.read_text()

    asyncio.run(run())
