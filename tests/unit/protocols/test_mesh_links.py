"""Mesh: frames that are refused, the acceptor's side, the dialer's side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError, EncodeError
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.mesh import (
    OVERHEAD,
    Ack,
    Begin,
    Begun,
    Changed,
    Close,
    Cluster,
    Decoder,
    Dial,
    Frame,
    Heartbeat,
    Hello,
    Identity,
    IncomingLink,
    LinkState,
    Member,
    MeshSettings,
    Message,
    OutgoingLink,
    Reason,
    Received,
    Refusal,
    Refused,
    Signed,
    Welcome,
    decode,
    encode,
    retry_delay,
)
from meshing import NONCE, OTHER_NONCE, SETTINGS, Pair, cluster, frames, identity, received, sent

# --- frames ---------------------------------------------------------------------------------------------------------


SIG = b"s" * 64
HELLO = Hello(b"h" * 32, "a", "b", (1,), b"n" * 16, SIG)
WELCOME = Welcome("b", "a", 1, b"n" * 16, SIG)
MESSAGE = Message(1, 5, b"xyz", SIG)


def framed(value: object) -> bytes:
    body = cbor.dump(value)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "value",
    [
        7,
        b"",
        "text",
        [],
        [b"\x04"],
        ["4"],
        [[4]],
        [7, SIG],
        [2**64 - 1],
        [2],
        [2, SIG, SIG],
        [2, SIG[1:]],
        [2, "s" * 64],
        [3, 0, ""],
        [3, 9, ""],
        [3, b"1", ""],
        [3, 1, b""],
        [3, 1, "a second\nline"],
        [4, 0, 5, b"", SIG],
        [4, b"1", 5, b"", SIG],
        [4, 1, "5", b"", SIG],
        [4, 1, 5, "", SIG],
        [4, 1, 5, [], SIG],
        [5, 0, SIG],
        [6, 0, SIG],
        [6, [1], SIG],
        [0, b"h" * 31, "a", "b", [1], b"n" * 16, SIG],
        [0, b"h" * 32, "A", "b", [1], b"n" * 16, SIG],
        [0, b"h" * 32, "a", "", [1], b"n" * 16, SIG],
        [0, b"h" * 32, "a" * 33, "b", [1], b"n" * 16, SIG],
        [0, b"h" * 32, b"a", "b", [1], b"n" * 16, SIG],
        [0, b"h" * 32, "a", "b\n", [1], b"n" * 16, SIG],
        [0, b"h" * 32, "a", "b", 1, b"n" * 16, SIG],
        [0, b"h" * 32, "a", "b", [b"1"], b"n" * 16, SIG],
        [0, b"h" * 32, "a", "b", [1], b"n" * 15, SIG],
        [1, "b", "a", b"1", b"n" * 16, SIG],
    ],
    ids=repr,
)
def test_a_value_of_another_shape_is_no_frame(value: object) -> None:
    with pytest.raises(ViolationError, match="DecoderFailure"):
        decode(framed(value))


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (replace(HELLO, cluster=b"h"), "cluster"),
        (replace(HELLO, sender="no_name"), "sender"),
        (replace(HELLO, recipient="é"), "recipient"),
        (replace(HELLO, versions=(-1,)), "versions"),
        (replace(HELLO, nonce=b""), "nonce"),
        (replace(HELLO, signature=b""), "signature"),
        (replace(WELCOME, version=2**64), "version"),
        (replace(MESSAGE, seq=0), "seq"),
        (replace(MESSAGE, seq=True), "seq"),
        (replace(MESSAGE, kind=2**64), "kind"),
        (replace(MESSAGE, kind=-1), "kind"),
        (Begin(), "signature"),
        (Heartbeat(0, SIG), "seq"),
        (Ack(2**64, SIG), "received"),
        (Refused(Refusal.BUSY, "\ud800"), "text"),
        (Refused(Refusal.BUSY, "\x1b[2J"), "text"),
    ],
)
def test_a_field_that_has_no_place_is_refused(frame: Frame, field: str) -> None:
    with pytest.raises(EncodeError, match=f"{field} of {type(frame).__name__}") as refused:
        encode(frame)
    assert refused.value.field == field


def test_bytes_after_a_closed_frame_are_refused() -> None:
    with pytest.raises(ViolationError, match=r"DecoderFailure.*1 byte after the frame"):
        decode(encode(MESSAGE) + b"\x00")


def test_a_length_above_the_limit_is_refused_before_its_bytes_arrive() -> None:
    data = encode(MESSAGE)
    assert decode(data, limit=len(data) - 4) == MESSAGE
    with pytest.raises(ViolationError, match="ExceededSizeLimit"):
        decode(data[:4], limit=len(data) - 5)
    with pytest.raises(ViolationError, match="ExceededSizeLimit"):
        list(Decoder().feed((1_025).to_bytes(4, "big")))
    with pytest.raises(ViolationError, match="DecoderFailure"):
        decode(bytes(4))


def test_the_limit_of_a_frame_is_the_one_at_its_turn() -> None:
    decoder = Decoder(200)
    large = Message(1, 5, b"x" * 200, SIG)
    read = decoder.feed(encode(MESSAGE) + encode(large))
    assert next(read) == MESSAGE
    decoder.limit = 300
    assert list(read) == [large]


def test_signatures_and_payloads_stay_out_of_the_repr() -> None:
    assert repr(MESSAGE) == "Message(seq=1, kind=5)"
    assert "signature" not in repr(HELLO)


# --- acceptor -------------------------------------------------------------------------------------------------------


DISCONNECTED, CONNECTING = LinkState.DISCONNECTED, LinkState.CONNECTING
CONNECTED, SUSPECTED = LinkState.CONNECTED, LinkState.SUSPECTED


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


def test_a_handshake_beyond_the_bound_ends_the_oldest_one_and_no_session() -> None:
    pair = connected()
    most = 2 * 3 + 64
    for number in range(most):
        assert pair.accept(f"pending {number}") == []
    effects = pair.accept("one more")
    assert frames(effects) == [Refused(Refusal.BUSY, f"{most} handshakes")]
    assert ended(effects) == (Reason.REFUSED, f"BUSY: {most} handshakes")
    assert "pending 0" not in pair.acceptor.links
    assert {"one more", "x"} < pair.acceptor.links.keys()
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


# --- dialer ---------------------------------------------------------------------------------------------------------


def dialed(*, snapshot: bool = True, now: float = 0.0, settings: MeshSettings = SETTINGS) -> Pair:
    pair = Pair(settings)
    pair.connect(now)
    assert pair.out.state is CONNECTED
    if snapshot:
        assert pair.out.snapshot([], now) == []
    return pair


def bodies(effects: list[object]) -> list[object]:
    return [replace(frame, signature=b"") for frame in frames(effects)]


# --- dials and handshake -----------------------------------------------------------------------------------


def test_the_first_dial_is_due_at_once_and_there_is_one_at_a_time() -> None:
    link = OutgoingLink(identity("a"), "b", lambda: 0.0, 5.0, SETTINGS)
    assert link.tick(4.9) == []
    assert link.tick(5.0) == [Changed("b", CONNECTING), Dial(1)]
    assert link.tick(7.9) == []
    assert link.tick(8.0) == [Close(), Changed("b", DISCONNECTED, Reason.DIAL_TIMEOUT)]
    assert (link.reason, link.retry_at) == (Reason.DIAL_TIMEOUT, 8.125)


def test_a_handshake_has_its_time_from_the_open_connection() -> None:
    pair = Pair()
    connection = pair.dial()
    assert sent(pair.out.opened(connection, NONCE, 2.0))
    assert pair.out.tick(6.9) == []
    assert ended(pair.out.tick(7.0)) == (Reason.HANDSHAKE_TIMEOUT, "")


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (Welcome("c", "a", 1, OTHER_NONCE), Reason.WRONG_NODE),
        (Welcome("b", "c", 1, OTHER_NONCE), Reason.WRONG_NODE),
        (Welcome("b", "a", 2, OTHER_NONCE), Reason.WRONG_VERSION),
        (Welcome("b", "a", 1, NONCE), Reason.BAD_SIGNATURE),
        (Begin(), Reason.UNEXPECTED_FRAME),
        (Ack(1), Reason.UNEXPECTED_FRAME),
        (Hello(bytes(32), "b", "a", (1,), NONCE), Reason.UNEXPECTED_FRAME),
    ],
)
def test_a_wrong_welcome_ends_the_link(welcome: Signed, reason: Reason) -> None:
    pair = Pair()
    pair.hello()
    effects = pair.to_a(pair.by_b(welcome))
    assert sent(effects) == b""
    assert ended(effects)[0] is reason


def test_a_welcome_of_another_member_that_signs_as_the_dialed_node_is_refused() -> None:
    pair = Pair()
    pair.hello()
    assert ended(pair.to_a(identity("c").signed(Welcome("b", "a", 1, OTHER_NONCE), pair.session)))[0] is (
        Reason.BAD_SIGNATURE
    )


def test_reports_of_another_connection_are_ignored() -> None:
    pair = Pair()
    pair.hello()
    assert pair.out.lost(1, "reset", 0.0) == [Changed("b", DISCONNECTED, Reason.CONNECTION_LOST, "reset")]
    assert pair.out.lost(1, "reset", 0.0) == []
    assert pair.out.opened(1, NONCE, 0.0) == []
    assert pair.dial(1.0) == 2
    assert pair.out.opened(1, NONCE, 1.0) == []
    assert pair.out.receive(1, b"\xff" * 9, 1.0) == []
    assert pair.out.receive(2, b"\xff" * 9, 1.0) == [], "it is not open"
    assert pair.out.lost(1, "", 1.0) == []
    assert len(frames(pair.out.opened(2, NONCE, 1.0))) == 1
    assert pair.out.opened(2, NONCE, 1.0) == []
    assert pair.out.state is CONNECTING


# --- retries -----------------------------------------------------------------------------------------------


def test_the_delay_doubles_up_to_its_bound_around_which_it_is_random() -> None:
    settings = MeshSettings()
    assert [retry_delay(k, 0.5, settings) for k in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert [retry_delay(1_000, u, settings) for u in (0.0, 0.5, 0.75)] == [5.0, 10.0, 12.5]


def test_failed_dials_are_retried_forever_with_growing_delays() -> None:
    link = OutgoingLink(identity("a"), "b", lambda: 0.5, 0.0, SETTINGS)
    now, delays = 0.0, []
    for number in range(1, 100):
        assert link.tick(now)[-1] == Dial(number)
        link.lost(number, "refused", now)
        assert link.tick(link.retry_at - 0.01) == []
        delays.append(link.retry_at - now)
        now = link.retry_at
    assert delays[:6] == pytest.approx([0.25, 0.5, 1, 2, 4, 8])
    assert set(map(round, delays[6:])) == {10}


@pytest.mark.parametrize(("seconds", "delay"), [(4.99, 0.5), (5.0, 0.25)])
def test_time_connected_makes_the_next_delay_short_again(seconds: float, delay: float) -> None:
    pair = Pair()
    pair.dial()
    pair.out.lost(1, "", 0.0)
    pair.connect(1.0)
    pair.out.lost(2, "", 1.0 + seconds)
    assert pair.out.retry_at - 1.0 - seconds == pytest.approx(delay)


@pytest.mark.parametrize("refusal", Refusal)
def test_a_refusal_is_named_and_the_lasting_ones_take_the_longest_delay(refusal: Refusal) -> None:
    pair = Pair()
    pair.hello()
    assert ended(pair.to_a(encode(Refused(refusal, "no")))) == (Reason.REFUSED, f"{refusal.name}: no")
    assert pair.out.detail == f"{refusal.name}: no"
    assert pair.out.retry_at == (10.0 if refusal <= 5 else 0.25)
    pair.connect(20.0, "y")
    assert (pair.out.reason, pair.out.detail) == (None, "")


def test_a_refusal_after_begin_ends_the_link_too() -> None:
    pair = dialed()
    assert ended(pair.to_a(encode(Refused(Refusal.SIGNATURE, "Begin")))) == (Reason.REFUSED, "SIGNATURE: Begin")


# --- snapshot and live messages ----------------------------------------------------------------------------


def test_the_snapshot_comes_first_and_live_messages_follow_it() -> None:
    pair = dialed(snapshot=False)
    assert pair.out.send(1, b"in the snapshot", 0.0) == []
    effects = pair.out.snapshot([(1, b"in the snapshot"), (2, b"")], 0.0)
    assert bodies(effects) == [Message(1, 1, b"in the snapshot"), Message(2, 2, b"")]
    assert bodies(pair.out.send(3, b"live", 0.0)) == [Message(3, 3, b"live")]
    assert pair.out.snapshot([(9, b"again")], 0.0) == []
    assert pair.out.in_flight == 3 * OVERHEAD + 19


def test_messages_and_snapshots_without_a_session_are_not_retained() -> None:
    pair = Pair()
    for _ in range(3):
        assert pair.out.send(1, b"x" * 900, 0.0) == []
        assert pair.out.snapshot([(1, b"")], 0.0) == []
    pair.connect()
    assert bodies(pair.out.snapshot([], 0.0)) == []
    assert (pair.out.in_flight, pair.out.queued) == (0, 0)


def test_the_window_streams_the_snapshot_and_acknowledgements_move_it() -> None:
    pair = dialed(snapshot=False)
    drawn: list[int] = []

    def snapshot() -> Iterator[tuple[int, bytes]]:
        for kind in range(10):
            drawn.append(kind)
            yield kind, b"x" * (1_000 - OVERHEAD)

    assert len(frames(pair.out.snapshot(snapshot(), 0.0))) == 4
    assert pair.out.in_flight == 4_000
    assert drawn == [0, 1, 2, 3, 4], "one message is drawn ahead"
    assert pair.out.send(77, b"live", 0.0) == []
    assert [frame.kind for frame in frames(pair.to_a(pair.by_b(Ack(2))))] == [4, 5]
    assert pair.out.queued == OVERHEAD + 4
    assert [frame.kind for frame in frames(pair.to_a(pair.by_b(Ack(6))))] == [6, 7, 8, 9]
    assert [frame.kind for frame in frames(pair.to_a(pair.by_b(Ack(7))))] == [77]
    assert (pair.out.queued, pair.out.in_flight) == (0, 3_000 + OVERHEAD + 4)


def test_a_full_queue_ends_the_link_and_the_next_snapshot_replaces_it() -> None:
    pair = dialed()
    for _ in range(12 + 1):  # 4 in the window, one drawn ahead
        assert pair.out.send(1, b"x" * (1_000 - OVERHEAD), 0.0) != [Close()]
    assert pair.out.queued == 8_000
    assert ended(pair.out.send(1, b"x" * 200, 0.0)) == (Reason.QUEUE_FULL, f"{8_200 + OVERHEAD} bytes wait")
    assert (pair.out.queued, pair.out.in_flight) == (0, 0)
    pair.connect(1.0, "y")
    assert bodies(pair.out.snapshot([(5, b"all")], 1.0)) == [Message(1, 5, b"all")]


def test_a_message_that_no_frame_can_carry_is_refused_in_any_state() -> None:
    pair = Pair()
    most = SETTINGS.max_frame - OVERHEAD
    with pytest.raises(EncodeError, match=f"{most + 1} bytes"):
        pair.out.send(1, b"x" * (most + 1), 0.0)
    pair.connect()
    with pytest.raises(EncodeError):
        pair.out.snapshot([(1, b"x" * (most + 1))], 0.0)
    pair = dialed()
    effects = pair.out.send(1, b"x" * most, 0.0)
    assert len(pair.to_b(sent(effects))) == 1, "the peer takes the largest"


# --- acknowledgement and times -----------------------------------------------------------------------------


@pytest.mark.parametrize("received", [2, 3, 7, 2**64 - 1])
def test_an_acknowledgement_out_of_range_ends_the_link(received: int) -> None:
    pair = dialed()
    for _ in range(6):
        pair.out.send(1, b"", 0.0)
    assert pair.to_a(pair.by_b(Ack(3))) == []
    assert ended(pair.to_a(pair.by_b(Ack(received))))[0] is Reason.BAD_ACKNOWLEDGEMENT


def test_a_forged_acknowledgement_frees_nothing() -> None:
    pair = dialed()
    pair.out.send(1, b"", 0.0)
    assert ended(pair.to_a(pair.by_a(Ack(1))))[0] is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("frame", [Welcome("b", "a", 1, OTHER_NONCE), Begin(), Message(1, 1, b""), Heartbeat(1)])
def test_an_acceptor_that_speaks_out_of_turn_ends_the_link(frame: Signed) -> None:
    pair = dialed()
    assert ended(pair.to_a(pair.by_b(frame)))[0] is Reason.UNEXPECTED_FRAME


def test_a_heartbeat_is_sent_when_nothing_else_was() -> None:
    pair = dialed()
    assert pair.out.tick(0.99) == []
    assert bodies(pair.out.tick(1.0)) == [Heartbeat(1)]
    assert bodies(pair.out.send(1, b"", 1.5)) == [Message(2, 1, b"")]
    assert pair.out.tick(2.0) == []
    assert bodies(pair.out.tick(2.5)) == [Heartbeat(3)]


def test_heartbeats_pass_a_full_window_and_stay_bounded() -> None:
    settings = replace(SETTINGS, ack_timeout=1e9, drop_after=1e9)
    pair = dialed(settings=settings)
    for _ in range(12):
        pair.out.send(1, b"x" * (1_000 - OVERHEAD), 0.0)
    beats = [len(frames(pair.out.tick(now))) for now in range(1, 50)]
    assert beats[0] == 1
    assert sum(beats) == (SETTINGS.window + SETTINGS.max_frame - 4_000) // OVERHEAD
    assert pair.out.in_flight <= SETTINGS.window + SETTINGS.max_frame


def test_what_is_not_acknowledged_suspects_the_link_then_ends_it() -> None:
    pair = dialed()
    pair.out.send(1, b"", 0.5)
    assert Changed("b", SUSPECTED) not in pair.out.tick(3.4)
    assert Changed("b", SUSPECTED) in pair.out.tick(3.5)
    assert pair.out.is_connected
    assert bodies(pair.out.send(1, b"", 4.0)) == [Message(3, 1, b"")], "a suspected link is used"
    assert pair.to_a(pair.by_b(Ack(1)), 6.0) == [Changed("b", CONNECTED)]
    assert Changed("b", SUSPECTED) in pair.out.tick(9.0)
    assert all(frame == Heartbeat(frame.seq) for frame in bodies(pair.out.tick(14.9)))
    assert ended(pair.out.tick(15.0))[0] is Reason.ACK_TIMEOUT


def test_acknowledgement_runs_from_the_first_frame_that_waits() -> None:
    pair = dialed()
    pair.out.send(1, b"", 0.5)
    pair.to_a(pair.by_b(Ack(1)), 0.6)
    pair.out.send(1, b"", 100.0)
    assert pair.out.tick(102.9)[-1:] != [Changed("b", SUSPECTED)]
    assert pair.out.state is CONNECTED
    assert pair.out.tick(103.0)[0] == Changed("b", SUSPECTED)


def test_a_late_tick_ends_the_link_at_once() -> None:
    pair = dialed()
    pair.out.send(1, b"", 0.0)
    assert ended(pair.out.tick(9.0))[0] is Reason.ACK_TIMEOUT


def test_the_host_may_end_the_session() -> None:
    pair = dialed()
    assert ended(pair.out.close(1.0)) == (Reason.CLOSED, "")
    assert pair.out.close(1.0) == []
    assert pair.dial(2.0) == 2


# --- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", ["a", "z"])
def test_a_link_leads_to_another_member(peer: str) -> None:
    with pytest.raises(ConfigurationError, match="no other member of demo"):
        OutgoingLink(identity("a"), peer, lambda: 0.0, 0.0)


def test_an_identity_is_a_member_and_shows_no_key() -> None:
    with pytest.raises(ConfigurationError, match="add 'z'"):
        Identity(cluster(), "z", bytes, lambda *_: True)
    assert "sign" not in repr(identity("a"))


KEY = bytes(32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "\ud800"}, "name"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**64}, "epoch"),
        ({"app": b""}, "32 bytes"),
        ({"members": (Member("A", KEY),)}, "name node 'A'"),
        ({"members": (Member("a", b""),)}, "key of a"),
        ({"members": (Member("a", KEY), Member("a", b"1" * 32))}, "an id and a key of its own"),
        ({"members": (Member("a", KEY), Member("b", KEY))}, "an id and a key of its own"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(change: dict[str, object], text: str) -> None:
    values = {"name": "demo", "epoch": 0, "app": bytes(32), "members": (Member("a", KEY),)} | change
    with pytest.raises(ConfigurationError, match=text) as refusal:
        Cluster(**values)
    assert refusal.value.setting == next(iter(change))


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"max_frame": 1_023}, "max_frame"),
        ({"window": 2**20 - 1}, "window"),
        ({"queue_bytes": 2**20 - 1}, "queue_bytes"),
        ({"inbox": 2**21 - 1}, "inbox"),
        ({"heartbeat_idle": 3.0}, "heartbeat_idle"),
        ({"ack_delay": 3.0}, "ack_delay"),
        ({"suspect_after": 9.0}, "suspect_after"),
        ({"ack_timeout": 3.0}, "suspect_after"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float], setting: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        MeshSettings(**options)
    assert refusal.value.setting == setting
