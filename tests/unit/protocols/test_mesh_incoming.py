"""Acceptor's side of the mesh: handshakes, refusals, numbers, inbox, acknowledgement, times, replaced sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.protocols.mesh import (
    OVERHEAD,
    Acceptor,
    Ack,
    Begin,
    Begun,
    Changed,
    Close,
    Heartbeat,
    Hello,
    IncomingLink,
    LinkState,
    Message,
    Reason,
    Received,
    Refusal,
    Refused,
    Send,
    Signed,
    Welcome,
    encode,
)
from meshing import NONCE, OTHER_NONCE, Pair, cluster, frames, identity, received, sent

DISCONNECTED, CONNECTED, SUSPECTED = LinkState.DISCONNECTED, LinkState.CONNECTED, LinkState.SUSPECTED


def connected(now: float = 0.0) -> Pair:
    pair = Pair()
    assert pair.connect(now) == [Begun("a"), Changed("a", CONNECTED)]
    return pair


def message(pair: Pair, seq: int, payload: bytes = b"", kind: int = 1) -> bytes:
    return pair.by_a(Message(seq, kind, payload))


def acks(effects: list[object]) -> list[int]:
    return [frame.received for frame in frames(effects) if isinstance(frame, Ack)]


def committed(pair: Pair, seq: int, now: float) -> list[int]:
    return acks([effect for _, effect in pair.acceptor.committed("x", seq, now)])


def ticked(pair: Pair, now: float) -> list[object]:
    return [effect for _, effect in pair.acceptor.tick(now)]


def ended(effects: list[object]) -> tuple[Reason | None, str]:
    close, changed = effects[-2:]
    assert close == Close()
    assert isinstance(changed, Changed)
    assert changed.state is DISCONNECTED
    return changed.reason, changed.detail


# --- handshake ---------------------------------------------------------------------------------------------


GOOD = Hello(cluster().digest, "a", "b", (1, 7), NONCE)


@pytest.mark.parametrize(
    ("hello", "refusal", "detail"),
    [
        # the first reason counts: each has as many of the later ones as it can
        (replace(GOOD, versions=(), cluster=bytes(32), sender="z", recipient="c"), Refusal.VERSION, "versions here"),
        (replace(GOOD, versions=(2, 3)), Refusal.VERSION, "[1]"),
        (replace(GOOD, cluster=bytes(32), sender="z", recipient="c"), Refusal.CLUSTER, cluster().digest.hex()),
        (replace(GOOD, sender="z", recipient="c"), Refusal.UNKNOWN_NODE, "z is no member"),
        (replace(GOOD, sender="b", recipient="c"), Refusal.SELF, "b is this node"),
        (replace(GOOD, recipient="c"), Refusal.WRONG_RECIPIENT, "this node is b"),
    ],
)
def test_a_refused_hello_names_its_reason_on_both_sides(hello: Hello, refusal: Refusal, detail: str) -> None:
    pair = Pair()
    pair.hello()
    pair.accept()
    effects = pair.to_b(encode(replace(hello, signature=bytes(64))))
    assert frames(effects)[0].reason is refusal
    reason, text = ended(effects)
    assert reason is Reason.REFUSED
    assert text.startswith(f"{refusal.name}: ")
    assert detail in text
    assert pair.acceptor.links == {}
    assert pair.to_a(sent(effects))[-1].detail == text, "the dialer has the same"


def test_a_hello_that_its_sender_did_not_sign_is_refused() -> None:
    for signer, context in (("c", cluster().digest), ("a", bytes(32))):
        pair = Pair()
        pair.accept()
        effects = pair.to_b(identity(signer).signed(GOOD, context))
        assert [frame.reason for frame in frames(effects)] == [Refusal.SIGNATURE]
        assert ended(effects)[0] is Reason.BAD_SIGNATURE


def test_a_begin_proves_the_key_on_this_connection() -> None:
    for begin in (identity("c").signed(Begin(), Pair().session), Pair().a.signed(Begin(), bytes(32))):
        pair = Pair()
        hello = pair.hello()
        pair.accept()
        pair.to_b(hello)
        effects = pair.to_b(begin + message(pair, 1))
        assert [frame.reason for frame in frames(effects)] == [Refusal.SIGNATURE]
        assert ended(effects)[0] is Reason.BAD_SIGNATURE
        assert received(effects) == []
        assert pair.acceptor.session("a") is None


NUMBERED = [Message(1, 1, b""), Heartbeat(1)]
ACCEPTORS = [Ack(1), Welcome("a", "b", 1, NONCE)]


@pytest.mark.parametrize(
    ("before", "frame"),
    [("nothing", frame) for frame in (Begin(), *NUMBERED, *ACCEPTORS)]
    + [("Hello", frame) for frame in (GOOD, *NUMBERED, *ACCEPTORS)],
)
def test_frames_before_their_turn_are_refused_as_malformed(before: str, frame: Signed) -> None:
    pair = Pair()
    hello = pair.hello()
    pair.accept()
    if before == "Hello":
        pair.to_b(hello)
    effects = pair.to_b(pair.by_a(frame))
    assert [answer.reason for answer in frames(effects)] == [Refusal.MALFORMED]
    assert ended(effects)[0] is Reason.UNEXPECTED_FRAME


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01\x02\x00", Reason.EXCEEDED_SIZE_LIMIT),
        ((1_025).to_bytes(4, "big"), Reason.EXCEEDED_SIZE_LIMIT),
        (b"\0\0\0\1\xff", Reason.DECODER_FAILURE),
        (b"\0\0\0\2\x81\x09", Reason.DECODER_FAILURE),
        (encode(Refused(Refusal.BUSY, "")), Reason.UNEXPECTED_FRAME),
    ],
)
def test_bytes_of_something_else_are_refused_as_malformed(data: bytes, reason: Reason) -> None:
    pair = Pair()
    pair.accept()
    effects = pair.to_b(data)
    assert [answer.reason for answer in frames(effects)] == [Refusal.MALFORMED]
    assert ended(effects)[0] is reason
    assert pair.to_b(data) == [], "the connection is over"


def test_a_handshake_has_its_time() -> None:
    pair = Pair()
    pair.accept(now=1.0)
    pair.to_b(pair.hello(), 3.0)
    assert ticked(pair, 5.9) == []
    assert ended(ticked(pair, 6.0)) == (Reason.HANDSHAKE_TIMEOUT, "")


def test_handshakes_in_flight_are_bounded_and_sessions_do_not_count() -> None:
    pair = connected()
    most = 2 * 3 + 4
    for number in range(most):
        assert pair.accept(f"pending {number}") == []
    effects = pair.accept("one more")
    assert frames(effects) == [Refused(Refusal.BUSY, f"{most} handshakes")]
    assert ended(effects) == (Reason.REFUSED, f"BUSY: {most} handshakes")
    pair.acceptor.lost("pending 3", "reset", 0.0)
    assert pair.accept("in time") == []
    assert len(pair.acceptor.links) == most + 1


# --- messages ----------------------------------------------------------------------------------------------


def test_every_bad_frame_after_begin_ends_the_link_without_a_word_and_changes_nothing() -> None:
    pair = connected()
    good = message(pair, 1, b"payload", 5)
    other_session = pair.a.cluster.session("a", "b", OTHER_NONCE, NONCE)
    cases = {
        identity("c").signed(Message(1, 5, b"payload"), pair.session): Reason.BAD_SIGNATURE,
        pair.a.signed(Message(1, 5, b"payload"), other_session): Reason.BAD_SIGNATURE,
        pair.a.signed(Message(1, 5, b"payload"), pair.a.cluster.digest): Reason.BAD_SIGNATURE,
        good.replace(b"payload", b"Payload"): Reason.BAD_SIGNATURE,
        good[:6] + b"\x06" + good[7:]: Reason.BAD_SEQUENCE,
        good[:7] + b"\x06" + good[8:]: Reason.BAD_SIGNATURE,
        good[:-1] + bytes((good[-1] ^ 1,)): Reason.BAD_SIGNATURE,
        pair.by_a(Ack(1)): Reason.UNEXPECTED_FRAME,
        pair.by_a(Begin()): Reason.UNEXPECTED_FRAME,
        pair.by_a(Welcome("a", "b", 1, NONCE)): Reason.UNEXPECTED_FRAME,
        pair.a.signed(GOOD, pair.a.cluster.digest): Reason.UNEXPECTED_FRAME,
        encode(Refused(Refusal.BUSY, "")): Reason.UNEXPECTED_FRAME,
        (1_025).to_bytes(4, "big"): Reason.EXCEEDED_SIZE_LIMIT,
        bytes(4): Reason.DECODER_FAILURE,
        good[:4] + b"\x86" + good[5:]: Reason.DECODER_FAILURE,
    }
    for data, reason in cases.items():
        pair = connected()
        effects = pair.to_b(data + good)
        assert ended(effects)[0] is reason, data.hex()
        assert len(effects) == 2, "no message, no answer"
        assert pair.acceptor.links == {}


def test_a_recorded_dialog_means_nothing_on_another_connection() -> None:
    pair = Pair()
    hello = pair.hello()
    dialog = hello + pair.by_a(Begin()) + message(pair, 1, b"once")
    pair.accept("x")
    assert received(pair.to_b(dialog, name="x")) == [(1, 1, b"once")]
    for nonce in (NONCE, bytes(16)):
        pair.acceptor.accept(nonce, nonce, 0.0)
        effects = pair.to_b(dialog, name=nonce)
        assert [type(effect) for effect in effects] == [Send, Send, Close, Changed]
        assert ended(effects)[0] is Reason.BAD_SIGNATURE
    assert pair.acceptor.session("a") == "x"
    assert list(pair.acceptor.links) == ["x"]


@pytest.mark.parametrize("end", range(0, 200, 7))
def test_a_truncated_frame_changes_nothing(end: int) -> None:
    pair = connected()
    data = message(pair, 1, b"x" * 200)
    assert pair.to_b(data[:end]) == []
    assert [effect for _, effect in pair.acceptor.lost("x", "reset", 0.0)] == [
        Changed("a", DISCONNECTED, Reason.CONNECTION_LOST, "reset")
    ]


# --- inbox and acknowledgement -----------------------------------------------------------------------------


def test_many_commits_are_acknowledged_at_once() -> None:
    pair = connected()
    for seq in range(1, 70):
        pair.to_b(message(pair, seq))
    assert committed(pair, 63, 0.0) == []
    assert committed(pair, 64, 0.0) == [64]
    assert committed(pair, 64, 0.1) == []
    assert committed(pair, 1_000, 0.1) == [], "no more than was received"
    assert acks(ticked(pair, 0.5)) == [69]


def test_a_heartbeat_is_committed_with_what_came_before_it() -> None:
    pair = connected()
    pair.to_b(pair.by_a(Heartbeat(1)), 0.0)
    pair.to_b(message(pair, 2) + pair.by_a(Heartbeat(3)), 0.1)
    assert acks(ticked(pair, 0.2)) == [1]
    assert acks(ticked(pair, 2.0)) == []
    assert committed(pair, 2, 2.0) == []
    assert acks(ticked(pair, 2.2)) == [3]


def test_a_full_inbox_pauses_the_connection_and_its_silence() -> None:
    pair = connected()
    link = pair.acceptor.links["x"]
    for seq in range(1, 5):
        assert not link.is_paused
        pair.to_b(message(pair, seq, b"x" * 925))
    assert link.held == 4 * (925 + OVERHEAD)
    assert link.is_paused
    assert ticked(pair, 20.0) == [], "the peer was not heard because nobody listened"
    committed(pair, 1, 20.0)
    assert not link.is_paused
    assert Changed("a", SUSPECTED) not in ticked(pair, 22.9)
    assert Changed("a", SUSPECTED) in ticked(pair, 23.0)


def test_bytes_of_a_frame_that_is_not_complete_are_held_too() -> None:
    pair = connected()
    pair.to_b(message(pair, 1, b"x" * 500)[:300])
    assert pair.acceptor.links["x"].held == 300


# --- times and ends ----------------------------------------------------------------------------------------


def test_silence_suspects_the_link_then_ends_it_and_any_verified_frame_counts() -> None:
    pair = connected(now=1.0)
    assert ticked(pair, 3.9) == []
    assert ticked(pair, 4.0) == [Changed("a", SUSPECTED)]
    assert ticked(pair, 4.5) == []
    data = message(pair, 2, b"x" * 100)
    assert pair.to_b(pair.by_a(Heartbeat(1)), 6.0) == [Changed("a", CONNECTED)]
    pair.to_b(data[:90], 8.0)
    assert Changed("a", SUSPECTED) in ticked(pair, 9.0), "a part of a frame is no sign of life"
    assert pair.to_b(data[90:], 9.5) == [Changed("a", CONNECTED), Received("a", 2, 1, b"x" * 100)]
    assert Changed("a", SUSPECTED) in ticked(pair, 18.4)
    assert ended(ticked(pair, 18.5)) == (Reason.SILENT, "nothing verified for 9 seconds")


def test_a_newer_session_replaces_the_older_one() -> None:
    pair = connected()
    pair.to_b(message(pair, 1))
    pair.out.lost(pair.connection, "", 1.0)
    hello = pair.hello(2.0)
    pair.accept("y", 2.0)
    pair.to_b(hello, 2.0, "y")
    assert list(pair.acceptor.links) == ["x", "y"], "a Hello replaces nothing"
    assert pair.acceptor.receive("y", pair.by_a(Begin()), 2.0) == [
        ("x", Close()),
        ("x", Changed("a", DISCONNECTED, Reason.REPLACED)),
        ("y", Begun("a")),
        ("y", Changed("a", CONNECTED)),
    ]
    assert pair.acceptor.session("a") == "y"
    assert list(pair.acceptor.links) == ["y"]
    assert pair.acceptor.committed("x", 1, 2.0) == []
    assert pair.acceptor.lost("x", "", 2.0) == []


def test_a_node_that_cannot_commit_closes_all_its_incoming_links() -> None:
    pair = connected()
    pair.accept("y")
    effects = pair.acceptor.close(1.0)
    assert [(name, each.reason) for name, each in effects if isinstance(each, Changed)] == [
        ("x", Reason.CLOSED),
        ("y", Reason.CLOSED),
    ]
    assert [name for name, each in effects if each == Close()] == ["x", "y"]
    assert pair.acceptor.links == {}
    assert pair.acceptor.tick(9.0) == []


def test_a_link_that_is_over_does_nothing() -> None:
    link = IncomingLink(identity("b"), NONCE, 0.0)
    assert link.lost("reset", 0.0) == [Changed("", DISCONNECTED, Reason.CONNECTION_LOST, "reset")]
    assert link.lost("reset", 0.0) == []
    assert link.close(Reason.CLOSED, 0.0) == []
    assert link.receive(b"\xff" * 9, 0.0) == []
    assert link.committed(1, 0.0) == []
    assert link.tick(99.0) == []


def test_defaults_are_those_of_the_protocol() -> None:
    acceptor = Acceptor(identity("b"))
    acceptor.accept("x", NONCE, 0.0)
    assert acceptor.tick(4.9) == []
    assert len(acceptor.tick(5.0)) == 2
