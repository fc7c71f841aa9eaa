"""Parts of a cluster's member: links on real sockets, bodies that come late."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cardinal._stream_server import StreamServer
from cardinal.apps import blob, get
from cardinal.errors import ApplicationError
from cardinal_devkit import TcpProxy
from cardinal_devkit.kafka import free_port
from cardinal_devkit.testing.proxy import Link
from cardinal_ingest.body import frame, items_of
from cardinal_ingest.body_exchange.objects import Objects
from cardinal_ingest.cluster.agreement import Agreement
from cardinal_ingest.cluster.claims import ClaimWriter
from cardinal_ingest.cluster.links import Links
from cardinal_ingest.cluster.rows import ReplicaRows
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.node import IngestNode
from cardinal_ingest.node.service import arbiter_settings
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.node.tls import PeerContexts, peer_contexts
from cardinal_ingest.protocols.mesh import MeshSettings
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import NO_HASH, Head, Replica, Rules, State
from certificates import Authority
from looping import on_loop
from meshing import cluster, identity
from model.cluster_node import first_record, signer, verify
from replicating import MEMBERS
from waiting import until_async

IMPATIENT = MeshSettings(heartbeat_idle=0.2, suspect_after=0.5, dial_timeout=0.3, backoff=0.05, backoff_most=0.05)
CLEAR_TEXT = PeerContexts(None, None)


class Counting:
    """The node behind the links: it has no facts, and counts messages."""

    def __init__(self) -> None:
        self.links: Links
        self.begun = 0
        self.received: list[bytes] = []

    def begin(self, peer: str) -> None:
        del peer
        self.begun += 1

    def receive(self, peer: str, kind: int, payload: bytes, committed: Callable[[], None]) -> None:
        del peer, kind
        self.received.append(payload)
        committed()

    def snapshot(self, peer: str) -> None:
        self.links.snapshot(peer, [])


class SlowHandshakes:
    """Relay to a port: what the first clients send is held back until it is opened."""

    def __init__(self, port: int, held: int) -> None:
        self.opened = asyncio.Event()
        self.accepted = 0
        self._port = port
        self._held = held

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        with contextlib.suppress(OSError):
            if self.accepted <= self._held:
                await self.opened.wait()
            there = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))
            finally:
                there[1].close()
        writer.transport.abort()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@pytest.mark.slow
@on_loop
async def test_a_connection_that_opens_late_does_not_take_the_place_of_the_next_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    leaf = authority.sign("member", hosts=("127.0.0.1",))
    tls = peer_contexts(leaf.certificate, leaf.key, authority.certificate)
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
    relay = SlowHandshakes(port, held=1)
    server = StreamServer(relay.serve)
    await server.start("127.0.0.1", 0)
    address = f"127.0.0.1:{server.port}"
    dialer, acceptor = Counting(), Counting()
    dialer.links = links("a", dialer, 0, address, tls)
    acceptor.links = links("b", acceptor, port, "127.0.0.1:1", tls)
    running = [asyncio.ensure_future(one.links.run()) for one in (dialer, acceptor)]
    try:
        await until_async(lambda: acceptor.begun == 1)
        assert relay.accepted == 2
        relay.opened.set()
        late = asyncio.get_running_loop().time() + 1
        sent = 0
        while asyncio.get_running_loop().time() < late:
            dialer.links.send("b", 1, b"%d" % sent)
            sent += 1
            await asyncio.sleep(0.02)  # the late one opens meanwhile
            assert not any(one.done() for one in running), running
        await until_async(lambda: len(acceptor.received) == sent)
        assert acceptor.received == [b"%d" % one for one in range(sent)]
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.close()


@on_loop
async def test_a_peer_that_is_suspected_is_not_connected() -> None:
    ports = {"a": free_port(), "b": free_port()}
    with TcpProxy(f"127.0.0.1:{ports['b']}") as proxy:
        here, there = Counting(), Counting()
        here.links = links("a", here, ports["a"], proxy.address)
        there.links = links("b", there, ports["b"], f"127.0.0.1:{ports['a']}")
        running = [asyncio.ensure_future(one.links.run()) for one in (here, there)]
        try:
            await until_async(lambda: here.links.connected == ["b"] and there.links.connected == ["a"])
            ended = dict(here.links.ended)  # of dials before the other side listened
            proxy.impair(Link(blackhole=True))
            await until_async(lambda: here.links.suspected == ["b"] and there.links.suspected == ["a"])
            assert here.links.connected == there.links.connected == []
            proxy.heal()
            await until_async(lambda: here.links.connected == ["b"] and there.links.connected == ["a"])
            assert here.links.ended == ended
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def links(name: str, host: Counting, listen: int, peer: str, tls: PeerContexts = CLEAR_TEXT) -> Links:
    members = cluster("ab")
    members = replace(members, members=tuple(replace(one, address=peer) for one in members.members))
    return Links(
        identity(name, members),
        host,
        ("127.0.0.1", listen),
        server_tls=tls.server,
        client_tls=tls.client,
        settings=IMPATIENT,
    )


RULES = Rules(start=0, window=128, max_blocks=500)
HEAD = Head(200, bytes([200] * 32), 200)


@pytest.mark.process
@on_loop
async def test_a_body_that_comes_below_the_window_is_no_fault_of_the_peer(tmp_path: Path) -> None:
    app = get("blob")
    store, objects = BodyStore(tmp_path, app.chain), Objects(forks=True)
    rows = ReplicaRows(store, objects, MEMBERS.cluster)
    state = State.build(RULES, MEMBERS.cluster, MEMBERS.stream, 7, NO_HASH, HEAD, HEAD.number, {HEAD.hash: HEAD.number})
    replica = Replica("a", MEMBERS, signer(MEMBERS.members["a"]), verify)
    writer = ClaimWriter("kafka://127.0.0.1:1", "claims")
    agreement = Agreement(replica, rows, blocks_of(app), objects, writer)
    running = asyncio.ensure_future(agreement.run())
    agreement.take(replica.read(0, first_record(MEMBERS, RULES, state), 0.0))
    node = IngestNode(store, blocks_of(app), arbiter_settings(app, 0, forks=True), lambda _: None, majority=agreement)
    try:
        assert node.floor == 72
        for number, is_stored in (73, True), (72, False):
            payload = blob.payload(blob.Blob(number, bytes([number] * 32), bytes([number - 1] * 32), {"key": b"value"}))
            body = frame(items_of(payload, chain_id=1))
            block, parent = BlockId(number, payload.hash), BlockId(number - 1, payload.parent)
            await node.keep(block, parent, body)
            assert (store.size(*block) is not None) == is_stored
        with pytest.raises(ApplicationError):
            await node.keep(BlockId(72, bytes(32)), parent, body)
    finally:
        running.cancel()
        await node.close()
        await asyncio.to_thread(writer.close)
        store.close()
