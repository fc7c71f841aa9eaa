"""Claim log: every reason of refusal, their order, checkpoints and the close, the comparison after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import ClaimLogDivergedError, StateDivergedError
from cardinal.protocols.replication import (
    NO_HASH,
    Applied,
    Checkpoint,
    ClaimLog,
    Close,
    Head,
    Noted,
    Opened,
    Position,
    Ref,
    Refusal,
    Refused,
    Rules,
    State,
    encode,
)
from model.cluster_node import first_record, membership, state_record, verify
from replicating import EMPTY, FIRST, MEMBERS, RULES, batch, block, chain, claim_of, claimed, name, signed

FIRST_RUN = chain("99a", "100a", "101a", "102a")
FIRST_CLAIM = claim_of(batch(EMPTY, FIRST_RUN))
DOUBLED = block("101a", "100a")._replace(hash=name("100a"))


def opened() -> ClaimLog:
    log = ClaimLog(MEMBERS, verify)
    assert log.read(0, FIRST) == Opened(EMPTY)
    return log


def grown() -> ClaimLog:
    """A log with one batch: 100a to 102a."""
    log = opened()
    assert isinstance(log.read(1, claimed(batch(EMPTY, FIRST_RUN))), Applied)
    return log


def state_of(log: ClaimLog) -> State:
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
    assert opened().read(1, record) == Refused(reason)


def test_a_log_without_its_first_record_has_no_state() -> None:
    log = ClaimLog(MEMBERS, verify)
    for offset, record in enumerate((claimed(batch(EMPTY, FIRST_RUN)), state_record(MEMBERS, Checkpoint, EMPTY, "a"))):
        assert log.read(offset, record) == Refused(Refusal.BAD_NUMBER)
    assert log.state is None
    assert log.read(2, FIRST) == Opened(EMPTY)


def test_the_first_valid_claim_of_a_number_wins() -> None:
    log = opened()
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
