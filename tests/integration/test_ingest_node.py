"""Ingest node over gRPC: one copy wins; each fault is named, costs its own stream, and leaves memory bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from commands import command
from ethereum_blocks import Built, build
from prometheus_client.parser import text_string_to_metric_families
from test_produce_unreachable import ready, says

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import Payload
from cardinal_devkit.kafka import EmbeddedKafka, free_port
from cardinal_devkit.testing.proxy import Link, TcpProxy
from cardinal_ethereum import payload_from_rpc, rlp
from cardinal_ingest.body import items_of
from cardinal_ingest.node.limits import Limits
from cardinal_ingest.node.listener import MESSAGE_BYTES, Listener
from cardinal_ingest.node.tls import server_context
from cardinal_ingest.protocols.publish import (
    NONE,
    STATUS_METHOD,
    STATUS_SERVICE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    EndCode,
    EndOfStream,
    EndStream,
    ResendBlock,
    SkipBlock,
    Status,
)
from cardinal_ingest.protocols.publish.node_status_pb2 import ServerStatusResponse
from certificates import Authority
from ingesting import Publisher, Served, header, ids, opened, other, proof, publisher, serving, workers_of
from looping import on_loop
from serving import page
from waiting import until_async

if TYPE_CHECKING:
    from collections.abc import Sequence


@on_loop
async def test_one_copy_wins_and_both_publishers_are_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, publisher(served.port) as one, publisher(served.port) as two:
        await one.send(BlockItemSet((header(1), other(3))))
        await opened(served, 1)
        await two.send(BlockItemSet((header(1),)))
        assert await two.next() == SkipBlock(1)
        assert served.promoted == []
        await one.send(BlockItemSet((other(4), proof(1))), BlockEnd(1))
        assert await one.next() == await two.next() == Acknowledgement(1)
        assert served.promoted == ids(1)
        await one.send(BlockItemSet((header(7),)))
        assert await one.next() == BehindPublisher(1)


@on_loop
async def test_what_was_acknowledged_outlives_a_restart_and_is_promoted_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, publisher(served.port) as one:
        for number in (1, 2):
            await one.block(number, other(9))
            assert await one.next() == Acknowledgement(number)
    async with serving(tmp_path) as served, publisher(served.port) as one:
        assert served.promoted == ids(1, 2)
        assert served.node.last == 2
        await one.send(BlockItemSet((header(2),)))
        assert [await one.next(), await one.next()] == [SkipBlock(2), Acknowledgement(2)]
        await one.block(3)
        assert await one.next() == Acknowledgement(3)
        assert served.promoted == ids(1, 2, 3)


# --- blocks that prove their content ---------------------------------------------------------------------------------


def evm(built: Built) -> Payload:
    return payload_from_rpc(built.block, built.receipts, chain_id=1)


def with_another_gas(payload: Payload) -> Payload:
    """The same block with a receipt that says another gas."""
    path = f"c/1/b/{payload.hash.hex()}/r/1"
    receipt = rlp.decode_list(payload.updates[path])
    receipt[1] = b"\x01"
    return replace(payload, updates=payload.updates | {path: rlp.encode(receipt)})


def sent(payload: Payload) -> tuple[BlockItemSet, BlockEnd]:
    return BlockItemSet(items_of(payload, chain_id=1)), BlockEnd(payload.number)


@pytest.mark.process
@on_loop
async def test_an_evm_block_with_a_wrong_receipt_is_refused_and_the_right_copy_of_another_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = evm(build(None, number=5_000_000))
    async with (
        serving(tmp_path, "evm", reorg_threshold=8) as served,
        publisher(served.port) as one,
        publisher(served.port) as two,
    ):
        await one.send(*sent(with_another_gas(right)))
        assert await one.next() == EndOfStream(Status.BAD_BLOCK_PROOF, NONE, right.number)
        assert await one.next() is None
        await two.send(*sent(right))
        assert await two.next() == Acknowledgement(right.number)
        assert served.promoted == [BlockId(right.number, right.hash)]
    assert "contradicts itself: receipts root" in caplog.text


@pytest.mark.process
@on_loop
async def test_a_block_whose_worker_is_killed_is_requested_again(tmp_path: Path) -> None:
    first = build(None, number=5_000_000)
    blocks = [evm(one) for one in (first, build(first))]
    async with serving(tmp_path, "evm", reorg_threshold=8) as served, publisher(served.port) as one:
        before = workers_of(os.getpid())
        await one.send(*sent(blocks[0]))
        assert await one.next() == Acknowledgement(5_000_000)
        for worker in workers_of(os.getpid()) - before:
            os.kill(worker, signal.SIGKILL)
        await one.send(*sent(blocks[1]))
        assert await one.next() == ResendBlock(5_000_001)
        await one.send(*sent(blocks[1]))
        answers = [await one.next() for _ in range(3)]  # the header is a turn: the restart comes first
        assert answers == [Acknowledgement(NONE), Acknowledgement(5_000_000), Acknowledgement(5_000_001)]
        assert served.promoted == [BlockId(block.number, block.hash) for block in blocks]


@on_loop
async def test_an_address_that_somebody_has_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(ConfigurationError, match="choose an address"):
            await Listener(served.node, f"127.0.0.1:{served.port}").__aenter__()


# --- faults ---------------------------------------------------------------------------------------------------------


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


@on_loop
async def test_garbage_is_refused_and_the_others_continue(tmp_path: Path) -> None:
    invalid = [b"\xff\xff", b"\x08\x01", b"\x0a\x02\x0a\x00", b"\x0a\x00", b"", bytes(100), b"\x0a\x04\x0a\x02\x0a\x7f"]
    async with serving(tmp_path) as served, publishers(served.port, len(invalid)) as liars:
        for liar, data in zip(liars, invalid, strict=True):
            await liar.send_bytes(data)
            assert await liar.next() == EndOfStream(Status.INVALID_REQUEST, NONE, 0)
            assert await liar.next() is None
        await honest(served, 1)
        assert served.node.responses["invalid_request"] == len(invalid)


@on_loop
async def test_a_message_above_the_limit_ends_its_stream_and_drops_its_block(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, publishers(served.port, 1) as (one,):
        await one.send(BlockItemSet((header(1),)))
        await opened(served, 1)
        await one.send_bytes(bytes(MESSAGE_BYTES + 1))
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await one.next()
        await honest(served, 1)
        assert served.node.memory == 0


@on_loop
async def test_the_largest_item_of_a_publisher_is_accepted(tmp_path: Path) -> None:
    size = 6_292_480
    item = b"\x12" + bytes((size - 5 & 0x7F | 0x80, (size - 5) >> 7 & 0x7F | 0x80, (size - 5) >> 14 & 0x7F | 0x80, 3))
    item += bytes(size - len(item))
    async with serving(tmp_path) as served, publisher(served.port) as one:
        await one.send(BlockItemSet((header(1),)), BlockItemSet((item,)))
        await one.send(BlockItemSet((proof(1),)), BlockEnd(1))
        assert await one.next() == Acknowledgement(1)


@on_loop
async def test_a_block_that_is_never_ended_is_timed_out_and_taken_from_another_publisher(tmp_path: Path) -> None:
    times = {"block_time": 0.05, "idle_timeout": 0.2, "block_timeout": 1.0}
    async with serving(tmp_path, **times) as served, publisher(served.port) as one:
        await one.send(BlockItemSet((header(1), other(9))))
        assert await one.next() == EndOfStream(Status.TIMEOUT, NONE, 1)
        assert served.node.memory == 0
        await honest(served, 1)


@on_loop
async def test_fifty_rapid_reconnects_leave_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for _ in range(50):
            async with publisher(served.port) as one:
                await one.send(BlockItemSet((header(1), other(100))))
        await until_async(lambda: served.node.publishers == 0)
        assert served.node.memory == 0
        await honest(served, 1)


@on_loop
async def test_publishers_that_come_and_go_are_named_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cardinal.ingest")

    def lines(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    async with serving(tmp_path) as served:
        await honest(served, 1)
        await until_async(lambda: lines("the publisher 127.0.0.1 is disconnected: ") == 1)
        async with publisher(served.port) as one:
            await one.send(EndStream(EndCode.RESET, 0, 1))
            assert await one.next() is None
        await until_async(lambda: lines("the publisher 127.0.0.1 is disconnected: it ended its stream (reset)") == 1)
        async with publisher(served.port) as two:
            await two.send_bytes(b"\xff\xff")
            await two.next()
        await until_async(lambda: lines("disconnected: the node ended its stream (invalid_request)") == 1)
        assert lines("the publisher 127.0.0.1 is connected") == 3
        for _ in range(20):
            async with publisher(served.port) as liar:
                await liar.send_bytes(b"\xff\xff")
                await liar.next()
        assert served.node.events["connected"] == 23
        assert lines("the publisher 127.0.0.1 is connected") == 10, "a cause has so many lines a minute"


@on_loop
async def test_publishers_beyond_the_limit_are_sent_away(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=Limits(publishers=1)) as served, publisher(served.port) as one:
        await one.block(1)
        assert await one.next() == Acknowledgement(1)
        async with publishers(served.port, 1) as (two,):
            assert await two.next() == EndOfStream(Status.ERROR, 1, 0)
        assert served.node.events["crowded"] == 1


@pytest.mark.slow
@on_loop
async def test_a_publisher_that_reads_nothing_loses_its_stream(tmp_path: Path) -> None:
    """Every header is answered; its own memory takes the first answers, whatever it reads."""
    async with serving(tmp_path) as served, publishers(served.port, 1) as (one,):
        await honest(served, 5)
        request = BlockItemSet((header(7),))
        pushing = asyncio.ensure_future(one.send(*[request] * 1_000_000))
        await until_async(lambda: bool(served.node.events["unread"]))
        pushing.cancel()
        assert served.node.events["unread"] == 1
        await honest(served, 6)


@pytest.mark.slow
@on_loop
async def test_a_publisher_that_goes_silent_on_the_line_is_noticed_and_its_block_requested_from_others(
    tmp_path: Path,
) -> None:
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


async def status(served: Served) -> tuple[int, int, int]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
        found = ServerStatusResponse.FromString(await channel.unary_unary(f"/{STATUS_SERVICE}/{STATUS_METHOD}")(b""))
    return found.first_available_block, found.last_available_block, found.next_expected_block


@on_loop
async def test_a_node_without_space_reads_no_new_block_and_continues_when_there_is_some(tmp_path: Path) -> None:
    class Disk:
        full = ""

    async with serving(tmp_path, obstacle=lambda: Disk.full) as served, publisher(served.port) as one:
        await one.block(1)
        assert await one.next() == Acknowledgement(1)
        Disk.full = "the disk is full"
        await until_async(lambda: served.node.waits_for == Disk.full)
        for number in range(2, 10):
            await one.block(number)
        assert await status(served) == (1, 1, 2)
        assert served.node.open_blocks == 0
        Disk.full = ""
        while await one.next() != Acknowledgement(9):
            pass
        assert served.node.responses["behind"] == 0


@on_loop
async def test_memory_that_is_full_stops_all_but_the_lowest_block(tmp_path: Path) -> None:
    """Three blocks of 8 MiB, and memory for 4: the streams of the upper two are not read until the lowest is stored."""
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
        await until_async(lambda: served.node.memory >= limits.memory_bytes)
        await push(1, three[0])
        await until_async(lambda: served.node.last == 3)
        await asyncio.gather(*upper)
        watching.cancel()
        assert most < limits.memory_bytes + 11 * MEBIBYTE, "one block, and a message of each stream"
        assert served.node.memory == 0


@on_loop
async def test_status_of_a_node_is_what_a_publisher_needs_before_it_begins(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await status(served) == (NONE, NONE, NONE)
        await honest(served, 4)
        await honest(served, 5)
        assert await status(served) == (4, 5, 6)


# --- files of TLS ---------------------------------------------------------------------------------------------------


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    one, two = authority.sign("one", hosts=["127.0.0.1"]), authority.sign("two")
    with pytest.raises(ConfigurationError, match="do not belong together"):
        server_context(one.certificate, two.key, None)
    with pytest.raises(ConfigurationError, match="No such file"):
        server_context(tmp_path / "absent", None, None)
    with pytest.raises(ConfigurationError, match=r"authorities .*not PEM"):
        server_context(one.certificate, one.key, one.key)
    with pytest.raises(ConfigurationError, match="without --cert-file"):
        server_context(None, one.key, None)
    assert server_context(None, None, None) is None
    assert server_context(one.store, None, authority.certificate) is not None


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


@pytest.mark.process
@on_loop
async def test_a_full_disk_is_named_and_the_node_continues_when_there_is_space(tmp_path: Path) -> None:
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


@pytest.mark.process
@on_loop
async def test_a_node_that_is_stopped_notifies_its_publishers_and_exits_cleanly(tmp_path: Path) -> None:
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


@pytest.mark.slow
@on_loop
async def test_two_hundred_publishers_that_push_at_once_leave_memory_bounded(tmp_path: Path) -> None:
    """Each pushes 8 MiB, 1.6 GiB together, to a node that has memory for 16 MiB of blocks."""
    item = b"\x12" + b"\x80\x80\x10" + bytes(MEBIBYTE // 4)

    async def push(number: int, one: Publisher) -> None:
        while True:
            await one.send(BlockItemSet((header(number),)), *[BlockItemSet((item,))] * 32)
            await one.send(BlockItemSet((proof(number),)), BlockEnd(number))
            while not isinstance(response := await one.next(), BehindPublisher):
                if response is None:
                    return
            await asyncio.sleep(0.2)  # memory was full when the block began: it is sent again

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


def resident(pid: int, name: str) -> int:
    """Bytes of memory of a process, now or at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.mark.slow
