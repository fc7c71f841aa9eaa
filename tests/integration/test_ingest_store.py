"""Store of an ingest node, and rows of a member: what a commit has reported is there after a kill."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal_ingest.body_exchange.objects import Objects, object_of
from cardinal_ingest.body_exchange.served_bodies import Shelf
from cardinal_ingest.cluster.rows import AgreedBlock, ReplicaRows
from cardinal_ingest.errors import StoreError
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import (
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
from replicating import EMPTY, MEMBERS, batch, chain

DEADLINE = 60.0
STREAM = "items:1"


def add(store: BodyStore, number: int, body: bytes = b"body") -> None:
    store.add(number, b"", b"", body, first=0).result(DEADLINE)


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process with a store."""
    head = "import sys\nfrom pathlib import Path\nfrom cardinal_ingest.node.store import BodyStore\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_blocks_are_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    numbers = [3, 0, 2**63 + 5, 2**64 - 2]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert store.first() is None
        for number in numbers:
            store.add(number, b"h" * 32, b"p" * 32, b"%d" % number, first=3).result(DEADLINE)
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert store.first() == 3
        assert [block.number for block in store.blocks()] == sorted(numbers)
        assert {block.number: block.ticket for block in store.blocks()} == dict(zip(numbers, range(1, 5), strict=True))
        assert all(store.body(number, b"h" * 32) == b"%d" % number for number in numbers)


