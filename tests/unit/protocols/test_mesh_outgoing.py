"""Dialer's side of a mesh link: dials, handshake, window, queue, snapshot, acknowledgement, times, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError, EncodeError
from cardinal.protocols.mesh import (
    OVERHEAD,
    Ack,
    Begin,
    Changed,
    Close,
    Cluster,
    Dial,
    Heartbeat,
    Hello,
    Identity,
    LinkState,
    Member,
    MeshSettings,
    Message,
    OutgoingLink,
    Reason,
    Refusal,
    Refused,
    Signed,
    Welcome,
    encode,
    retry_delay,
)
from meshing import NONCE, OTHER_NONCE, SETTINGS, Pair, cluster, frames, identity, sent

DISCONNECTED, CONNECTING = LinkState.DISCONNECTED, LinkState.CONNECTING
CONNECTED, SUSPECTED = LinkState.CONNECTED, LinkState.SUSPECTED


def connected(*, snapshot: bool = True, now: float = 0.0, settings: MeshSettings = SETTINGS) -> Pair:
    pair = Pair(settings)
    pair.connect(now)
    assert pair.out.state is CONNECTED
    if snapshot:
        assert pair.out.snapshot([], now) == []
    return pair


def ended(effects: list[object]) -> tuple[Reason | None, str]:
    """Reason and detail of an end by the link itself."""
    close, changed = effects[-2:]
    assert close == Close()
    assert isinstance(changed, Changed)
    assert changed.state is DISCONNECTED
    return changed.reason, changed.detail


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


@pytest.mark.parametrize("data", [b"\0\0\0\1\xff", b"GET / HTTP/1.1\r\n", b"\0\0\4\1"])
def test_bytes_of_something_else_end_the_link(data: bytes) -> None:
    pair = Pair()
    pair.hello()
    assert ended(pair.to_a(data))[0] in (Reason.DECODER_FAILURE, Reason.EXCEEDED_SIZE_LIMIT)
    assert pair.to_a(data) == [], "the link is over"


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


def test_failed_dials_are_retried_for_ever_with_growing_delays() -> None:
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
    pair = connected()
    assert ended(pair.to_a(encode(Refused(Refusal.SIGNATURE, "Begin")))) == (Reason.REFUSED, "SIGNATURE: Begin")


# --- snapshot and live messages ----------------------------------------------------------------------------


def test_the_snapshot_comes_first_and_live_messages_follow_it() -> None:
    pair = connected(snapshot=False)
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
    pair = connected(snapshot=False)
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
    pair = connected()
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
    pair = connected()
    effects = pair.out.send(1, b"x" * most, 0.0)
    assert len(pair.to_b(sent(effects))) == 1, "the peer takes the largest"


# --- acknowledgement and times -----------------------------------------------------------------------------


@pytest.mark.parametrize("received", [2, 3, 7, 2**64 - 1])
def test_an_acknowledgement_out_of_range_ends_the_link(received: int) -> None:
    pair = connected()
    for _ in range(6):
        pair.out.send(1, b"", 0.0)
    assert pair.to_a(pair.by_b(Ack(3))) == []
    assert ended(pair.to_a(pair.by_b(Ack(received))))[0] is Reason.BAD_ACKNOWLEDGEMENT


def test_a_forged_acknowledgement_frees_nothing() -> None:
    pair = connected()
    pair.out.send(1, b"", 0.0)
    assert ended(pair.to_a(pair.by_a(Ack(1))))[0] is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("frame", [Welcome("b", "a", 1, OTHER_NONCE), Begin(), Message(1, 1, b""), Heartbeat(1)])
def test_an_acceptor_that_speaks_out_of_turn_ends_the_link(frame: Signed) -> None:
    pair = connected()
    assert ended(pair.to_a(pair.by_b(frame)))[0] is Reason.UNEXPECTED_FRAME


def test_a_heartbeat_is_sent_when_nothing_else_was() -> None:
    pair = connected()
    assert pair.out.tick(0.99) == []
    assert bodies(pair.out.tick(1.0)) == [Heartbeat(1)]
    assert bodies(pair.out.send(1, b"", 1.5)) == [Message(2, 1, b"")]
    assert pair.out.tick(2.0) == []
    assert bodies(pair.out.tick(2.5)) == [Heartbeat(3)]


def test_heartbeats_pass_a_full_window_and_stay_bounded() -> None:
    settings = replace(SETTINGS, ack_timeout=1e9, drop_after=1e9)
    pair = connected(settings=settings)
    for _ in range(12):
        pair.out.send(1, b"x" * (1_000 - OVERHEAD), 0.0)
    beats = [len(frames(pair.out.tick(now))) for now in range(1, 50)]
    assert beats[0] == 1
    assert sum(beats) == (SETTINGS.window + SETTINGS.max_frame - 4_000) // OVERHEAD
    assert pair.out.in_flight <= SETTINGS.window + SETTINGS.max_frame


def test_what_is_not_acknowledged_suspects_the_link_then_ends_it() -> None:
    pair = connected()
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
    pair = connected()
    pair.out.send(1, b"", 0.5)
    pair.to_a(pair.by_b(Ack(1)), 0.6)
    pair.out.send(1, b"", 100.0)
    assert pair.out.tick(102.9)[-1:] != [Changed("b", SUSPECTED)]
    assert pair.out.state is CONNECTED
    assert pair.out.tick(103.0)[0] == Changed("b", SUSPECTED)


def test_a_late_tick_ends_the_link_at_once() -> None:
    pair = connected()
    pair.out.send(1, b"", 0.0)
    assert ended(pair.out.tick(9.0))[0] is Reason.ACK_TIMEOUT


def test_the_host_may_end_the_session() -> None:
    pair = connected()
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