@pytest.mark.broker
@on_loop
async def test_blocks_are_accepted_while_the_broker_is_unreachable_until_the_pool_is_full(tmp_path: Path) -> None:
    log, port = tmp_path / "err", free_port()
    to = f"kafka://127.0.0.1:{port}"
    async with command(log, *arguments(tmp_path, to, "--pool-mb", "2", "--topic", "opaque")):
        publish, address = await addresses(log)
        async with publisher(publish) as one:
            for number in range(2):
                await one.send(BlockItemSet((header(number), BIG, proof(number))), BlockEnd(number))
                assert await one.next() == Acknowledgement(number)
            await is_ready(address, lambda found: "not on the topics" in found[1] and "the service waits" in found[1])
            await one.block(2)
            with EmbeddedKafka(tmp_path / "kafka", port=port):
                await is_ready(address, lambda found: found[0] == 200)
                assert await one.next() == Acknowledgement(2)


# --- metrics --------------------------------------------------------------------------------------------------------


def scrape(address: str) -> dict[str, float]:
    families = text_string_to_metric_families(page(address, "/metrics")[1])
    return {
        " ".join((sample.name.removeprefix("cardinal_ingest_"), *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.process
@on_loop
async def test_metrics_are_what_publishers_did(tmp_path: Path) -> None:
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
            await says(log, r"block 7 acknowledged: [0-9.]+ blocks/s, (1 publisher|2 publishers), 0 open blocks")
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
            "first_copies_total 127.0.0.1": 3,
            "events_total catch_up": 1,
        }
        assert {name: now[name] for name in wanted} == wanted
        async with asyncio.timeout(60):
            while now.get("promoted_blocks_total") != 3:
                now = await asyncio.to_thread(scrape, address)
        assert (now["pool_bytes"], now["waiting_blocks"], now["last_promoted"]) == (0, 0, 7)
