"""Fetcher of object diffusion: the choice over all peers, leases, bounds, verdicts, bars."""

from __future__ import annotations

from cardinal.protocols.diffusion import (
    Action,
    Announcement,
    Close,
    DiffusionSettings,
    Fetcher,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    Send,
    State,
    TooLarge,
    Verify,
    decode,
    encode,
)
from diffusing import Pool, id_of, identify, make

A, B, C = "abc"


class Bench:
    """A fetcher whose peers are written by hand: what it sends is read as messages."""

    def __init__(self, **settings: int) -> None:
        self.pool = Pool()
        self.fetcher = Fetcher(self.pool, identify, DiffusionSettings(**settings))
        self.now = 0.0

    def read(self, actions: list[Action]) -> list[tuple[str, Message] | Action]:
        """Actions, with messages in place of bytes; requests for ids are left out."""
        found: list[tuple[str, Message] | Action] = []
        for action in actions:
            if not isinstance(action, Send):
                found.append(action)
                continue
            message = decode(State.INIT if action.data[1:2] == b"\0" else State.IDLE, action.data)
            if not isinstance(message, MsgRequestObjectIds):
                found.append((action.peer, message))
        return found

    def join(self, *peers: str) -> None:
        for peer in peers:
            assert self.read(self.fetcher.join(peer, 0, self.now)) == [(peer, MsgInit())]

    def announce(self, peer: str, *bodies: bytes) -> list[tuple[str, Message] | Action]:
        return self.reply(peer, MsgReplyObjectIds(tuple(Announcement(id_of(body), len(body)) for body in bodies)))

    def reply(self, peer: str, message: Message) -> list[tuple[str, Message] | Action]:
        return self.read(self.fetcher.receive(peer, encode(message), self.now))

    def deliver(self, peer: str, *bodies: bytes) -> list[Verify]:
        """The copies to verify; nothing else comes of them."""
        found = self.reply(peer, MsgReplyObjects(bodies))
        copies = [one for one in found if isinstance(one, Verify)]
        assert len(copies) == len(found) == len(bodies)
        return copies

    def verdict(self, copy: Verify, *, valid: bool = True) -> list[tuple[str, Message] | Action]:
        return self.read(self.fetcher.verified(copy, self.now, valid=valid))

    def tick(self, now: float) -> list[tuple[str, Message] | Action]:
        self.now = now
        return self.read(self.fetcher.tick(now))


def request(peer: str, *bodies: bytes) -> tuple[str, Message]:
    return (peer, MsgRequestObjects(tuple(map(id_of, bodies))))


ONE, TWO, THREE, FOUR = (make(number, size=100) for number in (1, 2, 3, 4))


def test_objects_are_requested_lowest_number_first() -> None:
    bench = Bench()
    bench.join(A)
    assert bench.announce(A, THREE, ONE, TWO) == [request(A, ONE, TWO, THREE)]


def test_of_equal_peers_the_first_to_join_is_asked_else_the_one_with_the_fewest_bytes_in_flight() -> None:
    bench = Bench()
    bench.join(A, B)
    large, small = make(1, size=500), make(2, size=100)
    assert bench.announce(B, large) == [request(B, large)]
    assert bench.announce(A, large, small, THREE) == [request(A, small, THREE)]
    bench = Bench()
    bench.join(B, A)
    bench.pool.never.update(map(id_of, (ONE, TWO, THREE)))
    assert bench.announce(A, ONE, TWO, THREE) == []


def test_the_load_spreads_over_the_peers() -> None:
    bench = Bench(peer_bytes=100, total_bytes=1_000)
    bench.join(A, B)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE)]
    assert bench.announce(B, ONE, TWO) == [request(B, TWO)]


def test_another_peer_is_asked_when_the_lease_ends_and_never_a_third_at_once() -> None:
    bench = Bench()
    bench.join(A, B, C)
    large = make(1, size=1_000_000)  # a lease of 2 s + 1 s
    assert bench.announce(A, large) == [request(A, large)]
    assert bench.announce(B, large) == []
    assert bench.announce(C, large) == []
    assert bench.tick(2.9) == []
    assert bench.tick(3.0) == [request(B, large)]
    assert bench.tick(9.0) == []
    assert bench.fetcher.leave(A, 9.0) != []
    assert bench.fetcher.loads() == {B: 1_000_000, C: 1_000_000}


def test_a_peer_is_asked_once_per_announcement() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    (copy,) = bench.deliver(A, ONE)
    assert bench.verdict(copy) == []
    assert bench.pool.collect(id_of(ONE))  # the pool loses it
    assert bench.tick(5.0) == []
    assert bench.announce(B, ONE) == [request(B, ONE)]


def test_a_copy_that_is_verified_is_waited_for() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    (copy,) = bench.deliver(A, ONE)
    assert copy == Verify(A, id_of(ONE), ONE)
    assert bench.tick(9.0) == []
    assert bench.verdict(copy) == []
    assert id_of(ONE) in bench.pool.bodies
    assert bench.fetcher.loads() == {}


