"""Ingest nodes that are linked: one that was away pulls what it lacks, and a bad peer costs its own link only."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cardinal._concurrency import new_future, settle
from cardinal.apps import blob
from cardinal.apps.body import frame, items_of
from cardinal.errors import ConfigurationError, StoreError
from cardinal.protocols.diffusion import (
    MsgInit,
    MsgReplyObjectIds,
    MsgRequestObjectIds,
    ObjectId,
    encode,
)
from cardinal.protocols.publish import Acknowledgement, BlockEnd, BlockId, BlockItemSet, SkipBlock
from cardinal.server.ingest.peers.settings import PeerSettings, address_of, addresses_of
from cardinal.server.ingest.tls import peer_contexts
from certificates import Authority
from peering import Answer, Linked, announcing, body, linked, lying, named, reply, until
from publishers import Publisher, header, proof, publisher

NUMBERS = range(1, 61)
ITEM = b"\x12\x0a" + bytes(10)
QUICK = PeerSettings(backoff=0.02, backoff_most=0.05)


async def push(one: Publisher, numbers: Iterable[int]) -> None:
    """Publish blocks, few in flight."""
    for number in numbers:
        await one.block(number, ITEM)
        while await one.next() != Acknowledgement(number):
            pass


# --- a node that was away ---------------------------------------------------------------------------------------------


def test_a_node_that_was_away_for_200_blocks_catches_up_while_publishing_goes_on(tmp_path: Path) -> None:
    """Its own publishers have only the newest blocks; the other node has put the missing ones on its topics."""

    async def run() -> None:
        async with linked(tmp_path / "a") as one, publisher(one.port) as first:
            async with linked(tmp_path / "b", one.peer_port, first=0) as two:
                await push(first, range(10))
                await until(lambda: two.node.last == 9)
            await push(first, range(10, 210))
            live = asyncio.ensure_future(push(first, range(210, 300)))
            async with linked(tmp_path / "b", one.peer_port) as two, publisher(two.port) as second:
                await until(lambda: two.node.last is not None and two.node.last > 210)
                await live
                await until(lambda: two.node.last == 299)
                await push(second, [300])
                assert two.promoted == [BlockId(number) for number in range(10, 301)]
                assert two.peers.counts.fetched == 290
                assert two.refusals == one.refusals == {}

    asyncio.run(run())


def test_a_node_that_is_stopped_in_mid_catch_up_resumes(tmp_path: Path) -> None:
    async def run() -> None:
        async with linked(tmp_path / "a") as one, publisher(one.port) as first:
            await push(first, range(200))
            promoted: list[BlockId] = []
            for limit in (40, 120, 199):
                async with linked(tmp_path / "b", one.peer_port, first=0) as two:
                    await until(lambda two=two, limit=limit: (two.node.last or 0) >= limit)  # type: ignore[misc]
                promoted += two.promoted
                assert two.peers.counts.connected == 0
            await until(lambda: one.peers.counts.clients == 0)
            assert sorted(set(promoted)) == [BlockId(number) for number in range(200)]

    asyncio.run(run())


def test_a_block_that_a_publisher_is_sending_is_skipped_when_a_peer_brings_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            linked(tmp_path / "a", first=0) as one,
            linked(tmp_path / "b", one.peer_port, first=0) as two,
            publisher(one.port) as first,
            publisher(two.port) as second,
        ):
            await second.send(BlockItemSet((header(0), ITEM)))
            await until(lambda: two.node.open_blocks == 1)
            await push(first, [0])
            assert [await second.next(), await second.next()] == [SkipBlock(0), Acknowledgement(0)]
            assert two.node.memory == 0

    asyncio.run(run())


def test_three_nodes_each_with_its_publisher_have_all_blocks_in_order(tmp_path: Path) -> None:
    """Each publisher sends a third of the numbers, to its own node."""

    async def send(node: Linked, numbers: Iterable[int]) -> None:
        async with publisher(node.port) as one:
            for number in numbers:
                await until(lambda number=number: node.node.last == number - 1 or number == 0)  # type: ignore[misc]
                await one.block(number, ITEM)

    async def run() -> None:
        async with (
            linked(tmp_path / "a", first=0) as a,
            linked(tmp_path / "b", a.peer_port, first=0) as b,
            linked(tmp_path / "c", a.peer_port, b.peer_port, first=0) as c,
        ):
            await send(a, range(20))
            for node in (b, c):
                await until(lambda node=node: node.node.last == 19)  # type: ignore[misc]
                assert node.promoted == [BlockId(number) for number in range(20)]
            await send(b, range(20, 40))
            await until(lambda: c.node.last == 39)
            assert c.promoted == [BlockId(number) for number in range(40)]
            assert a.node.last == 19, "it has no peers"

    asyncio.run(run())


def forked(number: int, fork: bytes, parent: bytes) -> tuple[bytes, ...]:
    """The items of a block with a hash; forks are named by a letter."""
    hashed = number.to_bytes(31, "big") + fork
    return items_of(blob.payload(blob.Blob(number, hashed, parent, {"k": b"v"})), chain_id=1)


def test_branches_of_a_chain_with_forks_are_fetched(tmp_path: Path) -> None:
    async def run() -> None:
        async with linked(tmp_path / "a", app="blob", reorg_threshold=8) as one, publisher(one.port) as first:
            parent, sent = bytes(32), []
            for number in range(5, 25):
                await first.send(BlockItemSet(forked(number, b"a", parent)), BlockEnd(number))
                sent.append(BlockId(number, parent := number.to_bytes(31, "big") + b"a"))
            async with publisher(one.port) as second:
                side = forked(24, b"b", (23).to_bytes(31, "big") + b"a")
                await until(lambda: one.node.last == 24)
                await second.send(BlockItemSet(side), BlockEnd(24))
                await until(lambda: len(one.promoted) == 21)
            async with linked(tmp_path / "b", one.peer_port, app="blob", reorg_threshold=8, first=5) as two:
                await until(lambda: len(two.promoted) == 21)
                assert sorted(two.promoted) == sorted([*sent, BlockId(24, (24).to_bytes(31, "big") + b"b")])

    asyncio.run(run())


def test_links_are_closed_while_nothing_can_be_stored(tmp_path: Path) -> None:
    full = [""]

    async def run() -> None:
        async with linked(tmp_path / "a") as one, publisher(one.port) as first:
            await push(first, range(3))
            async with linked(tmp_path / "b", one.peer_port, links=QUICK, obstacle=lambda: full[0], first=0) as two:
                await until(lambda: two.node.last == 2)
                full[0] = "the disk is full"
                await until(lambda: two.peers.absent == 1)
                await push(first, range(3, 6))
                full[0] = ""
                await until(lambda: two.node.last == 5)

    asyncio.run(run())


def test_an_empty_node_fetches_nothing_before_it_has_a_first_block(tmp_path: Path) -> None:
    async def run() -> None:
        async with linked(tmp_path / "a") as one, publisher(one.port) as first:
            await push(first, range(5, 10))
            async with linked(tmp_path / "b", one.peer_port, links=QUICK) as two, publisher(two.port) as second:
                await push(second, [7])
                await until(lambda: two.node.last == 9)
                assert two.promoted == [BlockId(number) for number in (7, 8, 9)]

    asyncio.run(run())


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


@pytest.mark.parametrize("name", LIARS)
def test_a_bad_peer_costs_its_own_link_only(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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

    async def run() -> int:
        async with (
            linked(tmp_path / "a") as one,
            publisher(one.port) as first,
            lying(make()) as liar,
            linked(tmp_path / "b", liar.port, one.peer_port, links=QUICK, speed=speed, first=1) as two,
        ):
            watching = asyncio.ensure_future(watch(two))
            await until(lambda: liar.links > 0 and two.peers.absent < 2)
            await push(first, NUMBERS)
            await until(lambda: two.node.last == NUMBERS[-1])
            await until(lambda: reason is None or reason in two.refusals)
            watching.cancel()
            assert set(two.refusals) <= {reason}
            assert two.promoted[: len(NUMBERS)] == [BlockId(number) for number in NUMBERS]
            assert one.refusals == {}
            assert one.peers.counts.clients == 1
            assert two.store.pool_bytes <= 128 * 100
            assert caplog.text.count(f"bodies are fetched from the peer 127.0.0.1:{one.peer_port}") == 1
            return liar.port

    port = asyncio.run(run())
    assert most <= 20_000_000
    if reason is not None:
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any(f"127.0.0.1:{port}" in sentence for sentence in told)


def test_a_body_whose_digest_is_wrong_is_refused_and_fetched_from_another(tmp_path: Path) -> None:
    parent = bytes(32)
    items = forked(5, b"a", parent)
    lie = frame((*items[:-1], items[-1][:-1] + bytes((items[-1][-1] ^ 1,))))
    one = ObjectId(5, (5).to_bytes(31, "big") + b"a")

    async def run() -> None:
        chain = {"app": "blob", "reorg_threshold": 8}
        async with (
            linked(tmp_path / "a", **chain) as honest,
            publisher(honest.port) as first,
            lying(announcing([(one, len(lie))], lambda _ids: reply(lie))) as liar,
        ):
            ports = (liar.port, honest.peer_port)
            async with linked(tmp_path / "b", *ports, first=5, **chain) as two:  # type: ignore[arg-type]
                await until(lambda: bool(two.refusals))
                assert two.promoted == []
                await first.send(BlockItemSet(items), BlockEnd(5))
                await until(lambda: two.promoted == [BlockId(*one)])
                assert two.refusals == {"ObjectInvalid": 1}

    asyncio.run(run())


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
    async with asyncio.timeout(30):
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
def test_a_bad_client_costs_its_own_link_only(sent: bytes, reason: str, tmp_path: Path) -> None:
    async def run() -> None:
        links = replace(QUICK, connect_seconds=0.5)
        async with (
            linked(tmp_path / "a", links=links, first=0) as one,
            publisher(one.port) as first,
            linked(tmp_path / "b", one.peer_port, first=0) as two,
            client(one.peer_port, sent) as (reader, _),
        ):
            await ended(reader)
            await push(first, range(10))
            await until(lambda: two.node.last == 9)
            assert one.refusals == {reason: 1}
            assert one.peers.counts.clients == 1

    asyncio.run(run())


def test_a_client_that_reads_nothing_loses_its_link(tmp_path: Path) -> None:
    """Its body is larger than what a connection holds."""
    big = b"\x12" + b"\x80\x80\x80\x03" + bytes(6 << 20)

    async def run() -> None:
        links = replace(QUICK, reply_seconds=0.2)
        async with linked(tmp_path / "a", links=links) as one, publisher(one.port) as first:
            for number in range(3):
                await first.send(BlockItemSet((header(number),)), BlockItemSet((big,)))
                await first.send(BlockItemSet((proof(number),)), BlockEnd(number))
                while await first.next() != Acknowledgement(number):
                    pass
            wants = [
                b"\x82\x03\x9f\x82" + bytes((number,)) + b"\x58\x20" + named(number).hash + b"\xff"
                for number in range(3)
            ]
            async with client(one.peer_port, HELLO, *wants):
                await until(lambda: one.refusals == {"slow": 1})
            await push(first, range(3, 6))

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="one address of the loopback is usual elsewhere")
def test_where_links_are_many_the_machine_with_the_most_loses_its_newest(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


def test_a_body_that_cannot_be_stored_is_fetched_when_it_can(tmp_path: Path) -> None:
    async def run() -> None:
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
            await until(lambda: two.refusals.keys() == {"undecided"})
            two.store.add = write  # type: ignore[method-assign]
            await until(lambda: two.node.last == 4)

    asyncio.run(run())


# --- TLS and addresses ------------------------------------------------------------------------------------------------


def test_nodes_know_each_other_by_the_certificates_of_one_authority(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")

    def links(name: str, by: Authority) -> PeerSettings:
        leaf = by.sign(name, hosts=["127.0.0.1"])
        contexts = peer_contexts(leaf.certificate, leaf.key, by.certificate)
        return replace(QUICK, server_tls=contexts.server, client_tls=contexts.client)

    async def run() -> None:
        async with linked(tmp_path / "a", links=links("one", authority)) as one, publisher(one.port) as first:
            await push(first, range(5))
            async with linked(tmp_path / "b", one.peer_port, links=links("two", authority), first=0) as two:
                await until(lambda: two.node.last == 4)
            for other in (links("three", stranger), QUICK):
                async with linked(tmp_path / "c", one.peer_port, links=other, first=0) as three:
                    await asyncio.sleep(0)
                    await until(lambda: three.node.last is None and three.peers.absent == 1)
            assert one.peers.counts.served == 5

    asyncio.run(run())


def test_addresses_that_are_none_are_named(tmp_path: Path) -> None:
    assert addresses_of("a:1, [::1]:2,a:1", "peers") == (("a", 1), ("::1", 2))
    for wrong in ("a", ":1", "a:x", "a:70000", ""):
        with pytest.raises(ConfigurationError, match="--peer-listen takes HOST:PORT"):
            address_of(wrong, "peer-listen")

    async def run() -> None:
        async with linked(tmp_path / "a") as one:
            with pytest.raises(ConfigurationError, match="peers cannot be served at 127"):
                async with linked(tmp_path / "b", links=replace(QUICK, listen=("127.0.0.1", one.peer_port))):
                    pass

    asyncio.run(run())