def test_what_is_on_the_topics_loses_its_body_and_is_forgotten_when_no_fork_can_begin_there(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        for number in range(5):
            add(store, number)
        for number in range(4):
            store.promoted(number, b"").result(DEADLINE)
        with pytest.raises(StoreError, match="no body of block 1"):
            store.body(1, b"")
        store.forget(2).result(DEADLINE)
        assert [block.number for block in store.blocks()] == [2, 3, 4]
        store.forget(10).result(DEADLINE)
        assert [(block.number, block.promoted) for block in store.blocks()] == [(3, True), (4, False)], "the parent"


def test_bodies_are_retained_for_peers_until_they_are_old_and_not_pinned(tmp_path: Path) -> None:
    pinned = {(0, b"")}
    with closing(BodyStore(tmp_path, STREAM, retain=2)) as store:
        store.unpinned = lambda blocks: [block for block in blocks if block not in pinned]

        def retained() -> list[int]:
            return [number for number in range(6) if store.size(number, b"") is not None]

        for number in range(5):
            add(store, number)
            store.promoted(number, b"").result(DEADLINE)
        assert store.pool_bytes == 0
        assert retained() == [0, 3, 4]
        assert store.body(3, b"") == b"body"
        pinned.clear()
        add(store, 5)
        assert (store.pool_bytes, retained()) == (4, [0, 3, 4, 5])
        store.promoted(5, b"").result(DEADLINE)
        assert retained() == [4, 5]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert [block.number for block in store.blocks() if block.retained] == [4, 5]
        add(store, 6)
        store.promoted(6, b"").result(DEADLINE)
        assert [block.number for block in store.blocks() if block.retained] == []


def test_a_block_that_its_chain_left_behind_is_removed_unless_it_is_on_the_topics(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        for number in range(3):
            add(store, number)
        store.promoted(0, b"").result(DEADLINE)
        for number in range(2):
            store.remove(number, b"").result(DEADLINE)
        assert [block.number for block in store.blocks()] == [0, 2]
        assert store.pool_bytes == 4


def test_a_block_that_is_stored_again_stays_as_it_was(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        add(store, 1, b"first")
        add(store, 1, b"second")
        assert store.body(1, b"") == b"first"


@pytest.mark.process
def test_a_process_that_is_killed_keeps_what_was_reported(tmp_path: Path) -> None:
    writer = run(
        """
        store = BodyStore(Path(sys.argv[1]), "items:1")
        for number in range(100_000):
            store.add(number, b"", b"", bytes(5_000), first=0).result()
            print(number, flush=True)
        """,
        tmp_path,
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 40:
            break
    writer.kill()
    reported = [40, *map(int, writer.communicate()[0].split())]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        numbers = [block.number for block in store.blocks()]
        assert numbers[: reported[-1] + 1] == list(range(reported[-1] + 1))
        assert all(store.body(number, b"") == bytes(5_000) for number in numbers)


@pytest.mark.process
def test_a_full_disk_fails_what_waits_and_the_store_continues(tmp_path: Path) -> None:
    done = run(
        """
        import resource, signal
        from cardinal_ingest.errors import StoreError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = BodyStore(Path(sys.argv[1]), "items:1")
        store.add(0, b"", b"", bytes(10_000), first=0).result()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        error = store.add(1, b"", b"", bytes(5_000_000), first=0).exception()
        assert isinstance(error, StoreError) and error.retriable, error
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add(2, b"", b"", bytes(5_000_000), first=0).result()
        store.close()
        """,
        tmp_path,
    )
    assert done.communicate(timeout=DEADLINE) == ("", "")
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert [block.number for block in store.blocks()] == [0, 2]


@pytest.mark.process
def test_a_folder_that_somebody_has_is_refused(tmp_path: Path) -> None:
    holder = run(
        """
        store = BodyStore(Path(sys.argv[1]), "items:1")
        print("open", flush=True)
        sys.stdin.read()
        """,
        tmp_path,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    try:
        with pytest.raises(ConfigurationError, match="another process has the data folder"):
            BodyStore(tmp_path, STREAM)
    finally:
        holder.kill()
        holder.communicate()
    BodyStore(tmp_path, STREAM).close()


def test_the_folder_of_another_stream_is_refused(tmp_path: Path) -> None:
    BodyStore(tmp_path, STREAM).close()
    with pytest.raises(ConfigurationError, match="belongs to stream items:1, not evm:1"):
        BodyStore(tmp_path, "evm:1")


# --- rows of a member -----------------------------------------------------------------------------------------------


CLUSTER = b"c" * 32
RULES = Rules(start=1, window=8, max_blocks=500)


def member_block(number: int, branch: str = "a", weight: int | None = None) -> Block:
    name = f"{number}{branch}".encode()
    parent = f"{number - 1}a".encode().rjust(32, b"\0")
    return Block(number, name.rjust(32, b"\0"), parent, number if weight is None else weight, name.rjust(32, b"."), 4)


def member_batch(num: int, *blocks: Block) -> Header:
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
        self.rows.apply(rows, bodies).result(60)

    def body(self, one: Block) -> int | None:
        return self.store.size(one.number, one.hash)


def test_every_row_is_there_after_a_restart(folder: Path) -> None:
    state = State.empty(RULES, CLUSTER, "s").after(member_batch(1, member_block(1), member_block(2)))
    rows: list[Row] = [
        PutBlock(member_block(1)),
        PutBlock(member_block(2, weight=2**200)),
        PutCandidate(member_batch(1, member_block(1)), b"s" * 64),
        PutCandidate(member_batch(1, member_block(1, "b")), b""),
        PutWinner(member_batch(1, member_block(1))),
        PutPosition(Position(7, b"r" * 32, 3, closed=False, rules=RULES, state=state)),
        PutPromoted(1, 1),
    ]
    member = Member(folder)
    member.apply(*rows)
    member.store.close()
    again = Member(folder)
    assert sorted(map(repr, again.rows.stored())) == sorted(map(repr, rows))
    assert again.body(member_block(1)) == 4
    again.store.close()


def test_what_is_deleted_is_not_there_but_an_agreed_block_remains_known(folder: Path) -> None:
    member = Member(folder)
    member.apply(
        PutBlock(member_block(1)),
        PutBlock(member_block(2)),
        PutBlock(member_block(2, "b")),
        PutCandidate(member_batch(1, member_block(1)), b""),
    )
    assert member.store.pool_bytes == 12
    member.apply(PutWinner(member_batch(1, member_block(1), member_block(2), member_block(3))), DeleteCandidates(2))
    assert member.store.pool_bytes == 4  # the block of the other branch
    member.apply(DeleteWinner(1), DeleteBlock(member_block(1).ref), DeleteBlock(member_block(2, "b").ref))
    assert member.store.pool_bytes == 0
    assert member.rows.stored() == [PutBlock(member_block(2))]
    assert [member.body(one) for one in (member_block(1), member_block(2), member_block(2, "b"))] == [None, 4, None]
    agreed = [
        AgreedBlock(BlockId(one.number, one.hash), BlockId(one.number - 1, one.parent))
        for one in map(member_block, (1, 2, 3))
    ]
    assert member.rows.agreed() == agreed
    member.store.close()


def test_agreed_blocks_below_the_window_are_forgotten(folder: Path) -> None:
    member, state = Member(folder), State.empty(RULES, CLUSTER, "s")
    for number in range(1, 21):
        header = member_batch(number, member_block(number))
        state = state.after(header)
        member.apply(
            PutWinner(header), PutPosition(Position(number, NO_HASH, 0, closed=False, rules=RULES, state=state))
        )
    assert [one.block.number for one in member.rows.agreed()] == list(range(12, 21))
    member.store.close()


def test_the_body_of_an_agreed_block_may_come_after_the_claim(folder: Path) -> None:
    member = Member(folder)
    member.apply(PutWinner(member_batch(1, member_block(1))))
    assert member.body(member_block(1)) is None
    member.apply(PutBlock(member_block(1)))
    assert (member.body(member_block(1)), member.store.pool_bytes) == (4, 0)
    member.store.close()


def test_a_body_that_is_being_sent_outlives_its_deletion(folder: Path) -> None:
    member = Member(folder)
    member.apply(PutBlock(member_block(1)), PutBlock(member_block(2)))
    sent = {(1, member_block(1).hash)}
    member.store.unpinned = lambda blocks: [one for one in blocks if one not in sent]
    member.apply(DeleteBlock(member_block(1).ref))
    assert member.body(member_block(1)) == 4
    sent.clear()
    member.apply(DeleteBlock(member_block(2).ref))
    assert (member.body(member_block(1)), member.body(member_block(2))) == (None, None)
    member.store.close()


def test_a_folder_of_another_cluster_is_refused(folder: Path) -> None:
    Member(folder).store.close()
    with pytest.raises(ConfigurationError, match="another cluster, or another epoch"):
        Member(folder, b"d" * 32)


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
