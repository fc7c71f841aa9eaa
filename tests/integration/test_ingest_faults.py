"""Faults around an ingest node: each is named, costs its own stream, and leaves memory bounded."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from commands import command
from test_ingest_node import Served, opened, other, serving, until
from test_produce_away import ready, says

from cardinal.embedded import EmbeddedKafka, free_port
from cardinal.errors import ConfigurationError
from cardinal.protocols.publish import (
    NONE,
    STATUS_METHOD,
    STATUS_SERVICE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    ResendBlock,
    SkipBlock,
    Status,
)
from cardinal.protocols.publish.node_status_pb2 import ServerStatusResponse
from cardinal.server.ingest.limits import Limits
from cardinal.server.ingest.listener import MESSAGE_BYTES
from cardinal.server.ingest.tls import server_credentials
from cardinal.testing.proxy import Link, TcpProxy
from certificates import Authority
from publishers import Publisher, header, proof, publisher

if TYPE_CHECKING:
    from collections.abc import Sequence

MEBIBYTE = 1 << 20
BIG = b"\x12" + b"\x80\x80\x40" + bytes(MEBIBYTE)


@asynccontextmanager
async def publishers(port: int, count: int) -> AsyncIterator[list[Publisher]]:
    """So many publishers, each with a connection of its own, and little memory for what it does not read."""
    own = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 64 << 10),
    )
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own))
            for _ in range(count)
        ]
        yield [Publisher(channel) for channel in channels]


async def honest(served: Served, number: int) -> None:
    """A publisher is served."""
    async with publisher(served.port) as one:
        await one.block(number)
        while (response := await one.next()) != Acknowledgement(number):
            assert isinstance(response, Acknowledgement | ResendBlock)


def test_garbage_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    invalid = [b"\xff\xff", b"\x08\x01", b"\x0a\x02\x0a\x00", b"\x0a\x00", b"", bytes(100), b"\x0a\x04\x0a\x02\x0a\x7f"]

    async def run() -> None:
        async with serving(tmp_path) as served, publishers(served.port, len(invalid)) as liars:
            for liar, data in zip(liars, invalid, strict=True):
                await liar.send_bytes(data)
                assert await liar.next() == EndOfStream(Status.INVALID_REQUEST, NONE, 0)
                assert await liar.next() is None
            await honest(served, 1)
            assert served.node.responses["invalid_request"] == len(invalid)

    asyncio.run(run())


def test_a_message_above_the_limit_ends_its_stream_and_drops_its_block(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served, publishers(served.port, 1) as (one,):
            await one.send(BlockItemSet((header(1),)))
            await opened(served, 1)
            await one.send_bytes(bytes(MESSAGE_BYTES + 1))
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await one.next()
            await honest(served, 1)
            assert served.node.memory == 0

    asyncio.run(run())


def test_the_largest_item_of_a_publisher_is_accepted(tmp_path: Path) -> None:
    size = 6_292_480
    item = b"\x12" + bytes((size - 5 & 0x7F | 0x80, (size - 5) >> 7 & 0x7F | 0x80, (size - 5) >> 14 & 0x7F | 0x80, 3))
    item += bytes(size - len(item))

    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            await one.send(BlockItemSet((header(1),)), BlockItemSet((item,)))
            await one.send(BlockItemSet((proof(1),)), BlockEnd(1))
            assert await one.next() == Acknowledgement(1)

    asyncio.run(run())


def test_a_block_that_is_never_ended_is_timed_out_and_taken_from_another_publisher(tmp_path: Path) -> None:
    async def run() -> None:
        times = {"block_time": 0.05, "idle_timeout": 0.2, "block_timeout": 1.0}
        async with serving(tmp_path, **times) as served, publisher(served.port) as one:
            await one.send(BlockItemSet((header(1), other(9))))
            assert await one.next() == EndOfStream(Status.TIMEOUT, NONE, 1)
            assert served.node.memory == 0
            await honest(served, 1)

    asyncio.run(run())


def test_items_without_a_header_are_ignored_and_counted(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            await one.send(*[BlockItemSet((other(9),))] * 10, BlockEnd(5))
            await one.block(1)
            assert await one.next() == Acknowledgement(1)
            assert served.node.ignored == 11

    asyncio.run(run())


def test_fifty_rapid_reconnects_leave_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served:
            for _ in range(50):
                async with publisher(served.port) as one:
                    await one.send(BlockItemSet((header(1), other(100))))
            await until(lambda: served.node.publishers == 0)
            assert served.node.memory == 0
            await honest(served, 1)

    asyncio.run(run())


def test_publishers_beyond_the_limit_are_sent_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, limits=Limits(publishers=1)) as served, publisher(served.port) as one:
            await one.block(1)
            assert await one.next() == Acknowledgement(1)
            async with publishers(served.port, 1) as (two,):
                assert await two.next() == EndOfStream(Status.ERROR, 1, 0)
            assert served.node.events["crowded"] == 1

    asyncio.run(run())


def test_a_publisher_that_reads_nothing_loses_its_stream(tmp_path: Path) -> None:
    """Every header is answered; its own memory takes the first answers, whatever it reads."""

    async def run() -> None:
        async with serving(tmp_path) as served, publishers(served.port, 1) as (one,):
            await honest(served, 5)
            request = BlockItemSet((header(7),))
            pushing = asyncio.ensure_future(one.send(*[request] * 1_000_000))
            await until(lambda: bool(served.node.events["unread"]))
            pushing.cancel()
            assert served.node.events["unread"] == 1
            await honest(served, 6)

    asyncio.run(run())


@pytest.mark.slow
def test_a_publisher_that_goes_silent_on_the_line_is_noticed_and_its_block_requested_from_others(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path, keepalive=1.0) as served:
            with TcpProxy(f"127.0.0.1:{served.port}") as proxy:
                silent_port = int(proxy.address.rpartition(":")[2])
                async with publisher(silent_port) as silent, publisher(served.port) as one:
                    await silent.send(BlockItemSet((header(1),)))
                    await opened(served, 1)
                    await one.send(BlockItemSet((header(1),)))
                    assert await one.next() == SkipBlock(1)
                    proxy.impair(Link(blackhole=True))
                    assert await one.next() == ResendBlock(1)
                    await one.block(1)
                    assert await one.next() == Acknowledgement(1)
                    assert served.node.publishers == 1

    asyncio.run(run())


def test_a_node_without_space_sends_behind_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    class Disk:
        full = ""

    async def run() -> None:
        async with serving(tmp_path, obstacle=lambda: Disk.full) as served, publisher(served.port) as one:
            await one.block(1)
            assert await one.next() == Acknowledgement(1)
            Disk.full = "the disk is full"
            await until(lambda: served.node.waits_for == Disk.full)
            await one.block(2)
            assert await one.next() == BehindPublisher(1)
            Disk.full = ""
            await until(lambda: not served.node.waits_for)
            await one.block(2)
            assert await one.next() == Acknowledgement(2)

    asyncio.run(run())


def test_memory_that_is_full_stops_all_but_the_lowest_block(tmp_path: Path) -> None:
    """Three blocks of 8 MiB, and memory for 4: the streams of the upper two are not read until the lowest is stored."""

    async def run() -> None:
        limits = Limits(memory_bytes=4 * MEBIBYTE)
        most = 0
        async with serving(tmp_path, limits=limits, first=1) as served, publishers(served.port, 3) as three:

            async def push(number: int, one: Publisher) -> None:
                for _ in range(8):
                    await one.send(BlockItemSet((BIG,)))
                await one.send(BlockItemSet((proof(number),)), BlockEnd(number))

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, served.node.memory)
                    await asyncio.sleep(0.001)

            watching = asyncio.ensure_future(watch())
            for number, one in enumerate(three, 1):
                await one.send(BlockItemSet((header(number),)))
                await opened(served, number)
            upper = [asyncio.ensure_future(push(number, one)) for number, one in ((2, three[1]), (3, three[2]))]
            await until(lambda: served.node.memory >= limits.memory_bytes)
            await push(1, three[0])
            await until(lambda: served.node.last == 3)
            await asyncio.gather(*upper)
            watching.cancel()
            assert most < limits.memory_bytes + 11 * MEBIBYTE, "one block, and a message of each stream"
            assert served.node.memory == 0

    asyncio.run(run())


def test_status_of_a_node_is_what_a_publisher_needs_before_it_begins(tmp_path: Path) -> None:
    async def status(served: Served) -> tuple[int, int, int]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            found = ServerStatusResponse.FromString(
                await channel.unary_unary(f"/{STATUS_SERVICE}/{STATUS_METHOD}")(b"")
            )
        return found.first_available_block, found.last_available_block, found.next_expected_block

    async def run() -> None:
        async with serving(tmp_path) as served:
            assert await status(served) == (NONE, NONE, NONE)
            await honest(served, 4)
            await honest(served, 5)
            assert await status(served) == (4, 5, 6)

    asyncio.run(run())


# --- files of TLS ---------------------------------------------------------------------------------------------------


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    one, two = authority.sign("one", hosts=["127.0.0.1"]), authority.sign("two")
    with pytest.raises(ConfigurationError, match="do not belong together"):
        server_credentials(one.certificate, two.key, None)
    with pytest.raises(ConfigurationError, match="No such file"):
        server_credentials(tmp_path / "absent", None, None)
    with pytest.raises(ConfigurationError, match=r"authorities .*not PEM"):
        server_credentials(one.certificate, one.key, one.key)
    with pytest.raises(ConfigurationError, match="without --cert-file"):
        server_credentials(None, one.key, None)
    assert server_credentials(None, None, None) is None
    assert server_credentials(one.store, None, authority.certificate) is not None


# --- the command ----------------------------------------------------------------------------------------------------


def arguments(folder: Path, to: str, *more: str) -> Sequence[str]:
    options = ("--node-id", "a", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--app", "items", *more)
    return ("ingest", *options, "--to", to, "--data", str(folder / "data"))


async def addresses(log: Path) -> tuple[int, str]:
    """The port for publishers, and the address of metrics."""
    said = await says(log, "publishers are served on port [0-9]+\n")
    return (
        int(said.partition("publishers are served on port ")[2].split()[0]),
        said.partition("metrics at http://")[2].partition("/")[0],
    )


async def is_ready(address: str, holds: Callable[[tuple[int, str]], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds(await asyncio.to_thread(ready, address)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


def test_a_full_disk_is_named_and_the_node_goes_on_when_there_is_space(tmp_path: Path) -> None:
    async def run() -> None:
        log = tmp_path / "err"
        async with command(log, *arguments(tmp_path, "null://")) as process:
            port, address = await addresses(log)
            await is_ready(address, lambda found: found[0] == 200)
            async with publisher(port) as one:
                await one.block(1)
                assert await one.next() == Acknowledgement(1)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
                await one.send(BlockItemSet((header(2), BIG, proof(2))), BlockEnd(2))
                assert await one.next() == EndOfStream(Status.PERSISTENCE_FAILED, 1, 2)
            await is_ready(address, lambda found: found[0] == 503 and "cannot be written" in found[1])
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await is_ready(address, lambda found: found[0] == 200)
            async with publisher(port) as one:
                await one.send(BlockItemSet((header(2), BIG, proof(2))), BlockEnd(2))
                assert await one.next() == Acknowledgement(2)

    asyncio.run(run())


def test_a_node_that_is_stopped_says_so_to_its_publishers_and_ends_well(tmp_path: Path) -> None:
    async def run() -> None:
        log = tmp_path / "err"
        async with command(log, *arguments(tmp_path, f"file://{tmp_path}/stream")) as process:
            port, _ = await addresses(log)
            async with publisher(port) as one:
                await one.block(1)
                assert await one.next() == Acknowledgement(1)
                process.terminate()
                assert await one.next() == EndOfStream(Status.SUCCESS, 1, 1)
                assert await one.next() is None
            assert await process.wait() == 0
        assert "Traceback" not in log.read_text()

    asyncio.run(run())


def status_kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def test_two_hundred_publishers_that_push_at_once_leave_memory_bounded(tmp_path: Path) -> None:
    """Each pushes 8 MiB, 1.6 GiB together, to a node that has memory for 16 MiB of blocks."""
    item = b"\x12" + b"\x80\x80\x10" + bytes(MEBIBYTE // 4)

    async def push(number: int, one: Publisher) -> None:
        await one.send(BlockItemSet((header(number),)), *[BlockItemSet((item,))] * 32)
        await one.send(BlockItemSet((proof(number),)), BlockEnd(number))
        while await one.next() is not None:
            pass

    async def run() -> None:
        log = tmp_path / "err"
        async with command(log, *arguments(tmp_path, "null://", "--memory-mb", "16", "--first", "0")) as process:
            port, address = await addresses(log)
            before = resident(process.pid, "VmRSS")
            async with publishers(port, 200) as all_of_them:
                pushing = [asyncio.ensure_future(push(i % 60, one)) for i, one in enumerate(all_of_them)]
                async with publisher(port) as one:
                    while (response := await one.next()) is not None:
                        if isinstance(response, Acknowledgement) and response.block_number >= 3:
                            break
                for task in pushing:
                    task.cancel()
            assert resident(process.pid, "VmHWM") - before < 700 * MEBIBYTE
            assert (await asyncio.to_thread(ready, address))[0] == 200

    asyncio.run(run())


def resident(pid: int, name: str) -> int:
    """Bytes of memory of a process, now or at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.mark.slow
@pytest.mark.broker
def test_blocks_are_accepted_while_the_broker_is_away_until_the_pool_is_full(tmp_path: Path) -> None:
    async def run() -> None:
        log, port = tmp_path / "err", free_port()
        to = f"kafka://127.0.0.1:{port}"
        async with command(log, *arguments(tmp_path, to, "--pool-mb", "2", "--topic", "opaque")):
            publish, address = await addresses(log)
            async with publisher(publish) as one:
                for number in range(2):
                    await one.send(BlockItemSet((header(number), BIG, proof(number))), BlockEnd(number))
                    assert await one.next() == Acknowledgement(number)
                await is_ready(
                    address, lambda found: "not on the topics" in found[1] and "the service waits" in found[1]
                )
                await one.block(2)
                assert await one.next() == BehindPublisher(1)
                with EmbeddedKafka(tmp_path / "kafka", port=port):
                    await is_ready(address, lambda found: found[0] == 200)
                    await one.block(2)
                    assert await one.next() == Acknowledgement(2)

    asyncio.run(run())