def test_a_copy_that_is_verified_survives_its_peer() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    (copy,) = bench.deliver(A, ONE)
    assert bench.read(bench.fetcher.leave(A, 1.0)) == []
    assert bench.fetcher.loads() == {A: 100}, "its bytes are still in memory"
    assert bench.verdict(copy) == []
    assert list(bench.pool.bodies) == [id_of(ONE)]
    assert bench.fetcher.loads() == {}


def test_an_object_that_does_not_verify_bars_its_peer_and_the_next_one_is_asked() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE, TWO)]
    assert bench.announce(B, ONE) == []
    first, second = bench.deliver(A, ONE, TWO)
    closed, again = bench.verdict(first, valid=False)
    assert isinstance(closed, Close)
    assert closed.violation is not None
    assert (closed.peer, closed.violation.violation, closed.barred_until) == (A, "ObjectInvalid", 30.0)
    assert again == request(B, ONE)
    assert bench.verdict(second) == [], "the good objects of the reply are kept"
    assert list(bench.pool.bodies) == [id_of(TWO)]


def test_the_second_copy_is_verified_and_discarded() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    assert bench.tick(4.0) == [request(B, ONE)]
    (first,), (second,) = bench.deliver(B, ONE), bench.deliver(A, ONE)
    assert bench.verdict(first) == []
    assert bench.verdict(second) == []  # the pool refuses an object that it has
    assert bench.verdict(second) == []
    assert bench.fetcher.loads() == {}


def test_a_peer_that_leaves_returns_its_objects_at_once() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    assert request(B, ONE) in bench.read(bench.fetcher.leave(A, bench.now))
    assert bench.fetcher.receive(A, b"late bytes", bench.now) == []
    assert bench.fetcher.leave(A, bench.now) == []


def test_a_second_link_of_a_peer_replaces_the_first() -> None:
    bench = Bench()
    bench.join(A)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    bench.join(A)
    assert bench.fetcher.loads() == {}
    assert bench.announce(A, ONE) == [request(A, ONE)]


def test_a_request_holds_several_objects_up_to_its_limits() -> None:
    fits = 4 + 2 * (2 + 100)
    bench = Bench(reply_limit=fits)
    bench.join(A)
    assert bench.announce(A, ONE, TWO, THREE) == [request(A, ONE, TWO), request(A, THREE)]
    bench = Bench(reply_limit=fits - 1)
    bench.join(A)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE), request(A, TWO)]
    bench = Bench(objects_per_request=3)
    bench.join(A)
    assert bench.announce(A, ONE, TWO, THREE, FOUR) == [request(A, ONE, TWO, THREE), request(A, FOUR)]
    bench = Bench(reply_limit=50)
    bench.join(A)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE), request(A, TWO)], "a larger one is alone"


def test_the_bytes_of_a_peer_are_bounded_until_the_verdict() -> None:
    bench = Bench(peer_bytes=200)
    bench.join(A)
    assert bench.announce(A, ONE, TWO, THREE) == [request(A, ONE, TWO)]
    first, second = bench.deliver(A, ONE, TWO)
    assert bench.tick(1.0) == []
    assert bench.verdict(first) == [request(A, THREE)]
    assert bench.verdict(second) == []


def test_the_bytes_of_all_peers_are_bounded_and_no_smaller_object_passes() -> None:
    bench = Bench(peer_bytes=200, total_bytes=250)
    bench.join(A, B)
    small = make(9, size=10)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE, TWO)]
    assert bench.announce(B, THREE, small) == []
    (first, _) = bench.deliver(A, ONE, TWO)
    assert bench.verdict(first) == [request(B, THREE, small)]


def test_one_object_above_the_bound_is_in_flight_and_delays_no_other() -> None:
    bench = Bench(peer_bytes=200, total_bytes=200)
    bench.join(A, B, C)
    huge, huger = make(1, size=201), make(2, size=5_000)
    assert bench.announce(A, huge, THREE) == [request(A, huge)]
    assert bench.announce(B, huger, FOUR) == [request(B, FOUR)]
    assert bench.announce(C, huger, THREE) == [request(C, THREE)]
    bench.verdict(*bench.deliver(B, FOUR))
    bench.verdict(*bench.deliver(C, THREE))
    assert bench.tick(1.0) == [], "one such object at a time"
    assert bench.verdict(*bench.deliver(A, huge)) == [request(B, huger)]


def test_an_object_above_the_bound_waits_for_a_peer_with_nothing_in_flight() -> None:
    bench = Bench(peer_bytes=200)
    bench.join(A)
    huge = make(5, size=201)
    assert bench.announce(A, ONE, huge) == [request(A, ONE)]
    assert bench.verdict(*bench.deliver(A, ONE)) == [request(A, huge)]


