"""Replication: refused shapes, claim log, minipool and rounds, replica, promotion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError, EncodeError, LocalProtocolError
from cardinal_ingest.errors import ClaimLogDivergedError, ForeignMarkerError, StateDivergedError, ViolationError
from cardinal_ingest.protocols.cbor import Value, dump
from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Acknowledged,
    Agreed,
    Answer,
    Append,
    Applied,
    Block,
    Broadcast,
    Candidate,
    Checkpoint,
    CheckpointRead,
    Claim,
    ClaimLog,
    ClaimRefused,
    Close,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Denial,
    Denied,
    Divergence,
    EpochClosed,
    Head,
    Marker,
    Noted,
    Observed,
    Opened,
    Placed,
    Position,
    Promotion,
    Proposal,
    Propose,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Ref,
    Refusal,
    Refused,
    Replica,
    ReplicationSettings,
    Rules,
    Run,
    Saved,
    Send,
    State,
    StateDivergence,
    Step,
    Want,
    decode,
    decode_agreed,
    decode_marker,
    decode_record,
    encode,
    read_header,
)
from cardinal_ingest.protocols.replication.pool import Pool
from cardinal_ingest.protocols.replication.rounds import Round, combine, cut
from model.cluster_node import first_record, membership, signer, state_record, verify
from replicating import (
    EMPTY,
    FIRST,
    MEMBERS,
    RULES,
    batch,
    block,
    broadcast,
    chain,
    claim_of,
    claimed,
    name,
    replica,
    saved,
    saved_by,
    signed,
)

# --- shapes ---------------------------------------------------------------------------------------------------------


HASH = b"\x07" * 32


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (0, ["eth"]),
        (6, ["eth"]),
        (1, "eth"),
        (1, ["eth"]),
        (1, ["eth", 5]),
        (1, [b"eth", []]),
        (1, ["eth", [[1, HASH, HASH, b"\x01", HASH]]]),
        (1, ["eth", [[1, HASH, HASH, b"\x00\x01", HASH, 5]]]),
        (1, ["eth", [[1, HASH, HASH, 1, HASH, 5]]]),
        (1, ["eth", [[1, HASH[1:], HASH, b"\x01", HASH, 5]]]),
        (1, ["eth", [[b"1", HASH, HASH, b"\x01", HASH, 5]]]),
        (2, ["eth", 1, HASH, 1, 2**32]),
        (3, ["eth", 1, 1, 2, []]),
        (4, ["eth", b"no header"]),
        (4, ["eth", dump(["cardinal/batch/2", HASH, "eth", 1, HASH, HASH, HASH, b"", []])]),
        (5, ["eth", 1, HASH, HASH]),
    ],
)
def test_no_message(kind: int, value: Value) -> None:
    with pytest.raises(ViolationError):
        decode(kind, dump(value))


@pytest.mark.parametrize("value", [1, [], [4], [b"1"], [[]], [1], [2, b"", "a", b""]])
def test_no_record(value: Value) -> None:
    with pytest.raises(ViolationError):
        decode_record(dump(value))


def test_no_marker_and_no_position() -> None:
    with pytest.raises(ViolationError):
        decode_marker(dump([2, HASH, "eth", 1, 1, HASH, "a"]))
    with pytest.raises(ViolationError):
        decode_agreed(bytes(11))
    with pytest.raises(ViolationError):
        read_header(dump("cardinal/batch/1"))


@pytest.mark.parametrize(
    "value",
    [
        Propose("eth", 2**64, NO_HASH, 0, 0),
        Propose("eth", -1, NO_HASH, 0, 0),
        Observed("eth", (Block(1, HASH, HASH, -1, HASH, 1),)),
        Marker(HASH, "eth", 1, -1, HASH, "a"),
    ],
)
def test_numbers_without_an_encoding(value: Propose | Observed | Marker) -> None:
    with pytest.raises(EncodeError):
        encode(value)


# --- claim log ------------------------------------------------------------------------------------------------------


FIRST_RUN = chain("99a", "100a", "101a", "102a")
FIRST_CLAIM = claim_of(batch(EMPTY, FIRST_RUN))
DOUBLED = block("101a", "100a")._replace(hash=name("100a"))


def opened_log() -> ClaimLog:
    log = ClaimLog(MEMBERS, verify)
    assert log.read(0, FIRST) == Opened(EMPTY)
    return log


def grown() -> ClaimLog:
    """A log with one batch: 100a to 102a."""
    log = opened_log()
    assert isinstance(log.read(1, claimed(batch(EMPTY, FIRST_RUN))), Applied)
    return log


def state_of(log: ClaimLog | Replica) -> State:
    assert log.state is not None
    return log.state


NEXT = chain("102a", "103a")
other = membership(3, b"\xc2" * 32)
four = membership(4)


def claims(state: State) -> dict[Refusal, bytes]:
    """A claim for every reason; each breaks the rules after its own, too, where that is possible."""
    far = batch(state, chain("98z", "99z", "98y", "97x", "96w"), num=7, prev=b"x" * 32)
    fit = claim_of(batch(state, NEXT))
    return {
        Refusal.MALFORMED: b"\x80",
        Refusal.OTHER_CLUSTER: claimed(batch(state, NEXT, cluster=other.cluster, num=7), signers=""),
        Refusal.NOT_MEMBER: encode(replace(claim_of(far), claimer="z")),
        Refusal.BAD_NUMBER: claimed(far, signers="a"),
        Refusal.BAD_PREVIOUS: claimed(batch(state, [], prev=b"x" * 32), signers=""),
        Refusal.TOO_LARGE: claimed(batch(state, chain("98z", "99z", "98y", "97x", "96w")), signers=""),
        Refusal.UNKNOWN_PARENT: claimed(batch(state, chain("98z", "99z", "98y")), signers=""),
        Refusal.NOT_ASCENDING: claimed(batch(state, chain("102a", "101b", "101a")), signers=""),
        Refusal.TWICE: claimed(batch(state, [block("101a", "100a")]), signers=""),
        Refusal.BAD_SIGNATURE: encode(replace(fit, signature=bytes(64), certificate=fit.certificate[:1])),
        Refusal.NO_QUORUM: encode(signed(replace(fit, certificate=2 * fit.certificate[:1]))),
    }


@pytest.mark.parametrize(
    "reason", [reason for reason in Refusal if reason not in (Refusal.OTHER_STATE, Refusal.CLOSED)]
)
def test_refusals(reason: Refusal) -> None:
    log = grown()
    before = log.state
    assert log.read(2, claims(state_of(log))[reason]) == Refused(reason)
    assert log.state is before
    assert log.position.offset == 3
    assert isinstance(log.read(3, claimed(batch(state_of(log), NEXT))), Applied)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (claimed(batch(EMPTY, [])), Refusal.TOO_LARGE),
        (claimed(batch(EMPTY, chain("100a", "101a"))), Refusal.UNKNOWN_PARENT),
        (claimed(batch(EMPTY, [block("100a", "99a"), block("100a", "99a")])), Refusal.NOT_ASCENDING),
        (claimed(batch(EMPTY, [block("100a", "99a"), DOUBLED])), Refusal.TWICE),
        (claimed(batch(EMPTY, FIRST_RUN, stream="btc")), Refusal.OTHER_CLUSTER),
        (encode(signed(replace(FIRST_CLAIM, certificate=(("z", bytes(64)),)))), Refusal.NOT_MEMBER),
        (encode(signed(replace(FIRST_CLAIM, certificate=(("a", bytes(64)),)))), Refusal.BAD_SIGNATURE),
        (FIRST, Refusal.BAD_NUMBER),
        (first_record(other, RULES), Refusal.OTHER_CLUSTER),
        (first_record(four, RULES), Refusal.OTHER_CLUSTER),
    ],
    ids=str,
)  # fmt: skip
def test_refusals_in_an_empty_stream(record: bytes, reason: Refusal) -> None:
    assert opened_log().read(1, record) == Refused(reason)


def test_a_log_without_its_first_record_has_no_state() -> None:
    log = ClaimLog(MEMBERS, verify)
    for offset, record in enumerate((claimed(batch(EMPTY, FIRST_RUN)), state_record(MEMBERS, Checkpoint, EMPTY, "a"))):
        assert log.read(offset, record) == Refused(Refusal.BAD_NUMBER)
    assert log.state is None
    assert log.read(2, FIRST) == Opened(EMPTY)


def test_the_first_valid_claim_of_a_number_wins() -> None:
    log = opened_log()
    one, two = batch(EMPTY, FIRST_RUN), batch(EMPTY, chain("99a", "100b"))
    assert isinstance(log.read(1, claimed(one, "b", "bc", skips=4)), Applied)
    for offset, record in enumerate((claimed(two), claimed(one), claimed(one, "b", "bc", skips=4)), 2):
        assert log.read(offset, record) == Refused(Refusal.BAD_NUMBER)
    assert log.position.skips == 4
    assert state_of(log).hash == one.hash


def test_the_head_moves_to_a_heavier_run_only() -> None:
    log = grown()
    side = batch(state_of(log), [block("101b", "100a", 1)])
    verdict = log.read(2, claimed(side))
    assert isinstance(verdict, Applied)
    assert verdict.state.head == Head(102, name("102a"), 3)
    heavier = batch(verdict.state, [block("102b", "101b", 9)])
    verdict = log.read(3, claimed(heavier))
    assert isinstance(verdict, Applied)
    assert verdict.state.head == Head(102, name("102b"), 9)


def test_the_ring_ends_at_the_window() -> None:
    log = grown()
    log.read(2, claimed(batch(state_of(log), chain("102a", "103a", "104a"))))
    state = state_of(log)
    assert sorted(state.ring.values()) == [100, 101, 102, 103, 104]
    assert state.holds(Ref(100, name("100a")))
    assert not state.holds(Ref(99, name("99a")))
    assert state.floor == 101


def test_a_stream_that_begins_with_number_zero_has_no_root() -> None:
    rules = Rules(0, 4, 3)
    state = State.empty(rules, MEMBERS.cluster, MEMBERS.stream)
    after = state.after(batch(state, [block("0a", "0z")]))
    assert dict(after.ring) == {name("0a"): 0}


def test_another_state_under_a_certificate_stops_the_reader() -> None:
    log = grown()
    with pytest.raises(StateDivergedError) as stopped:
        log.read(2, claimed(batch(state_of(log), NEXT, state=NO_HASH)))
    assert (stopped.value.num, stopped.value.expected) == (2, NO_HASH)
    assert stopped.value.found == state_of(log).digest


def test_checkpoints() -> None:
    log = grown()
    state = state_of(log)
    wrong = replace(state, raw=State.build(RULES, MEMBERS.cluster, MEMBERS.stream, 1, NO_HASH, state.head, 1, {}).raw)
    good = state_record(MEMBERS, Checkpoint, state, "b")
    for offset, (record, verdict) in enumerate(
        (
            (state_record(MEMBERS, Checkpoint, EMPTY, "b"), Refused(Refusal.BAD_NUMBER)),
            (state_record(MEMBERS, Checkpoint, wrong, "b"), Refused(Refusal.OTHER_STATE)),
            (good[:-1] + bytes([good[-1] ^ 1]), Refused(Refusal.BAD_SIGNATURE)),
            (encode(Checkpoint(state.raw, "z", bytes(64))), Refused(Refusal.NOT_MEMBER)),
            (encode(Checkpoint(b"no state", "a", bytes(64))), Refused(Refusal.MALFORMED)),
        ),
        2,
    ):
        assert log.read(offset, record) == verdict
    noted = log.read(7, good)
    assert isinstance(noted, Noted)
    assert noted.num == 1


def test_an_empty_node_begins_at_a_checkpoint_of_a_trimmed_log() -> None:
    state = state_of(grown())
    log = ClaimLog(MEMBERS, verify, Position(offset=40, rules=RULES))
    assert log.read(40, claimed(batch(state, NEXT))) == Refused(Refusal.BAD_NUMBER)
    assert log.read(41, state_record(MEMBERS, Checkpoint, state, "c")) == Opened(state)
    assert isinstance(log.read(42, claimed(batch(state, NEXT))), Applied)


def test_nothing_counts_after_the_close() -> None:
    log = grown()
    assert isinstance(log.read(2, state_record(MEMBERS, Close, state_of(log), "a")), Noted)
    assert log.position.closed
    assert log.read(3, claimed(batch(state_of(log), NEXT))) == Refused(Refusal.CLOSED)
    assert log.read(4, state_record(MEMBERS, Checkpoint, state_of(log), "a")) == Refused(Refusal.CLOSED)


def test_the_log_after_a_restart() -> None:
    log = grown()
    last = claimed(batch(EMPTY, FIRST_RUN))
    log.confirm(0, 2, last)
    log.confirm(2, 9, None)
    with pytest.raises(ClaimLogDivergedError, match="it ends at 1"):
        log.confirm(0, 1, None)
    with pytest.raises(ClaimLogDivergedError, match="record 1 is not"):
        log.confirm(0, 2, FIRST)
    with pytest.raises(ClaimLogDivergedError, match="records 2 to 4 are trimmed"):
        log.confirm(5, 9, None)
    with pytest.raises(ClaimLogDivergedError, match="record 1 was read before"):
        log.read(1, last)
    ClaimLog(MEMBERS, verify).confirm(5, 9, None)


# --- minipool and rounds --------------------------------------------------------------------------------------------


def pool(state: State, *blocks: Block) -> Pool:
    it = Pool()
    it.relink(state)
    for one in blocks:
        it.add(one)
    return it


def names(blocks: list[Block]) -> list[str]:
    return [one.hash.rstrip(b".").decode() for one in blocks]


STATE = EMPTY.after(batch(EMPTY, chain("99a", "100a", "101a", "102a")))
"""The head is 102a, its weight 3."""


def test_nothing_is_linked_before_there_is_a_state() -> None:
    it = Pool()
    it.add(block("100a", "99a"))
    assert it.first is None
    assert it.suffix(9) == []
    assert not it.links(block("101a", "100a"))
    it.relink(EMPTY)
    assert names(it.suffix(9)) == ["100a"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_suffix_is_the_best_descendant_of_the_head(order: int) -> None:
    blocks = [*chain("102a", "103a", "104a"), *chain("102a", "103b"), *chain("101a", "102b", "103c")]
    assert names(pool(STATE, *blocks[::order]).suffix(9)) == ["103a", "104a"]
    assert names(pool(STATE, *blocks[::order]).suffix(1)) == ["103a"]


def test_another_tip_must_be_heavier_than_head_and_descendants() -> None:
    side = [block("102b", "101a", 3), block("103b", "102b", 5)]
    assert names(pool(STATE, side[0]).suffix(9)) == []
    assert names(pool(STATE, *side).suffix(9)) == ["102b", "103b"]
    assert names(pool(STATE, *side, block("103a", "102a", 5)).suffix(9)) == ["103a"]
    assert names(pool(STATE, *side, block("103a", "102a", 4)).suffix(9)) == ["102b", "103b"]


def test_removed_blocks_are_unlinked() -> None:
    blocks = chain("102a", "103a", "104a")
    it = pool(STATE, *blocks, block("104b", "103a"))
    assert it.size == 30
    it.remove(blocks[1])
    it.relink(STATE)
    assert names(it.suffix(9)) == ["103a", "104b"]
    it.remove(blocks[0])
    it.relink(STATE)
    assert it.first is None
    assert (it.size, names(list(it.children(name("103a"))))) == (10, ["104b"])


@given(st.data())
def test_a_pool_votes_alike_whatever_the_order_of_arrival(data: st.DataObject) -> None:
    blocks = [
        *chain("102a", "103a", "104a", "105a"), *chain("103a", "104b"), *chain("101a", "102b", "103b", "104c", "105c"),
    ]  # fmt: skip
    some = data.draw(st.lists(st.sampled_from(blocks), unique=True))
    expected = pool(STATE, *some).suffix(9)
    assert pool(STATE, *data.draw(st.permutations(some))).suffix(9) == expected
    late = Pool()
    for one in some:
        late.add(one)
    late.relink(STATE)
    assert late.suffix(9) == expected


# --- rounds -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_combined_votes_are_a_path(data: st.DataObject) -> None:
    """A vote is a path from the agreed blocks; what more than half voted for is one, too."""
    parents = {0: 0}
    for one in range(1, data.draw(st.integers(1, 12))):
        parents[one] = data.draw(st.integers(0, one - 1))

    def path(tip: int) -> tuple[Ref, ...]:
        refs: list[Ref] = []
        while tip:
            refs.insert(0, Ref(depth(tip), bytes([tip])))
            tip = parents[tip]
        return tuple(refs)

    def depth(one: int) -> int:
        return 0 if one == 0 else 1 + depth(parents[one])

    size = data.draw(st.integers(1, 5))
    votes = [path(data.draw(st.sampled_from(sorted(parents)))) for _ in range(size)]
    combined = combine(votes, size // 2 + 1)
    assert tuple(combined) == (path(combined[-1].hash[0]) if combined else ())


def test_a_path_is_cut_at_a_missing_body_at_a_gap_and_at_the_limits() -> None:
    blocks = chain("99a", "100a", "101a", "102a", "103a")
    refs = [one.ref for one in blocks]
    held = {one.hash: one for one in blocks}
    assert cut(refs, held, 9, 999) == blocks
    assert cut(refs, held, 2, 999) == blocks[:2]
    assert cut(refs, held, 9, 35) == blocks[:3]
    assert cut(refs, held, 9, 1) == blocks[:1]
    assert cut(refs, {one: held[one] for one in held if one != refs[2].hash}, 9, 999) == blocks[:2]
    assert cut([refs[0], refs[2]], held, 9, 999) == blocks[:1]


def test_votes_are_combined_when_more_would_not_help() -> None:
    a, b = Ref(100, name("100a")), Ref(101, name("101a"))
    turn = Round(1, 1, 0.0)
    turn.vote("a", (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 0.05, 1.0) is None
    turn.vote("b", (a,), 2, 1.0)
    assert turn.result("a", MEMBERS, 0.05, 1.0) is None
    assert turn.result("a", MEMBERS, 0.05, 1.05) == [a]
    assert turn.result("a", MEMBERS, 0.05, 2.0) is None
    turn = Round(2, 1, 0.0)
    for member in "abc":
        turn.vote(member, (a,) if member == "c" else (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 9.0, 0.0) == [a, b]
    turn = Round(3, 1, 0.0)
    turn.vote("a", (a,), 2, 0.0)
    turn.vote("b", (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 9.0, 0.0) == [a]


def test_rules_are_no_part_of_the_state() -> None:
    other = State.empty(Rules(100, 9, 9), MEMBERS.cluster, MEMBERS.stream)
    assert other.digest == EMPTY.digest


# --- replica --------------------------------------------------------------------------------------------------------


STREAM = MEMBERS.stream
BLOCKS = chain("99a", "100a", "101a")
BATCH = batch(EMPTY, BLOCKS)


def observed(*blocks: object) -> Observed:
    return Observed(STREAM, tuple(blocks))  # type: ignore[arg-type]


def admitted(node: str, **settings: float) -> Replica:
    """A replica that has the blocks."""
    it = replica(node, **settings)
    it.admit(BLOCKS, 0.0)
    return it


def acknowledged(step: Step) -> list[Ref]:
    return [ref for action in step.actions if isinstance(action, Acknowledged) for ref in action.refs]


def agree(it: Replica, *runs: list[object], offset: int = 1) -> Step:
    step = Step((), ())
    for at, run in enumerate(runs, offset):
        step = it.read(at, claimed(batch(state_of(it), run), "b", "bc"), 0.0)  # type: ignore[arg-type]
    return step


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_is_stored_then_announced_then_acknowledged_at_a_majority() -> None:
    it = replica("c")
    step = it.admit(BLOCKS, 0.0)
    assert step.rows == tuple(map(PutBlock, BLOCKS))
    assert step.actions == (Broadcast(observed(*BLOCKS)),)
    assert it.receive("a", observed(BLOCKS[1]), 0.0).actions == ()
    assert acknowledged(it.receive("b", observed(BLOCKS[0]), 0.0)) == [one.ref for one in BLOCKS]
    assert it.admit(BLOCKS[:1], 0.0) == Step((), (Acknowledged((BLOCKS[0].ref,)),))
    assert it.unagreed == len(BLOCKS)
    agree(it, BLOCKS)
    assert it.unagreed == 0


def test_a_duplicate_that_is_not_acknowledged_yet_changes_nothing() -> None:
    it = admitted("c")
    assert it.admit(BLOCKS, 0.0) == Step((), ())


def test_blocks_are_acknowledged_at_once_where_one_node_is_the_majority() -> None:
    alone = membership(1)
    it = Replica("a", alone, signer(alone.members["a"]), verify)
    it.read(0, first_record(alone, RULES), 0.0)
    step = it.admit(BLOCKS, 0.0)
    assert acknowledged(step) == [one.ref for one in BLOCKS]
    again = Replica("a", alone, signer(alone.members["a"]), verify, rows=[PutPosition(it.log.position), *step.rows])  # type: ignore[list-item]
    assert acknowledged(again.tick(0.0)) == [one.ref for one in BLOCKS]
    assert [type(action) for action in again.tick(9.0).actions] == [Broadcast, Broadcast, Broadcast, Append]


def test_what_a_peer_observed_is_cleared_with_its_session() -> None:
    it = replica("c")
    it.receive("a", observed(*BLOCKS), 0.0)
    it.receive("b", observed(BLOCKS[0]), 0.0)
    it.begin("a", 0.0)
    assert acknowledged(it.admit(BLOCKS, 0.0)) == [BLOCKS[0].ref]


def test_blocks_that_are_not_stored() -> None:
    it = replica("c", opened=False)
    assert it.admit(BLOCKS[:1], 0.0).actions == (Denied(BLOCKS[0].ref, Denial.NOT_OPEN),)
    it = replica("c", pool_bytes=30)
    low = block("99b", "98a")
    assert it.admit([low], 0.0).actions == (Denied(low.ref, Denial.FORK_TOO_DEEP),)
    agree(it, BLOCKS, chain("101a", "102a", "103a"), chain("103a", "104a", "105a"))
    low = block("101b", "100a")
    assert it.admit([low], 0.0).actions == (Denied(low.ref, Denial.FORK_TOO_DEEP),)
    assert it.admit([BLOCKS[1]._replace(content=b"x" * 32)], 0.0).actions[-1] == Denied(
        BLOCKS[1].ref, Denial.OTHER_CONTENT
    )


def test_blocks_below_the_window_are_deleted_when_a_number_is_decided() -> None:
    it = replica("c")
    side = block("100b", "99a")
    it.admit([*BLOCKS, side], 0.0)
    agree(it, BLOCKS, chain("101a", "102a", "103a"))
    assert it.pool.blocks.get(side.hash) == side
    assert DeleteBlock(side.ref) in agree(it, chain("103a", "104a", "105a"), offset=3).rows


def test_a_marker_that_does_not_rise_changes_nothing() -> None:
    it = replica("c")
    agree(it, BLOCKS)
    marker = Marker(MEMBERS.cluster, STREAM, 1, 1, BATCH.hash, "a")
    assert it.marker(marker, 0.0).rows == (PutPromoted(1, 1),)
    assert it.marker(marker, 0.0) == Step((), ())


def test_what_is_promoted_is_not_fetched() -> None:
    it = replica("c", opened=False, retain_blocks=1)
    marker = Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "a")
    assert it.marker(marker, 0.0).rows == (PutPromoted(1, 2),)
    it.read(0, FIRST, 0.0)
    assert agree(it, BLOCKS).actions[-1] == Acknowledged(tuple(one.ref for one in BLOCKS))
    assert it.wanted == []
    assert DeleteWinner(1) in agree(it, chain("101a", "102a"), offset=2).rows


def test_agreed_blocks_are_acknowledged_and_not_stored_again() -> None:
    it = admitted("c")
    agree(it, BLOCKS)
    assert it.admit(BLOCKS[1:], 0.0) == Step((), (Acknowledged((BLOCKS[1].ref,)),))


def test_a_full_pool_refuses_blocks_until_promotion_frees_it() -> None:
    it = replica("c", pool_bytes=40)
    more = chain("101a", "102a", "103a", "104a")
    waiting = [block("106b", "105b"), block("107b", "106b"), block("108b", "107b")]
    it.admit(BLOCKS, 0.0)
    assert it.admit(waiting[:1], 0.0).actions == (Denied(waiting[0].ref, Denial.POOL_FULL),)
    it.admit(more[:2], 0.0)
    assert it.admit(more[2:], 0.0).actions == (Denied(more[2].ref, Denial.POOL_FULL),)
    it.receive("a", observed(*BLOCKS, *more), 0.0)
    agree(it, BLOCKS)
    step = it.marker(Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "a"), 0.0)
    assert DeleteWinner(1) in step.rows
    assert [row for row in step.rows if isinstance(row, DeleteBlock)] == [DeleteBlock(one.ref) for one in BLOCKS]
    assert it.needs(more[2].ref)
    assert it.admit(more[2:], 0.0).rows == (PutBlock(more[2]),)


def test_a_block_that_needs_the_capacity_replaces_promoted_ones() -> None:
    """Forks came after the marker: no batch follows, which would delete what is promoted."""
    it = admitted("c", pool_bytes=40)
    agree(it, BLOCKS)
    assert DeleteWinner(1) not in it.marker(Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "a"), 0.0).rows
    it.admit([block("101b", "100a"), block("102b", "101b")], 0.0)
    following = block("102a", "101a")
    rows = it.admit([following], 0.0).rows
    assert rows == (DeleteWinner(1), *(DeleteBlock(one.ref) for one in BLOCKS), PutBlock(following))


def test_a_full_pool_requests_what_it_refused_when_it_has_capacity() -> None:
    it = admitted("c", pool_bytes=20)
    third = block("102a", "101a")
    it.receive("a", observed(*BLOCKS, third), 0.0)
    it.admit([third], 0.0)
    assert Want((third.ref,)) in agree(it, BLOCKS).actions
    fourth = block("103a", "102a")
    it.admit([fourth], 0.0)
    assert agree(it, [third], offset=2).actions[-1] == Want((third.ref,))


def test_a_full_pool_takes_the_bodies_of_candidates_and_winners() -> None:
    it = replica("c", pool_bytes=5)
    it.receive("a", Candidate(STREAM, BATCH), 0.0)
    assert it.admit(BLOCKS[:1], 0.0).rows == (PutBlock(BLOCKS[0]),)
    agree(it, BLOCKS)
    assert it.wanted == [BLOCKS[1].ref]
    assert it.admit(BLOCKS[1:], 0.0).rows == (PutBlock(BLOCKS[1]),)
    assert it.wanted == []


def test_a_full_memory_of_observed_blocks_takes_no_more() -> None:
    it = replica("c", max_observed=1)
    it.receive("a", observed(*BLOCKS), 0.0)
    assert acknowledged(it.admit(BLOCKS, 0.0)) == [BLOCKS[0].ref]


def test_needs() -> None:
    it = replica("c", opened=False)
    assert not it.needs(BLOCKS[0].ref)
    it.read(0, FIRST, 0.0)
    assert it.needs(BLOCKS[0].ref)
    it.admit(BLOCKS[:1], 0.0)
    assert not it.needs(BLOCKS[0].ref)
    agree(it, BLOCKS)
    assert it.needs(BLOCKS[1].ref)
    it.marker(Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "a"), 0.0)
    assert not it.needs(BLOCKS[1].ref)
    assert it.needs(Ref(102, name("102b")))
    assert not it.needs(Ref(97, name("97b")))


def test_content_that_differs_is_reported_and_does_not_count() -> None:
    it = replica("c")
    other = BLOCKS[0]._replace(content=b"x" * 32)
    it.receive("a", observed(other), 0.0)
    assert it.admit(BLOCKS[:1], 0.0).actions[0] == Divergence(other.ref, BLOCKS[0].content, other.content, "a")
    step = it.receive("b", observed(other), 0.0)
    assert step.actions == (Divergence(other.ref, BLOCKS[0].content, other.content, "b"),)
    step = it.receive("a", Candidate(STREAM, batch(EMPTY, [other])), 0.0)
    assert Divergence(other.ref, BLOCKS[0].content, other.content, "a") in step.actions
    assert broadcast(step) == []


def test_the_majoritys_content_replaces_the_own() -> None:
    it = replica("c")
    it.admit([BLOCKS[0]._replace(content=b"x" * 32)], 0.0)
    step = agree(it, BLOCKS[:1])
    assert DeleteBlock(BLOCKS[0].ref) in step.rows
    assert Want((BLOCKS[0].ref,)) in step.actions
    assert Divergence(BLOCKS[0].ref, b"x" * 32, BLOCKS[0].content) in step.actions
    assert it.admit([BLOCKS[0]._replace(content=b"x" * 32)], 0.0).rows == ()
    assert it.admit(BLOCKS[:1], 0.0) == Step((PutBlock(BLOCKS[0]),), ())


# --- candidates -------------------------------------------------------------------------------------------------------


def test_a_candidate_is_stored_and_signed_with_all_its_bodies() -> None:
    it = replica("c")
    it.admit(BLOCKS[:1], 0.0)
    step = it.receive("a", Candidate(STREAM, BATCH), 0.0)
    assert step == Step((PutCandidate(BATCH, b""),), (Want((BLOCKS[1].ref,)),))
    step = it.admit(BLOCKS[1:], 0.0)
    assert step.rows == (PutBlock(BLOCKS[1]), PutCandidate(BATCH, saved(BATCH, "c")))
    assert broadcast(step)[-1] == saved_by("c", BATCH)
    assert it.receive("a", Candidate(STREAM, BATCH), 0.0) == Step((), ())


@pytest.mark.parametrize(
    "header",
    [
        batch(EMPTY, BLOCKS, heaviness=99),
        batch(EMPTY, BLOCKS, parent=b"?" * 32),
        batch(EMPTY, [BLOCKS[0], block("101b", "100b")]),
    ],
)
def test_a_candidate_that_does_not_fit_its_bodies_is_not_signed(header: object) -> None:
    it = replica("c")
    it.admit([*BLOCKS, block("101b", "100b")], 0.0)
    step = it.receive("a", Candidate(STREAM, header), 0.0)  # type: ignore[arg-type]
    assert step.rows == (PutCandidate(header, b""),)  # type: ignore[arg-type]
    assert step.actions == ()


def test_a_side_branch_is_signed_where_it_is_heavier_or_begins_the_own_suffix() -> None:
    it = replica("c")
    it.admit([*BLOCKS, *chain("101a", "102a", "103a")], 0.0)
    agree(it, BLOCKS, chain("101a", "102a", "103a"))
    side = [block("102b", "101a", 3), block("103b", "102b", 4), block("104b", "103b", 6)]
    it.admit(side[:2], 0.0)
    light = batch(state_of(it), side[:1])
    assert broadcast(it.receive("a", Candidate(STREAM, light), 0.0)) == []
    assert broadcast(it.admit(side[2:], 0.0))[-1] == saved_by("c", light)


def test_candidates_that_count_for_nothing() -> None:
    it = replica("c", max_candidates=1)
    for header in (batch(EMPTY, BLOCKS, prev=b"?" * 32), batch(EMPTY, []), batch(EMPTY, BLOCKS, num=0)):
        assert it.receive("a", Candidate(STREAM, header), 0.0) == Step((), ())
    step = it.receive("a", Candidate(STREAM, batch(EMPTY, BLOCKS, state=NO_HASH)), 0.0)
    assert step.actions == (StateDivergence("a", 1),)
    it.receive("a", Candidate(STREAM, BATCH), 0.0)
    other = batch(EMPTY, BLOCKS[:1])
    assert it.receive("a", Candidate(STREAM, other), 0.0) == Step((), ())
    assert it.receive("b", Candidate(STREAM, other), 0.0).rows == (PutCandidate(other, b""),)


def test_messages_that_end_the_link() -> None:
    it = replica("c")
    for message in (
        Observed("btc", ()),
        Candidate(STREAM, batch(EMPTY, BLOCKS, cluster=b"\x00" * 32)),
        Saved(STREAM, 1, BATCH.hash, saved(BATCH, "b")),
    ):
        with pytest.raises(ViolationError):
            it.receive("a", message, 0.0)


# --- rounds -----------------------------------------------------------------------------------------------------------


def led(**settings: float) -> Replica:
    """The leader of the first number, with blocks that a majority observed, and a round."""
    it = admitted("a", batch_wait=0.0, **settings)
    assert it.leader == "a"
    step = it.receive("b", observed(*BLOCKS), 0.0)
    assert broadcast(step) == [Propose(STREAM, 1, NO_HASH, 1, 0)]
    return it


def votes(*blocks: object) -> Proposal:
    return Proposal(STREAM, 1, 1, Answer.VOTE, tuple(one.ref for one in blocks))  # type: ignore[attr-defined]


def certified(it: Replica) -> Claim:
    step = it.receive("b", saved_by("b", BATCH), 0.0)
    (append,) = [action for action in step.actions if isinstance(action, Append)]
    claim = decode_record(append.record)
    assert isinstance(claim, Claim)
    return claim


def test_a_claim_is_sent_again_until_it_is_read() -> None:
    it = led(claim_timeout=5.0, turn_timeout=99.0, turn_timeout_most=99.0)
    it.receive("b", votes(*BLOCKS), 0.0)
    certified(it)
    assert it.tick(4.9).actions == ()
    assert it.deadline == 5.0
    assert [type(action) for action in it.tick(5.0).actions] == [Append]
    step = it.read(1, claimed(BATCH), 6.0)
    assert step.rows[:3] == (PutPosition(it.log.position), PutWinner(BATCH), DeleteCandidates(1))
    assert Agreed(BATCH) in step.actions
    assert it.tick(99.0).actions == ()
    assert it.deadline == float("inf")


def test_a_round_waits_for_the_grace_and_is_repeated_with_doubled_waits() -> None:
    it = led(gather_grace=0.1, propose_retry=1.0, propose_retry_most=3.0, turn_timeout=99.0, turn_timeout_most=99.0)
    assert it.receive("b", votes(BLOCKS[0]), 0.0).actions == ()
    assert it.deadline == 0.1
    step = it.tick(0.1)
    assert broadcast(step)[0] == Candidate(STREAM, batch(EMPTY, BLOCKS[:1]))
    now = 0.0
    for number, wait in ((2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0)):
        assert it.tick(now + wait - 0.01).actions == ()
        now += wait
        assert it.deadline == pytest.approx(now)
        assert broadcast(it.tick(now)) == [Propose(STREAM, 1, NO_HASH, number, 0)]


def test_answers_that_do_not_count() -> None:
    it = led()
    for answer in (
        Proposal(STREAM, 1, 9, Answer.VOTE, (BLOCKS[0].ref,)),
        Proposal(STREAM, 2, 1, Answer.VOTE, (BLOCKS[0].ref,)),
        Proposal(STREAM, 1, 1, Answer.BEHIND, ()),
    ):
        assert it.receive("b", answer, 0.0).actions == ()
    assert replica("b").receive("a", votes(*BLOCKS), 0.0).actions == ()


def test_a_round_without_a_result_and_the_same_result_again() -> None:
    it = led(gather_grace=0.0, propose_retry=1.0, turn_timeout=99.0, turn_timeout_most=99.0)
    assert it.receive("b", votes(), 0.0) == Step((), ())
    it.tick(1.0)
    step = it.receive("b", replace(votes(*BLOCKS), round=2), 1.0)
    assert broadcast(step)[0] == Candidate(STREAM, BATCH)
    it.tick(3.0)
    assert it.receive("b", replace(votes(*BLOCKS), round=3), 3.0) == Step((), ())


def test_a_leader_alone_with_a_block_proposes_at_the_retry() -> None:
    it = admitted("a", propose_retry=0.5)
    assert it.deadline == 0.5
    assert broadcast(it.tick(0.5)) == [Propose(STREAM, 1, NO_HASH, 1, 0)]


def test_followers_answer_any_leader() -> None:
    it = admitted("b")
    refs = tuple(one.ref for one in BLOCKS)
    assert it.receive("c", Propose(STREAM, 1, NO_HASH, 7, 2), 0.0).actions == (
        Send("c", Proposal(STREAM, 1, 7, Answer.VOTE, refs)),
    )
    assert it.leader == "c"
    assert it.receive("a", Propose(STREAM, 1, b"?" * 32, 7, 0), 0.0).actions == (StateDivergence("a", 1),)
    agree(it, BLOCKS)
    assert it.receive("a", Propose(STREAM, 1, NO_HASH, 8, 0), 0.0).actions == (
        Send("a", Proposal(STREAM, 1, 8, Answer.BEHIND, ())),
    )


def test_messages_about_later_numbers_wait_for_the_reader() -> None:
    it = replica("b")
    it.admit([*BLOCKS, block("102a", "101a")], 0.0)
    after = EMPTY.after(BATCH)
    second = batch(after, [block("102a", "101a")])
    for message in (Candidate(STREAM, second), Propose(STREAM, 2, BATCH.hash, 1, 0)):
        assert it.receive("a", message, 0.0) == Step((), ())
    it.receive("c", Propose(STREAM, 2, BATCH.hash, 5, 0), 0.0)
    it.begin("c", 0.0)
    step = agree(it, BLOCKS)
    assert PutCandidate(second, saved(second, "b")) in step.rows
    assert [action.peer for action in step.actions if isinstance(action, Send)] == ["a"]
    early = replica("b", opened=False)
    assert early.receive("a", Propose(STREAM, 1, NO_HASH, 1, 0), 0.0) == Step((), ())
    assert early.receive("a", saved_by("a", BATCH), 0.0) == Step((), ())
    assert early.receive("a", observed(*BLOCKS), 0.0) == Step((), ())
    want, answer = early.read(0, FIRST, 0.0).actions
    assert want == Want(tuple(one.ref for one in BLOCKS))
    assert isinstance(answer, Send)


def test_a_turn_is_skipped_with_doubled_waits_until_a_claim() -> None:
    it = admitted("b", turn_timeout=2.0, turn_timeout_most=5.0)
    it.receive("a", observed(*BLOCKS), 0.0)
    assert (it.leader, it.deadline) == ("a", 2.0)
    it.tick(2.0)
    assert it.leader == "b"
    it.tick(6.0)
    assert it.leader == "c"
    it.tick(11.0)
    assert it.leader == "a"
    agree(it, BLOCKS[:1])
    assert it.leader == "b"
    it.tick(1.9)
    assert it.leader == "b"


def test_the_next_leader_claims_what_the_one_before_had_certified() -> None:
    it = replica("b", turn_timeout=2.0)
    it.receive("a", Candidate(STREAM, BATCH), 0.0)
    for peer in "ac":
        assert it.receive(peer, saved_by(peer, BATCH), 0.0).actions == ()
    (append,) = it.tick(2.0).actions
    assert isinstance(append, Append)
    claim = decode_record(append.record)
    assert isinstance(claim, Claim)
    assert (claim.header, claim.claimer, claim.skips) == (BATCH, "b", 1)


def test_signatures_are_bounded_and_cleared_with_a_session() -> None:
    it = replica("b", turn_timeout=2.0, max_candidates=1)
    it.receive("a", Candidate(STREAM, BATCH), 0.0)
    for num in range(1, 9):
        it.receive("a", saved_by("a", batch(EMPTY, BLOCKS, num=num)), 0.0)
    it.receive("c", saved_by("c", BATCH), 0.0)
    assert it.tick(0.0).actions == ()
    it.receive("a", saved_by("a", BATCH), 0.0)
    it.begin("c", 0.0)
    it.receive("c", saved_by("c", BATCH), 0.0)
    assert len(it._candidates._signatures) == 5
    it.begin("a", 0.0)
    assert len(it._candidates._signatures) == 1
    agree(it, BLOCKS)
    it.receive("c", saved_by("c", BATCH), 0.0)
    assert len(it._candidates._signatures) == 0


def test_nothing_is_claimed_while_too_much_is_not_promoted() -> None:
    it = replica("a", max_unpromoted=1, batch_wait=0.0, leader_interval=1000)
    more = chain("101a", "102a", "103a", "104a")
    it.admit([*BLOCKS, *more], 0.0)
    it.receive("b", observed(*BLOCKS, *more), 0.0)
    agree(it, BLOCKS, more[:1])
    assert it.tick(99.0).actions == ()
    assert it.deadline == float("inf")
    step = it.marker(Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "b"), 99.0)
    assert isinstance(broadcast(step)[0], Propose)


# --- the log, snapshots, restarts -------------------------------------------------------------------------------------


def test_records_that_change_nothing_are_reported() -> None:
    it = replica()
    assert it.read(1, b"?", 0.0).actions == (ClaimRefused(1, Refusal.MALFORMED),)


def test_checkpoints_and_the_close() -> None:
    it = replica("b", checkpoint_every=1)
    step = agree(it, BLOCKS)
    assert step.actions[-1] == Append(state_record(MEMBERS, Checkpoint, state_of(it), "b"))
    assert it.read(2, it.record(Checkpoint), 0.0).actions == (CheckpointRead(2, 1),)
    assert it.read(3, it.record(Close), 0.0).actions == (EpochClosed(1),)
    it.admit(chain("101a", "102a"), 0.0)
    assert it.deadline == float("inf")
    with pytest.raises(LocalProtocolError):
        replica(opened=False).record(Checkpoint)


def test_the_snapshot_is_what_is_committed_and_open() -> None:
    it = led()
    third = block("102a", "101a")
    it.receive("b", votes(*BLOCKS), 0.0)
    it.receive("c", Propose(STREAM, 1, NO_HASH, 4, 0), 0.0)
    refs = tuple(one.ref for one in BLOCKS)
    common = [observed(*BLOCKS), Candidate(STREAM, BATCH), saved_by("a", BATCH), Propose(STREAM, 1, NO_HASH, 1, 0)]
    assert it.snapshot("b") == common
    assert it.snapshot("c") == [*common, Proposal(STREAM, 1, 4, Answer.VOTE, refs)]
    it.admit([third], 0.0)
    agree(it, BLOCKS)
    assert it.snapshot("c") == [observed(third), saved_by("a", BATCH)]
    agree(it, [third], offset=2)
    assert it.snapshot("c") == []
    assert replica(opened=False).snapshot("b") == []


def test_a_restart_resumes_from_the_rows() -> None:
    it = replica("c")
    rows: list[object] = []
    more = [block("102a", "101a")]
    rows += it.admit([BLOCKS[0], *more], 0.0).rows
    rows += agree(it, BLOCKS).rows
    second = batch(state_of(it), more)
    rows += it.receive("a", Candidate(STREAM, second), 0.0).rows
    third = batch(state_of(it), [block("102b", "101a", 9)])
    rows += it.receive("a", Candidate(STREAM, third), 0.0).rows
    rows.append(PutPromoted(1, 1))
    stored = [row for row in rows if not isinstance(row, DeleteCandidates)]
    again = replica("c", rows=stored, opened=False)  # type: ignore[arg-type]
    assert again.state == it.state
    assert again.promoted == (1, 1)
    assert again.wanted == [BLOCKS[1].ref]
    assert again.snapshot("a") == [observed(*more), Candidate(STREAM, second), saved_by("c", second)]
    assert acknowledged(again.receive("a", observed(*more), 0.0)) == [more[0].ref]


@pytest.mark.parametrize("name_of", ["leader_interval", "max_candidates", "max_unpromoted", "turn_timeout"])
def test_settings_with_which_nothing_would_be_agreed(name_of: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ReplicationSettings(**{name_of: 0})
    assert refused.value.setting == name_of


# --- promotion ------------------------------------------------------------------------------------------------------


FOUR = chain("99a", "100a", "101a", "102a", "103a")


def two_batches(node: str = "a", *, bodies: list[Block] | None = None, **settings: float) -> Replica:
    """A replica with two batches: 100a and 101a, 102a and 103a."""
    it = replica(node, promote_wait=1.0, promote_wait_most=10.0, **settings)
    it.admit(FOUR if bodies is None else bodies, 0.0)
    for offset, run in enumerate((FOUR[:2], FOUR[2:]), 1):
        assert it.state is not None
        it.read(offset, claimed(batch(it.state, run)), 0.0)
    return it


def marker(it: Replica, num: int, index: int, writer: str = "c", **changes: object) -> Marker:
    fields = {"cluster": MEMBERS.cluster, "stream": MEMBERS.stream, "batch": it.winners[num].hash} | changes
    return Marker(num=num, index=index, writer=writer, **fields)  # type: ignore[arg-type]


def placed(run: Run | None) -> list[tuple[int, int, int]]:
    return [] if run is None else [(one.num, one.index, one.item.number) for one in run.blocks]


def test_blocks_in_order_and_the_marker_after_them() -> None:
    it = two_batches()
    run = Promotion(it).next_run()
    assert placed(run) == [(1, 0, 100), (1, 1, 101), (2, 0, 102), (2, 1, 103)]
    assert run is not None
    assert run.marker == marker(it, 2, 2, "a")
    assert run.blocks[0] == Placed(1, 0, FOUR[0].item)


def test_a_transaction_ends_at_its_size_and_at_a_missing_body() -> None:
    assert placed(Promotion(two_batches(transaction_bytes=35)).next_run()) == [(1, 0, 100), (1, 1, 101), (2, 0, 102)]
    assert placed(Promotion(two_batches(transaction_bytes=1)).next_run()) == [(1, 0, 100)]
    assert placed(Promotion(two_batches(bodies=FOUR[:3])).next_run()) == [(1, 0, 100), (1, 1, 101), (2, 0, 102)]
    assert placed(Promotion(two_batches(bodies=FOUR[1:])).next_run()) == []


def test_blocks_resume_after_the_marker() -> None:
    it = two_batches()
    rule = Promotion(it)
    for position, left in (((1, 1), 3), ((1, 2), 2), ((2, 1), 1), ((2, 2), 0)):
        step = rule.read(marker(it, *position), 0.0)
        assert step.rows[0] == PutPromoted(*position)
        assert len(placed(rule.next_run())) == left
    assert rule.read(marker(it, 2, 1), 0.0) == Step((), ())


def test_nothing_is_written_before_the_own_reader_has_passed_the_marker() -> None:
    behind = replica("b")
    rule = Promotion(behind)
    rule.read(marker(two_batches(), 1, 1), 0.0)
    assert rule.next_run() is None
    behind.read(1, claimed(batch(behind.state, FOUR[:2])) if behind.state else b"", 0.0)
    assert rule.next_run() is None
    behind.admit(FOUR, 0.0)
    assert placed(rule.next_run()) == [(1, 1, 101)]
    assert Promotion(replica(opened=False)).next_run() is None


@pytest.mark.parametrize(("node", "wait"), [("a", 1.0), ("b", 2.0), ("c", 3.0)])
def test_ranks_begin_at_the_first_member(node: str, wait: float) -> None:
    rule = Promotion(two_batches(node))
    assert not rule.due(10.0)
    assert rule.deadline == 10.0 + wait
    assert not rule.due(9.9 + wait)
    assert rule.due(10.0 + wait)


def test_ranks_begin_at_the_writer_of_the_last_marker() -> None:
    it = two_batches("b")
    rule = Promotion(it)
    rule.read(marker(it, 1, 1, "c"), 5.0)
    assert not rule.due(7.9)
    assert rule.due(8.0)
    rule.read(marker(it, 1, 2, "b"), 9.0)
    assert rule.due(10.0)
    rule.read(marker(it, 2, 1, "stranger"), 11.0)
    assert rule.due(12.0)


def test_nobody_is_due_while_nothing_is_to_be_written() -> None:
    it = two_batches()
    rule = Promotion(it)
    rule.read(marker(it, 2, 2), 0.0)
    assert not rule.due(99.0)
    assert rule.deadline == float("inf")


def test_the_wait_doubles_until_a_commit() -> None:
    it = two_batches()
    rule, now = Promotion(it), 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert not rule.due(now)
        assert rule.deadline == now + wait
        now += wait
        assert rule.due(now)
        rule.begin()
        assert not rule.due(now + 100)
        rule.failed(now)
    rule.begin()
    rule.committed(marker(it, 1, 1, "a"), now)
    rule.failed(now)
    assert not rule.due(now)
    assert rule.deadline == now + 1.0


def test_markers_of_other_clusters() -> None:
    it = two_batches()
    rule = Promotion(it, previous=b"\x01" * 32)
    assert rule.read(marker(it, 2, 2, cluster=b"\x01" * 32), 0.0) == Step((), ())
    for changes in ({"cluster": b"\x02" * 32}, {"stream": "btc"}):
        with pytest.raises(ForeignMarkerError) as refused:
            rule.read(marker(it, 2, 2, **changes), 0.0)
        assert refused.value.cluster == changes.get("cluster", MEMBERS.cluster)
