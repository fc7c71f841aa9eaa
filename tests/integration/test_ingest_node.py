"""Ingest node over gRPC: publishers push, one copy wins, and what was acknowledged outlives a restart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ethereum_blocks import Built, build

from cardinal.apps import get
from cardinal.apps.body import items_of
from cardinal.apps.evm import payload_from_rpc, rlp
from cardinal.errors import ConfigurationError
from cardinal.protocols.publish import (
    NONE,
    Acknowledgement,
    ArbiterSettings,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    EndOfStream,
    ResendBlock,
    SkipBlock,
    Status,
)
from cardinal.protocols.streams import Payload
from cardinal.server.ingest.blocks import blocks_of
from cardinal.server.ingest.limits import Limits
from cardinal.server.ingest.listener import Listener
from cardinal.server.ingest.node import IngestNode
from cardinal.server.ingest.store import BodyStore
from ingesting import workers_of
from publishers import header, proof, publisher

DEADLINE = 30.0


class Served:
    """A node with its promoted blocks."""

    def __init__(self, node: IngestNode, port: int, promoted: list[BlockId]) -> None:
        self.node = node
        self.port = port
        self.promoted = promoted


@asynccontextmanager
async def serving(
    folder: Path,
    app: str = "items",
    *,
    limits: Limits | None = None,
    obstacle: Callable[[], str] = str,
    keepalive: float = 20.0,
    **settings: float,
) -> AsyncIterator[Served]:
    blocks = blocks_of(get(app, chain_id=1))
    store = BodyStore(folder, f"{app}:1")
    promoted: list[BlockId] = []
    arbiting = ArbiterSettings(**settings)  # type: ignore[arg-type] # counts are whole numbers
    node = IngestNode(store, blocks, arbiting, promoted.append, limits=limits or Limits(), obstacle=obstacle)
    ticking = asyncio.ensure_future(node.run())
    try:
        async with Listener(node, "127.0.0.1:0", keepalive=keepalive) as listener:
            yield Served(node, listener.port, promoted)
            await node.close()
    finally:
        ticking.cancel()
        store.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 - what is waited for notifies nobody
            await asyncio.sleep(0.01)


async def opened(served: Served, blocks: int) -> None:
    """Wait until the node has so many open blocks."""
    await until(lambda: served.node.open_blocks >= blocks)


def other(size: int) -> bytes:
    return b"\x12" + bytes([size]) + bytes(size)


def ids(*numbers: int) -> list[BlockId]:
    return [BlockId(number) for number in numbers]


def test_one_copy_wins_and_both_publishers_are_acknowledged(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


def test_what_was_acknowledged_outlives_a_restart_and_is_promoted_again(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


def test_bytes_that_are_no_request_end_their_own_stream_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one, publisher(served.port) as two:
            await two.send(BlockItemSet((header(1),)))
            await opened(served, 1)
            await one.send_bytes(b"\xff\xff")
            assert await one.next() == EndOfStream(Status.INVALID_REQUEST, NONE, 0)
            assert await one.next() is None
            await two.send(BlockItemSet((proof(1),)), BlockEnd(1))
            assert await two.next() == Acknowledgement(1)

    asyncio.run(run())


def test_a_node_that_stops_ends_its_streams_in_good_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served, publisher(served.port) as one:
            await one.block(1)
            assert await one.next() == Acknowledgement(1)
            await served.node.close()
            assert await one.next() == EndOfStream(Status.SUCCESS, 1, 1)
            assert await one.next() is None

    asyncio.run(run())


def test_a_payload_that_is_not_what_its_header_says_is_refused_and_another_copy_taken(tmp_path: Path) -> None:
    block = Payload(5, b"h" * 32, b"p" * 32, 5, {"c/1/b/x": b"1"})
    good, lie = items_of(block, chain_id=1), items_of(block, chain_id=2)

    async def run() -> None:
        async with (
            serving(tmp_path, "blob", reorg_threshold=8) as served,
            publisher(served.port) as one,
        ):
            await one.send(BlockItemSet(lie), BlockEnd(5))
            end = await one.next()
            assert isinstance(end, EndOfStream)
            assert end.status == Status.BAD_BLOCK_PROOF
            async with publisher(served.port) as two:
                await two.send(BlockItemSet(good), BlockEnd(5))
                assert await two.next() == Acknowledgement(5)
            assert served.promoted == [BlockId(5, b"h" * 32)]

    asyncio.run(run())


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


def test_an_evm_block_with_a_wrong_receipt_is_refused_and_the_right_copy_of_another_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = evm(build(None, number=5_000_000))

    async def run() -> None:
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

    asyncio.run(run())
    assert "contradicts itself: receipts root" in caplog.text


def test_a_block_whose_worker_is_killed_is_requested_again(tmp_path: Path) -> None:
    first = build(None, number=5_000_000)
    blocks = [evm(one) for one in (first, build(first))]

    async def run() -> None:
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

    asyncio.run(run())


def test_an_address_that_somebody_has_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as served:
            with pytest.raises(ConfigurationError, match="choose an address"):
                Listener(served.node, f"127.0.0.1:{served.port}")

    asyncio.run(run())