def test_an_object_that_is_too_large_is_reported_and_acknowledged() -> None:
    bench = Bench(max_object_bytes=99)
    bench.join(A)
    assert bench.announce(A, ONE) == [TooLarge(A, id_of(ONE), 100)]
    assert bench.fetcher.outstanding(A) == []


def test_what_is_in_the_pool_is_acknowledged_and_what_another_peer_fetches_is_not() -> None:
    bench = Bench()
    bench.join(A, B)
    bench.pool.add(id_of(ONE), ONE)
    assert bench.announce(A, ONE, TWO) == [request(A, TWO)]
    assert bench.fetcher.outstanding(A) == [id_of(TWO)]
    assert bench.announce(B, ONE, TWO) == []
    assert bench.fetcher.outstanding(B) == [id_of(TWO)]
    bench.pool.add(id_of(TWO), TWO)
    assert bench.tick(0.1) == []
    assert bench.fetcher.outstanding(B) == [id_of(TWO)], "a reply in flight may be empty"
    assert bench.announce(B) == []
    assert bench.fetcher.outstanding(B) == []


def test_an_id_request_follows_a_request_for_objects() -> None:
    bench = Bench()
    bench.join(A)
    reply = encode(MsgReplyObjectIds((Announcement(id_of(ONE), 100),)))
    sent = [decode(State.IDLE, one.data) for one in bench.fetcher.receive(A, reply, 0.0) if isinstance(one, Send)]
    assert sent == [MsgRequestObjects((id_of(ONE),)), MsgRequestObjectIds(blocking=False, ack=0, req=49)]


def test_requests_in_flight_are_bounded_and_the_rest_is_sent_later() -> None:
    bench = Bench(max_unacked=2, objects_per_request=1)
    bench.join(A)
    client = bench.fetcher._clients[A]
    for _ in range(3):
        client.request_ids(0, 0, 0.0, blocking=False)
    assert client.full
    assert bench.announce(A, ONE, TWO) == [request(A, ONE)]
    assert client.full
    assert bench.tick(1.0) == []
    assert bench.fetcher.loads() == {A: 100}
    assert bench.announce(A) == [request(A, TWO)]


def test_a_time_out_bars_longer_each_time_until_an_hour_passed_without() -> None:
    bench = Bench()
    lengths = []
    for _ in range(9):
        bench.join(A)
        bench.announce(A, ONE)
        assert bench.tick(bench.now + 9.9) == []
        (closed,) = bench.tick(bench.now + 0.1)
        assert isinstance(closed, Close)
        assert closed.barred_until is not None
        lengths.append(closed.barred_until - bench.now)
        bench.now = closed.barred_until
    assert [round(length) for length in lengths] == [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]
    bench.now += 3_600
    bench.join(A)
    (closed,) = bench.reply(A, MsgReplyObjects(()))
    assert isinstance(closed, Close)
    assert closed.barred_until == bench.now + 30


def test_the_end_in_order_collects_what_is_in_flight() -> None:
    bench = Bench()
    bench.join(A)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.read(bench.fetcher.finish(A, 0.0)) == []
    (copy,) = bench.deliver(A, ONE)
    assert bench.announce(A, TWO) == [(A, MsgDone()), Close(A)]
    assert bench.verdict(copy) == []
    assert list(bench.pool.bodies) == [id_of(ONE)]


def test_a_blocked_link_is_dropped_at_its_end() -> None:
    bench = Bench()
    bench.join(A)
    assert bench.read(bench.fetcher.finish(A, 0.0)) == [Close(A)]
    assert bench.fetcher.finish(A, 0.0) == []


def test_a_violation_names_the_peer_and_touches_no_other_link() -> None:
    bench = Bench()
    bench.join(A, B)
    assert bench.announce(B, TWO) == [request(B, TWO)]
    (closed,) = bench.read(bench.fetcher.receive(A, b"\x00", 7.0))
    assert isinstance(closed, Close)
    assert (closed.peer, str(closed.violation)) == (
        A,
        "close the link: the peer broke the protocol (DecoderFailure): message: not an array",
    )
    assert closed.barred_until == 37.0
    assert bench.fetcher.loads() == {B: 100}


def test_the_lowest_number_is_in_the_first_message() -> None:
    bench = Bench()
    first, second = bench.fetcher.join(A, 536, 0.0)
    assert first == Send(A, encode(MsgInit(536)))
    assert second == Send(A, encode(MsgRequestObjectIds(blocking=True, ack=0, req=50)))


def test_an_id_that_two_blocks_of_a_number_share_is_told_apart_by_the_hash() -> None:
    bench = Bench()
    bench.join(A)
    fork = make(1, b"fork", 100)
    expected = sorted((id_of(ONE), id_of(fork)))
    assert bench.announce(A, ONE, fork) == [(A, MsgRequestObjects(tuple(expected)))]
    assert isinstance(expected[0], ObjectId)
