"""Rows of a cluster's member: what was committed is there after a restart, and what was deleted is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.publish import BlockId
from cardinal.protocols.replication import (
    NO_HASH,
    Block,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Header,
    Position,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Row,
    Rules,
    State,
    seal_header,
)
from cardinal.server.ingest.cluster.rows import AgreedBlock, ReplicaRows
from cardinal.server.ingest.peers.objects import Objects
from cardinal.server.ingest.store import BodyStore

CLUSTER = b"c" * 32
RULES = Rules(start=1, window=8, max_blocks=500)


def block(number: int, branch: str = "a", weight: int | None = None) -> Block:
    name = f"{number}{branch}".encode()
    parent = f"{number - 1}a".encode().rjust(32, b"\0")
    return Block(number, name.rjust(32, b"\0"), parent, number if weight is None else weight, name.rjust(32, b"."), 4)


def batch(num: int, *blocks: Block) -> Header:
    return seal_header(
        CLUSTER, "s", num, NO_HASH, NO_HASH, blocks[0].parent, blocks[-1].weight, [one.item for one in blocks]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


class Member:
    """A member's file, which may be opened again."""

    def __init__(self, folder: Path, cluster: bytes = CLUSTER) -> None:
        self.store = BodyStore(folder, "blob:1")
        try:
            self.rows = ReplicaRows(self.store, Objects(forks=True), cluster)
        except ConfigurationError:
            self.store.close()
            raise

    def apply(self, *rows: Row) -> None:
        bodies = {row.block.ref: b"body" for row in rows if isinstance(row, PutBlock)}
        self.rows.apply(rows, bodies).result(10)

    def body(self, one: Block) -> int | None:
        return self.store.size(one.number, one.hash)


def test_every_row_is_there_after_a_restart(folder: Path) -> None:
    state = State.empty(RULES, CLUSTER, "s").after(batch(1, block(1), block(2)))
    rows: list[Row] = [
        PutBlock(block(1)),
        PutBlock(block(2, weight=2**200)),
        PutCandidate(batch(1, block(1)), b"s" * 64),
        PutCandidate(batch(1, block(1, "b")), b""),
        PutWinner(batch(1, block(1))),
        PutPosition(Position(7, b"r" * 32, 3, closed=False, rules=RULES, state=state)),
        PutPromoted(1, 1),
    ]
    member = Member(folder)
    member.apply(*rows)
    member.store.close()
    again = Member(folder)
    assert sorted(map(repr, again.rows.stored())) == sorted(map(repr, rows))
    assert again.body(block(1)) == 4
    again.store.close()


def test_what_is_deleted_is_not_there_but_an_agreed_block_remains_known(folder: Path) -> None:
    member = Member(folder)
    member.apply(PutBlock(block(1)), PutBlock(block(2)), PutBlock(block(2, "b")), PutCandidate(batch(1, block(1)), b""))
    assert member.store.pool_bytes == 12
    member.apply(PutWinner(batch(1, block(1), block(2), block(3))), DeleteCandidates(2))
    assert member.store.pool_bytes == 4  # the block of the other branch
    member.apply(DeleteWinner(1), DeleteBlock(block(1).ref), DeleteBlock(block(2, "b").ref))
    assert member.store.pool_bytes == 0
    assert member.rows.stored() == [PutBlock(block(2))]
    assert [member.body(one) for one in (block(1), block(2), block(2, "b"))] == [None, 4, None]
    agreed = [
        AgreedBlock(BlockId(one.number, one.hash), BlockId(one.number - 1, one.parent)) for one in map(block, (1, 2, 3))
    ]
    assert member.rows.agreed() == agreed
    member.store.close()


def test_agreed_blocks_below_the_window_are_forgotten(folder: Path) -> None:
    member, state = Member(folder), State.empty(RULES, CLUSTER, "s")
    for number in range(1, 21):
        header = batch(number, block(number))
        state = state.after(header)
        member.apply(
            PutWinner(header), PutPosition(Position(number, NO_HASH, 0, closed=False, rules=RULES, state=state))
        )
    assert [one.block.number for one in member.rows.agreed()] == list(range(12, 21))
    member.store.close()


def test_the_body_of_an_agreed_block_may_come_after_the_claim(folder: Path) -> None:
    member = Member(folder)
    member.apply(PutWinner(batch(1, block(1))))
    assert member.body(block(1)) is None
    member.apply(PutBlock(block(1)))
    assert (member.body(block(1)), member.store.pool_bytes) == (4, 0)
    member.store.close()


def test_a_body_that_is_being_sent_outlives_its_deletion(folder: Path) -> None:
    member = Member(folder)
    member.apply(PutBlock(block(1)), PutBlock(block(2)))
    sent = {(1, block(1).hash)}
    member.store.unpinned = lambda blocks: [one for one in blocks if one not in sent]
    member.apply(DeleteBlock(block(1).ref))
    assert member.body(block(1)) == 4
    sent.clear()
    member.apply(DeleteBlock(block(2).ref))
    assert (member.body(block(1)), member.body(block(2))) == (None, None)
    member.store.close()


def test_a_folder_of_another_cluster_is_refused(folder: Path) -> None:
    Member(folder).store.close()
    with pytest.raises(ConfigurationError, match="another cluster, or another epoch"):
        Member(folder, b"d" * 32)
