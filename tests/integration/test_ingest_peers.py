"""Ingest nodes that are linked: one that was down pulls what it lacks, and a bad peer costs its own link only."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import command
from test_ingest_node import MEBIBYTE, addresses, resident, scrape
from test_produce_unreachable import says

from cardinal._concurrency import new_future, settle
from cardinal._stream_server import StreamServer
from cardinal.apps import blob, get
from cardinal.consumer import Consumer
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import Payload
from cardinal_devkit.testing.proxy import CLEAR, Link, TcpProxy
from cardinal_ingest import items
from cardinal_ingest.body import frame, items_of
from cardinal_ingest.body_exchange.objects import Objects, object_of
from cardinal_ingest.body_exchange.served_bodies import Shelf
from cardinal_ingest.body_exchange.service import Peers
from cardinal_ingest.body_exchange.settings import PeerSettings, address_of, addresses_of
from cardinal_ingest.errors import StoreError
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.listener import Listener
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.node.tls import peer_contexts
from cardinal_ingest.protocols.diffusion import (
    Announcement,
    Decoder,
    Message,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    encode,
)
from cardinal_ingest.protocols.publish import (
    Acknowledgement,
    ArbiterSettings,
    BlockEnd,
    BlockId,
    BlockItemSet,
    SkipBlock,
)
from certificates import Authority
from ingesting import Publisher, header, proof, publisher
from looping import on_loop
from waiting import until_async

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka

LOCAL = ("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Linked:
    """A node and its links; ``promoted`` are the blocks that it put on its topics."""

    node: IngestNode
    port: int
    peers: Peers
    peer_port: int
    store: BodyStore
    promoted: list[BlockId]

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.peers.counts.refusals)


@asynccontextmanager
async def linked(
    folder: Path,
    *ports: int,
    app: str = "items",
    links: PeerSettings = PeerSettings(),  # noqa: B008 - a value
    obstacle: Callable[[], str] = str,
    speed: int = 1,
    **arbiting: int,
) -> AsyncIterator[Linked]:
    """A node whose peers are at these ports of this machine. What it acknowledges is on the topics at once.

    ``speed``: of the clock of its links.
    """
    blocks = blocks_of(get(app, chain_id=1))
    settings = replace(links, peers=tuple(("127.0.0.1", port) for port in ports), listen=links.listen or LOCAL)
    store = BodyStore(folder, f"{app}:1", retain=settings.retain)
    shelf = Shelf(store, Objects(forks=blocks.forks))
    promoted: list[BlockId] = []

    def acknowledged(block: BlockId) -> None:
        promoted.append(block)
        shelf.add(block)
        store.promoted(block.number, block.hash)

    node = IngestNode(store, blocks, ArbiterSettings(**arbiting), acknowledged, obstacle=obstacle)
    peers = Peers(node, shelf, settings, lambda: speed * time.monotonic())
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = [asyncio.ensure_future(peers.run(listening.set_result)), asyncio.ensure_future(node.run())]
    try:
        async with Listener(node, "127.0.0.1:0") as listener:
            await asyncio.wait((listening, running[0]), return_when=asyncio.FIRST_COMPLETED)
            if running[0].done():
                running[0].result()
            yield Linked(node, listener.port, peers, listening.result(), store, promoted)
            running[0].cancel()
            await asyncio.wait(running[:1])
            await node.close()
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        store.close()


# --- peers that misbehave ---------------------------------------------------------------------------------------------


def body(number: int, content: int = 10) -> bytes:
    """The body of a block of numbers."""
    item = b"\x12" + _varint(content) + bytes(content)
    return frame((header(number), item, proof(number)))


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def named(number: int) -> ObjectId:
    return object_of(BlockId(number))


Pieces = bytes | Iterable[bytes] | None
"""A reply: at once, in pieces with time between, or never."""
Answer = Callable[[Message], Pieces]


class Liar:
    """A server of diffusion, written by somebody else: what it answers is up to a test."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.links = 0
        self.port = 0
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        decoder = Decoder(State.INIT)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                while data := await reader.read(1 << 16):
                    message = decoder.feed(data)
                    while message is not None:
                        decoder.expect(State.IDLE)
                        pieces = self._answer(message)
                        if pieces is None:
                            await self._wait_for_end(reader)
                        elif isinstance(pieces, bytes):
                            writer.write(pieces)
                            await writer.drain()
                        else:
                            await self._drip(pieces, writer)
                        message = decoder.feed()
        finally:
            self.ended += 1
            writer.close()

    async def _wait_for_end(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass

    async def _drip(self, pieces: Iterable[bytes], writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def lying(answer: Answer) -> AsyncIterator[Liar]:
    liar = Liar(answer)
    server = StreamServer(liar.serve)
    await server.start("127.0.0.1", 0)
    liar.port = server.port
    try:
        yield liar
    finally:
        await server.close()


def announcing(blocks: Iterable[tuple[ObjectId, int]], objects: Callable[[tuple[ObjectId, ...]], Pieces]) -> Answer:
    """A server that announces these ids, in pieces as requested, and answers requests for objects so."""
    waiting = iter(blocks)

    def answer(message: Message) -> Pieces:
        match message:
            case MsgRequestObjectIds(blocking, _, req):
                found = [Announcement(*one) for one, _ in zip(waiting, range(req), strict=False)]
                return encode(MsgReplyObjectIds(tuple(found))) if found or not blocking else None
            case MsgRequestObjects(ids):
                return objects(ids)
            case _:
                return b""

    return answer


def reply(*bodies: bytes) -> bytes:
    return encode(MsgReplyObjects(bodies))


NUMBERS = range(1, 61)
ITEM = b"\x12\x0a" + bytes(10)
QUICK = PeerSettings(backoff=0.02, backoff_most=0.05)


async def push(one: Publisher, numbers: Iterable[int]) -> None:
    """Publish blocks, few in flight."""
    for number in numbers:
        await one.block(number, ITEM)
        while await one.next() != Acknowledgement(number):
            pass


# --- a node that was down ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@on_loop
async def test_a_node_that_was_down_for_200_blocks_catches_up_while_publishing_continues(tmp_path: Path) -> None:
    """Its own publishers have only the newest blocks; the other node has put the missing ones on its topics."""
    async with linked(tmp_path / "a") as one, publisher(one.port) as first:
        async with linked(tmp_path / "b", one.peer_port, first=0) as two:
            await push(first, range(10))
            await until_async(lambda: two.node.last == 9)
        await push(first, range(10, 210))
        live = asyncio.ensure_future(push(first, range(210, 300)))
        async with linked(tmp_path / "b", one.peer_port) as two, publisher(two.port) as second:
            await until_async(lambda: two.node.last is not None and two.node.last > 210)
            await live
            await until_async(lambda: two.node.last == 299)
            await push(second, [300])
            assert two.promoted == [BlockId(number) for number in range(10, 301)]
            assert two.peers.counts.fetched == 290
            assert two.refusals == one.refusals == {}


@on_loop
async def test_a_block_that_a_publisher_is_sending_is_skipped_when_a_peer_brings_it(tmp_path: Path) -> None:
    async with (
        linked(tmp_path / "a", first=0) as one,
        linked(tmp_path / "b", one.peer_port, first=0) as two,
        publisher(one.port) as first,
        publisher(two.port) as second,
    ):
        await second.send(BlockItemSet((header(0), ITEM)))
        await until_async(lambda: two.node.open_blocks == 1)
        await push(first, [0])
        assert [await second.next(), await second.next()] == [SkipBlock(0), Acknowledgement(0)]
        assert two.node.memory == 0


def forked(number: int, fork: bytes, parent: bytes) -> tuple[bytes, ...]:
    """The items of a block with a hash; forks are named by a letter."""
    hashed = number.to_bytes(31, "big") + fork
    return items_of(blob.payload(blob.Blob(number, hashed, parent, {"k": b"v"})), chain_id=1)


@pytest.mark.process
@on_loop
async def test_branches_of_a_chain_with_forks_are_fetched(tmp_path: Path) -> None:
    async with linked(tmp_path / "a", app="blob", reorg_threshold=8) as one, publisher(one.port) as first:
        parent, sent = bytes(32), []
        for number in range(5, 25):
            await first.send(BlockItemSet(forked(number, b"a", parent)), BlockEnd(number))
            sent.append(BlockId(number, parent := number.to_bytes(31, "big") + b"a"))
        async with publisher(one.port) as second:
            side = forked(24, b"b", (23).to_bytes(31, "big") + b"a")
            await until_async(lambda: one.node.last == 24)
            await second.send(BlockItemSet(side), BlockEnd(24))
            await until_async(lambda: len(one.promoted) == 21)
        async with linked(tmp_path / "b", one.peer_port, app="blob", reorg_threshold=8, first=5) as two:
            await until_async(lambda: len(two.promoted) == 21)
            assert sorted(two.promoted) == sorted([*sent, BlockId(24, (24).to_bytes(31, "big") + b"b")])


@on_loop
async def test_links_are_closed_while_nothing_can_be_stored(tmp_path: Path) -> None:
    full = [""]
    async with linked(tmp_path / "a") as one, publisher(one.port) as first:
        await push(first, range(3))
        async with linked(tmp_path / "b", one.peer_port, links=QUICK, obstacle=lambda: full[0], first=0) as two:
            await until_async(lambda: two.node.last == 2)
            full[0] = "the disk is full"
            await until_async(lambda: two.peers.absent == 1)
            await push(first, range(3, 6))
            full[0] = ""
            await until_async(lambda: two.node.last == 5)


@on_loop
async def test_an_empty_node_fetches_nothing_before_it_has_a_first_block(tmp_path: Path) -> None:
    async with linked(tmp_path / "a") as one, publisher(one.port) as first:
        await push(first, range(5, 10))
        async with linked(tmp_path / "b", one.peer_port, links=QUICK) as two, publisher(two.port) as second:
            await push(second, [7])
            await until_async(lambda: two.node.last == 9)
            assert two.promoted == [BlockId(number) for number in (7, 8, 9)]


# --- peers that misbehave ---------------------------------------------------------------------------------------------


def ids(*, by: int = 0) -> list[tuple[ObjectId, int]]:
    """The announcements of the blocks, with sizes that are wrong by so much."""
    return [(named(number), len(body(number)) + by) for number in NUMBERS]


def right(requested: tuple[ObjectId, ...]) -> bytes:
    return reply(*(body(one.number) for one in requested))


def vanishing(requested: tuple[ObjectId, ...]) -> Iterator[bytes]:
    yield right(requested)[:-5]
    raise ConnectionResetError


def dripping(requested: tuple[ObjectId, ...]) -> Iterable[bytes]:
    yield right(requested)[:100]
    yield from itertools.repeat(b"", 1_000)


def malformed(requested: tuple[ObjectId, ...]) -> bytes:
    """Bodies of the right length whose content comes after the proof."""
    parts = [(header(one.number), proof(one.number), b"\x12\x0a" + bytes(10)) for one in requested]
    return reply(*map(frame, parts))


def flood(_message: object) -> Iterator[bytes]:
    """A reply whose list never ends."""
    yield encode(MsgReplyObjectIds(()))[:-1]
    while True:
        yield (b"\x83\x01\x58\x20" + bytes(32) + b"\x01") * 1_000


def far_ahead() -> Answer:
    """Blocks without end, each right, that join nothing."""
    return announcing(((named(number), len(body(number))) for number in itertools.count(10_000)), right)


LIARS: dict[str, tuple[Callable[[], Answer], str | None]] = {
    "silent": (lambda: lambda _message: None, None),
    "silent on objects": (lambda: announcing(ids(), lambda _ids: None), "ExceededTimeLimit"),
    "slow": (lambda: announcing(ids(), dripping), "ExceededTimeLimit"),
    "vanishing": (lambda: announcing(ids(), vanishing), None),
    "wrong bytes": (
        lambda: announcing(ids(), lambda found: reply(*(body(one.number + 7) for one in found))),
        "ObjectsDifferentThanRequested",
    ),
    "unreadable": (
        lambda: announcing(ids(), lambda found: reply(*[b"abc"] * len(found))),
        "ObjectsDifferentThanRequested",
    ),
    "malformed": (lambda: announcing(ids(), malformed), "ObjectInvalid"),
    "wrong size": (lambda: announcing(ids(by=1), right), "ObjectSizeMismatch"),
    "endless objects": (lambda: announcing(ids(), lambda found: right(found)[:-1] + bytes(100)), "ExceededSizeLimit"),
    "oversized": (lambda: announcing(ids(by=200_000_000), right), "too_large"),
    "garbage": (lambda: lambda _message: b"GET / HTTP/1.1\r\n\r\n", "DecoderFailure"),
    "endless ids": (lambda: flood, "ExceededSizeLimit"),
    "unlinked": (far_ahead, "unlinked"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIARS)
@on_loop
async def test_a_bad_peer_costs_its_own_link_only(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bad one comes first, and is preferred; everything arrives from the other all the same."""
    caplog.set_level(logging.INFO, "cardinal.ingest")
    make, reason = LIARS[name]
    speed = 4 if reason == "ExceededTimeLimit" else 1
    most = 0

    async def watch(node: Linked) -> None:
        nonlocal most
        while True:
            most = max(most, node.peers.bytes_in_flight)
            await asyncio.sleep(0.001)

    async with (
        linked(tmp_path / "a") as one,
        publisher(one.port) as first,
        lying(make()) as liar,
        linked(tmp_path / "b", liar.port, one.peer_port, links=QUICK, speed=speed, first=1) as two,
    ):
        watching = asyncio.ensure_future(watch(two))
        await until_async(lambda: liar.links > 0 and two.peers.absent < 2)
        await push(first, NUMBERS)
        await until_async(lambda: two.node.last == NUMBERS[-1])
        await until_async(lambda: reason is None or reason in two.refusals)
        watching.cancel()
        assert set(two.refusals) <= {reason}
        assert two.promoted[: len(NUMBERS)] == [BlockId(number) for number in NUMBERS]
        assert one.refusals == {}
        assert one.peers.counts.clients == 1
        assert two.store.pool_bytes <= 128 * 100
        assert caplog.text.count(f"bodies are fetched from the peer 127.0.0.1:{one.peer_port}") == 1
        port = liar.port
    assert most <= 20_000_000
    if reason is not None:
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any(f"127.0.0.1:{port}" in sentence for sentence in told)


@pytest.mark.process
@on_loop
async def test_a_body_whose_digest_is_wrong_is_refused_and_fetched_from_another(tmp_path: Path) -> None:
    parent = bytes(32)
    items = forked(5, b"a", parent)
    lie = frame((*items[:-1], items[-1][:-1] + bytes((items[-1][-1] ^ 1,))))
    one = ObjectId(5, (5).to_bytes(31, "big") + b"a")
    chain = {"app": "blob", "reorg_threshold": 8}
    async with (
        linked(tmp_path / "a", **chain) as honest,
        publisher(honest.port) as first,
        lying(announcing([(one, len(lie))], lambda _ids: reply(lie))) as liar,
    ):
        ports = (liar.port, honest.peer_port)
        async with linked(tmp_path / "b", *ports, first=5, **chain) as two:  # type: ignore[arg-type]
            await until_async(lambda: bool(two.refusals))
            assert two.promoted == []
            await first.send(BlockItemSet(items), BlockEnd(5))
            await until_async(lambda: two.promoted == [BlockId(*one)])
            assert two.refusals == {"ObjectInvalid": 1}


# --- clients that misbehave -------------------------------------------------------------------------------------------

HELLO = encode(MsgInit()) + encode(MsgRequestObjectIds(blocking=True, ack=0, req=10))


@asynccontextmanager
async def client(
    port: int, *messages: bytes, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12, local_addr=(host, 0))
    writer.write(b"".join(messages))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the node has ended a link."""
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "DecoderFailure"),
        (b"", "silent"),
        (HELLO + encode(MsgInit()), "DecoderFailure"),
        (HELLO * 1 + encode(MsgRequestObjectIds(blocking=False, ack=0, req=1)) * 200, "TooManyPipelined"),
        (encode(MsgInit()) + encode(MsgRequestObjectIds(blocking=True, ack=1, req=1)), "AckedTooManyObjectIds"),
        (encode(MsgInit()) + encode(MsgRequestObjectIds(blocking=True, ack=0, req=51)), "RequestedTooManyObjectIds"),
    ],
)
@on_loop
async def test_a_bad_client_costs_its_own_link_only(sent: bytes, reason: str, tmp_path: Path) -> None:
    links = replace(QUICK, connect_seconds=0.5)
    async with (
        linked(tmp_path / "a", links=links, first=0) as one,
        publisher(one.port) as first,
        linked(tmp_path / "b", one.peer_port, first=0) as two,
        client(one.peer_port, sent) as (reader, _),
    ):
        await ended(reader)
        await push(first, range(10))
        await until_async(lambda: two.node.last == 9)
        assert one.refusals == {reason: 1}
        assert one.peers.counts.clients == 1


@on_loop
async def test_a_client_that_reads_nothing_loses_its_link(tmp_path: Path) -> None:
    """Its body is larger than what a connection holds."""
    big = b"\x12" + b"\x80\x80\x80\x03" + bytes(6 << 20)
    links = replace(QUICK, reply_seconds=0.2)
    async with linked(tmp_path / "a", links=links) as one, publisher(one.port) as first:
        for number in range(3):
            await first.send(BlockItemSet((header(number),)), BlockItemSet((big,)))
            await first.send(BlockItemSet((proof(number),)), BlockEnd(number))
            while await first.next() != Acknowledgement(number):
                pass
        wants = [
            b"\x82\x03\x9f\x82" + bytes((number,)) + b"\x58\x20" + named(number).hash + b"\xff" for number in range(3)
        ]
        async with client(one.peer_port, HELLO, *wants):
            await until_async(lambda: one.refusals == {"slow": 1})
        await push(first, range(3, 6))


@pytest.mark.skipif(sys.platform != "linux", reason="one address of the loopback is usual elsewhere")
@on_loop
async def test_where_links_are_many_the_machine_with_the_most_loses_its_newest(tmp_path: Path) -> None:
    async with (
        linked(tmp_path / "a", links=replace(QUICK, clients=2)) as one,
        client(one.peer_port, HELLO),
        client(one.peer_port, HELLO) as (second, _),
        client(one.peer_port, HELLO, host="127.0.0.2"),
    ):
        await ended(second)
        async with client(one.peer_port, HELLO) as (third, _):
            await ended(third)
        assert one.refusals == {"crowded": 2}
        assert one.peers.counts.clients == 2


@on_loop
async def test_a_body_that_cannot_be_stored_is_fetched_when_it_can(tmp_path: Path) -> None:
    async with (
        linked(tmp_path / "a") as one,
        publisher(one.port) as first,
        linked(tmp_path / "b", one.peer_port, links=QUICK, first=0) as two,
    ):
        write = two.store.add

        def fail(*_: object) -> Future[None]:
            future = new_future()
            settle(future, StoreError("the disk is full"))
            return future

        two.store.add = fail  # type: ignore[method-assign]
        await push(first, range(5))
        await until_async(lambda: two.refusals.keys() == {"undecided"})
        two.store.add = write  # type: ignore[method-assign]
        await until_async(lambda: two.node.last == 4)


# --- TLS and addresses ------------------------------------------------------------------------------------------------


@on_loop
async def test_nodes_know_each_other_by_the_certificates_of_one_authority(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")

    def links(name: str, by: Authority) -> PeerSettings:
        leaf = by.sign(name, hosts=["127.0.0.1"])
        contexts = peer_contexts(leaf.certificate, leaf.key, by.certificate)
        return replace(QUICK, server_tls=contexts.server, client_tls=contexts.client)

    async with linked(tmp_path / "a", links=links("one", authority)) as one, publisher(one.port) as first:
        await push(first, range(5))
        async with linked(tmp_path / "b", one.peer_port, links=links("two", authority), first=0) as two:
            await until_async(lambda: two.node.last == 4)
        for other in (links("three", stranger), QUICK):
            async with linked(tmp_path / "c", one.peer_port, links=other, first=0) as three:
                await asyncio.sleep(0)
                await until_async(lambda: three.node.last is None and three.peers.absent == 1)
        assert one.peers.counts.served == 5


@on_loop
async def test_addresses_that_are_none_are_named(tmp_path: Path) -> None:
    assert addresses_of("a:1, [::1]:2,a:1", "peers") == (("a", 1), ("::1", 2))
    for wrong in ("a", ":1", "a:x", "a:70000", ""):
        with pytest.raises(ConfigurationError, match="--peer-listen takes HOST:PORT"):
            address_of(wrong, "peer-listen")
    async with linked(tmp_path / "a") as one:
        with pytest.raises(ConfigurationError, match="peers cannot be served at 127"):
            async with linked(tmp_path / "b", links=replace(QUICK, listen=("127.0.0.1", one.peer_port))):
                pass


# --- nodes as processes ---------------------------------------------------------------------------------------------


LARGE_ITEM = b"\x12\x90\x4e" + bytes(10_000)


def linked_arguments(folder: Path, to: str, *more: str) -> tuple[str, ...]:
    """A node of its own name and folder."""
    options = ("--node-id", folder.name, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--app", "items")
    return ("ingest", *options, "--to", to, "--data", str(folder), "--peer-listen", "127.0.0.1:0", *more)


async def peer_port(log: Path) -> int:
    return int(
        (await says(log, "peers are served on port [0-9]+\n")).partition("peers are served on port ")[2].split()[0]
    )


async def push_many(one: Publisher, first: int, last: int) -> None:
    """Publish blocks, few in flight, and wait until all are acknowledged."""
    acknowledged = first - 1
    for number in range(first, last + 1):
        await one.block(number, LARGE_ITEM)
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
    async with command(log, *linked_arguments(folder / "a", urls[0], *more)):
        port, address = await addresses(log)
        with TcpProxy(f"127.0.0.1:{await peer_port(log)}") as proxy:
            options = linked_arguments(folder / "b", urls[1], "--peers", proxy.address, "--first", "0", *more)
            async with publisher(port) as one:
                await push_many(one, 0, 10)
                async with command(folder / "b.0.err", *options) as process:
                    _, other = await addresses(folder / "b.0.err")
                    await reaches(other, "last_acknowledged", 10)
                    process.kill()
                    await process.wait()
                await push_many(one, 11, 230)
                proxy.impair(Link(bytes_per_second=500_000))
                pushing = asyncio.ensure_future(push_many(one, 231, last))
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


@pytest.mark.process
def test_a_node_that_is_killed_in_mid_catch_up_has_every_block_on_topics_of_its_own(tmp_path: Path) -> None:
    urls, last = (f"file://{tmp_path}/stream-a", f"file://{tmp_path}/stream-b"), 500
    asyncio.run(away(tmp_path, urls, last=last))
    app = get("items", chain_id=1)
    for url in urls:
        blocks = list(consumed(url, app, last))
        assert [block.number for block in blocks] == list(range(last + 1))
        assert all(block.items[1] == LARGE_ITEM for block in blocks)


@pytest.mark.slow
@pytest.mark.broker
def test_nodes_on_shared_topics_leave_one_stream_whole(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    url, topic, last = f"kafka://{cardinal_broker.bootstrap}", f"items-{uuid.uuid4().hex}", 500
    asyncio.run(away(tmp_path, (url, url), "--topic", topic, last=last))
    blocks = list(consumed(url, get("items", topic=topic), last))
    assert [block.number for block in blocks] == list(range(last + 1))


@pytest.mark.process
@on_loop
async def test_hostile_peers_cost_a_node_no_memory_and_its_publisher_nothing(tmp_path: Path) -> None:
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

    log = tmp_path / "err"
    repeating = announcing(settled(), lambda found: reply(*(body(one.number) for one in found)))  # type: ignore[arg-type]
    async with lying(flood) as one, lying(far_ahead()) as two, lying(repeating) as three:
        peers = ",".join(f"127.0.0.1:{liar.port}" for liar in (one, two, three))
        options = linked_arguments(tmp_path / "a", "null://", "--peers", peers, "--first", "0")
        async with command(log, *options) as process:
            port, address = await addresses(log)
            hostile = asyncio.ensure_future(push_garbage(await peer_port(log)))
            before = resident(process.pid, "VmRSS")
            async with publisher(port) as source:
                await push_many(source, 0, 300)
            found = await reaches(address, "promoted_blocks_total", 301)
            hostile.cancel()
            assert found["last_acknowledged"] == 300
            assert found["peer_refusals_total DecoderFailure"] > 10
            assert {"peer_refusals_total ExceededSizeLimit", "peer_refusals_total unlinked"} <= found.keys()
            assert found["pool_bytes"] < MEBIBYTE
            assert resident(process.pid, "VmHWM") - before < 100 * MEBIBYTE
    assert "Traceback" not in log.read_text()
