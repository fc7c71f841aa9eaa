"""Replica: rows and actions of each input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError, LocalProtocolError, ViolationError
from cardinal.protocols.replication import (
    NO_HASH,
    Acknowledged,
    Agreed,
    Answer,
    Append,
    Broadcast,
    Candidate,
    Checkpoint,
    CheckpointRead,
    Claim,
    ClaimRefused,
    Close,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Denial,
    Denied,
    Divergence,
    EpochClosed,
    Marker,
    Observed,
    Proposal,
    Propose,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Ref,
    Refusal,
    Replica,
    ReplicationSettings,
    Saved,
    Send,
    State,
    StateDivergence,
    Step,
    Want,
    decode_record,
)
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
    claimed,
    name,
    replica,
    saved,
    saved_by,
)

STREAM = MEMBERS.stream
BLOCKS = chain("99a", "100a", "101a")
BATCH = batch(EMPTY, BLOCKS)


def observed(*blocks: object) -> Observed:
    return Observed(STREAM, tuple(blocks))  # type: ignore[arg-type]


def state_of(it: Replica) -> State:
    assert it.state is not None
    return it.state


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
    it = replica("c")
    it.admit(BLOCKS, 0.0)
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
    it = replica("c")
    it.admit(BLOCKS, 0.0)
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
    it = replica("c", pool_bytes=40)
    it.admit(BLOCKS, 0.0)
    agree(it, BLOCKS)
    assert DeleteWinner(1) not in it.marker(Marker(MEMBERS.cluster, STREAM, 1, 2, BATCH.hash, "a"), 0.0).rows
    it.admit([block("101b", "100a"), block("102b", "101b")], 0.0)
    following = block("102a", "101a")
    rows = it.admit([following], 0.0).rows
    assert rows == (DeleteWinner(1), *(DeleteBlock(one.ref) for one in BLOCKS), PutBlock(following))


def test_a_full_pool_requests_what_it_refused_when_it_has_capacity() -> None:
    it = replica("c", pool_bytes=20)
    it.admit(BLOCKS, 0.0)
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


def test_observed_blocks_that_are_decided_are_not_remembered() -> None:
    it = replica("c")
    it.receive("a", observed(block("99b", "98a")), 0.0)
    it.receive("a", observed(*BLOCKS), 0.0)
    agree(it, BLOCKS)
    it.receive("a", observed(*BLOCKS), 0.0)
    assert it._observers._of_block == {}


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
    it = replica("a", batch_wait=0.0, **settings)
    it.admit(BLOCKS, 0.0)
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
    it = replica("a", propose_retry=0.5)
    it.admit(BLOCKS, 0.0)
    assert it.deadline == 0.5
    assert broadcast(it.tick(0.5)) == [Propose(STREAM, 1, NO_HASH, 1, 0)]


def test_followers_answer_any_leader() -> None:
    it = replica("b")
    it.admit(BLOCKS, 0.0)
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
    it = replica("b", turn_timeout=2.0, turn_timeout_most=5.0)
    it.admit(BLOCKS, 0.0)
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
