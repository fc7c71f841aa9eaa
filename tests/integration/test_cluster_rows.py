"""Rows of a member on a real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import StoreError
from cardinal.protocols.publish import BlockId
from cardinal.protocols.replication import DeleteBlock, PutBlock, PutCandidate
from cardinal.server.ingest.cluster.rows import ReplicaRows
from cardinal.server.ingest.peers.objects import Objects, object_of
from cardinal.server.ingest.peers.shelf import Shelf
from cardinal.server.ingest.store import BodyStore
from replicating import EMPTY, MEMBERS, batch, chain

SIGNED = b"a signature"


def opened(folder: Path) -> tuple[BodyStore, ReplicaRows]:
    store = BodyStore(folder, "chain:1")
    return store, ReplicaRows(store, Objects(forks=True), MEMBERS.cluster)


def test_nothing_is_committed_after_a_step_that_was_not(tmp_path: Path) -> None:
    """The signature of a candidate vouches for the body of the step before."""
    store, rows = opened(tmp_path)
    (block,) = chain("99a", "100a")
    ((pages,),) = store.query("PRAGMA page_count")
    store.query(f"PRAGMA max_page_count = {pages + 4}")  # a disk that is full for a body, and not for a signature
    stored = rows.apply([PutBlock(block)], {block.ref: bytes(1 << 20)})
    with pytest.raises(StoreError, match="full"):
        stored.result()
    signed = rows.apply([PutCandidate(batch(EMPTY, [block]), SIGNED)], {})
    with pytest.raises(StoreError):
        signed.result()
    store.close()
    store, rows = opened(tmp_path)
    assert rows.stored() == []
    store.close()


def test_steps_are_committed_after_a_restart(tmp_path: Path) -> None:
    store, rows = opened(tmp_path)
    (block,) = chain("99a", "100a")
    header = batch(EMPTY, [block])
    rows.apply([PutBlock(block)], {block.ref: b"body"})
    rows.apply([PutCandidate(header, SIGNED)], {}).result()
    store.close()
    store, rows = opened(tmp_path)
    assert rows.stored() == [PutBlock(block), PutCandidate(header, SIGNED)]
    store.close()


def test_the_body_of_the_majority_replaces_another_one_that_a_peer_is_fetching(tmp_path: Path) -> None:
    store, rows = opened(tmp_path)
    shelf = Shelf(store, Objects(forks=True))
    ours, other = chain("99a", "100a", "101a")
    block = BlockId(ours.number, ours.hash)
    rows.apply([PutBlock(ours), PutBlock(other)], {ours.ref: b"ours", other.ref: b"other"}).result()
    shelf.add(block)
    shelf.pin(object_of(block))
    rows.apply([DeleteBlock(ours.ref)], {}).result()
    assert store.body(*block) == b"ours"
    theirs = ours._replace(content=bytes(32), size=6)
    rows.apply([PutBlock(theirs)], {theirs.ref: b"theirs"}).result()
    assert store.body(*block) == b"theirs"
    shelf.release(object_of(block))
    rows.apply([DeleteBlock(other.ref)], {}).result()
    assert store.body(*block) == b"theirs"
    assert store.pool_bytes == len(b"theirs")
    assert rows.stored() == [PutBlock(theirs)]
    store.close()
