"""Bodies that a member fetches while the chain goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cardinal.apps import blob, get
from cardinal.apps.body import frame, items_of
from cardinal.errors import ApplicationError
from cardinal.protocols.publish import BlockId
from cardinal.protocols.replication import NO_HASH, Head, Replica, Rules, State
from cardinal.server.ingest.blocks import blocks_of
from cardinal.server.ingest.cluster.agreement import Agreement
from cardinal.server.ingest.cluster.claims import ClaimWriter
from cardinal.server.ingest.cluster.rows import ReplicaRows
from cardinal.server.ingest.node import IngestNode
from cardinal.server.ingest.peers.objects import Objects
from cardinal.server.ingest.service import arbiter_settings
from cardinal.server.ingest.store import BodyStore
from model.cluster_node import first_record, signer, verify
from replicating import MEMBERS

RULES = Rules(start=0, window=128, max_blocks=500)
HEAD = Head(200, bytes([200] * 32), 200)


def test_a_body_that_comes_below_the_window_is_no_fault_of_the_peer(tmp_path: Path) -> None:
    asyncio.run(late_body(tmp_path))


async def late_body(folder: Path) -> None:
    app = get("blob")
    store, objects = BodyStore(folder, app.chain), Objects(forks=True)
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
