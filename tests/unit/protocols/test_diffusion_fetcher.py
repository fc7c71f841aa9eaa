"""Object diffusion: limits to the byte, one server, one client, and the fetcher's choice over all peers."""

from __future__ import annotations

import tracemalloc
from typing import Self

import pytest

from cardinal.errors import ConfigurationError, EncodeError
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols import cbor
from cardinal_ingest.protocols.diffusion import (
    Action,
    Announcement,
    Client,
    Close,
    Decoder,
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
    Server,
    State,
    TooLarge,
    Verify,
    decode,
    encode,
)
from cardinal_ingest.protocols.diffusion.codec import LIMITS, objects_size
from diffusing import Pool, id_of, identify, make, written

# --- bytes ----------------------------------------------------------------------------------------------------------


ID = ObjectId(18_000_000, bytes(range(32)))
LIST_IN_OBJECTS = bytes.fromhex("82049f")


def violation(state: State, data: bytes, *, limit: int | None = None, items: int | None = None) -> str | None:
    """The name of the rule that the bytes break so far."""
    try:
        Decoder(state, limit=limit, items=items).feed(data)
    except ViolationError as error:
        return error.violation
    return None


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (MsgInit(2**64), "lowest"),
        (MsgInit(-1), "lowest"),
        (MsgRequestObjectIds(blocking=True, ack=2**16, req=1), "ack"),
        (MsgRequestObjectIds(blocking=True, ack=0, req=2**16), "req"),
        (MsgRequestObjects((ObjectId(2**64, bytes(32)),)), "number"),
        (MsgRequestObjects((ObjectId(1, bytes(31)),)), "hash"),
        (MsgReplyObjectIds((Announcement(ID, 2**32),)), "size"),
    ],
)
def test_a_field_without_a_place_on_the_wire_is_refused(message: Message, field: str) -> None:
    with pytest.raises(EncodeError) as refused:
        encode(message)
    assert refused.value.field == field


LONGEST = {
    State.IDLE: MsgRequestObjects((ObjectId(2**64 - 1, bytes(32)),) * 130),
    State.BLOCKING: MsgReplyObjectIds((Announcement(ObjectId(2**64 - 1, bytes(32)), 2**32 - 1),) * 9),
    State.NON_BLOCKING: MsgReplyObjectIds((Announcement(ObjectId(2**64 - 1, bytes(32)), 2**32 - 1),) * 9),
    State.OBJECTS: MsgReplyObjects((b"a" * 23, b"b" * 24, b"c" * 256, b"")),
}


@pytest.mark.parametrize("state", LONGEST, ids=lambda state: state.value)
def test_a_limit_is_met_and_missed_by_one_byte(state: State) -> None:
    data = encode(LONGEST[state])
    assert decode(state, data, limit=len(data)) == LONGEST[state]
    with pytest.raises(ViolationError) as refused:
        decode(state, data, limit=len(data) - 1)
    assert refused.value.violation == "ExceededSizeLimit"


def test_the_limits_of_the_states_are_those_of_the_specification() -> None:
    assert len(encode(LONGEST[State.IDLE])) <= LIMITS[State.IDLE] == LIMITS[State.INIT] == 5_760
    assert len(encode(MsgRequestObjects((ObjectId(2**64 - 1, bytes(32)),) * 131))) > 5_760
    assert {LIMITS[state] for state in (State.BLOCKING, State.NON_BLOCKING, State.OBJECTS)} == {2_500_000}
    for room, expected in ((0, "ExceededSizeLimit"), (1, None)):
        body = bytes(2_500_000 - 3 - 5 - room)
        assert violation(State.OBJECTS, encode(MsgReplyObjects((body,)))) == expected


@pytest.mark.parametrize("sizes", [(), (0,), (23, 24), (255, 256), (65_535, 65_536), (1, 1, 1)])
def test_the_size_of_a_reply_is_computed_before_it_is_made(sizes: tuple[int, ...]) -> None:
    assert objects_size(sizes) == len(encode(MsgReplyObjects(tuple(map(bytes, sizes)))))


@pytest.mark.parametrize(
    ("state", "data", "expected"),
    [
        (State.OBJECTS, LIST_IN_OBJECTS + bytes.fromhex("5a7d000000"), "ExceededSizeLimit"),
        (State.OBJECTS, LIST_IN_OBJECTS + bytes.fromhex("5bffffffffffffffff"), "ExceededSizeLimit"),
        (State.IDLE, bytes.fromhex("82039f82005a00010000"), "DecoderFailure"),
        (State.IDLE, bytes.fromhex("9bffffffffffffffff"), "DecoderFailure"),
        (State.IDLE, bytes.fromhex("82039f9bffffffffffffffff"), "DecoderFailure"),
        (State.IDLE, bytes.fromhex("3b"), "DecoderFailure"),
        (State.INIT, bytes.fromhex("821f"), "DecoderFailure"),
    ],
)
def test_a_length_or_type_is_judged_before_what_it_announces_arrives(state: State, data: bytes, expected: str) -> None:
    assert violation(state, data) == expected
    assert violation(state, data[:-1]) in (None, expected)


def test_the_last_byte_of_a_limit_belongs_to_the_break() -> None:
    head = LIST_IN_OBJECTS + cbor.head(cbor.BYTE_STRING, 1_000)
    assert violation(State.OBJECTS, head, limit=len(head) + 1_001) is None
    assert violation(State.OBJECTS, head, limit=len(head) + 1_000) == "ExceededSizeLimit"


def test_empty_objects_without_end_are_refused_by_their_number() -> None:
    assert violation(State.OBJECTS, LIST_IN_OBJECTS + b"\x40" * 3, items=3) is None
    assert violation(State.OBJECTS, LIST_IN_OBJECTS + b"\x40" * 4, items=3) == "ExceededSizeLimit"


def test_a_large_body_in_small_pieces_is_held_at_most_twice() -> None:
    size = 20_000_000
    head, piece = LIST_IN_OBJECTS + cbor.head(cbor.BYTE_STRING, size), bytes(1_000)
    tracemalloc.start()
    try:
        decoder = Decoder(State.OBJECTS, limit=size + 9)
        assert decoder.feed(head) is None
        assert tracemalloc.get_traced_memory()[1] < 100_000, "nothing is allocated by a declared length"
        for _ in range(size // len(piece)):
            assert decoder.feed(piece) is None
        message = decoder.feed(cbor.BREAK)
        assert tracemalloc.get_traced_memory()[1] < 2.3 * size
    finally:
        tracemalloc.stop()
    assert isinstance(message, MsgReplyObjects)
    assert message.objects == (bytes(size),)


def test_a_body_is_read_once_however_small_the_pieces() -> None:
    """The parser runs once per item, not once per piece: the cost of a body does not grow with the square."""
    reader = cbor.Reader()
    reader.begin(10_000)
    parser = reader.byte_string("object")
    reader.feed(cbor.head(cbor.BYTE_STRING, 5_000))
    assert next(parser) == 5_003, "it resumes when this much is there"
    for _ in range(5_000):
        reader.feed(b"x")
    with pytest.raises(StopIteration) as end:
        next(parser)
    assert end.value.value == b"x" * 5_000


# --- server ---------------------------------------------------------------------------------------------------------


BODIES = [make(number, b"body" * number) for number in range(1, 9)]
IDS = [id_of(body) for body in BODIES]


def opened(pool: Pool, lowest: int = 0, **settings: int) -> Server:
    server = Server(pool, DiffusionSettings(**({"max_unacked": 5} | settings)))
    server.receive(encode(MsgInit(lowest)))
    assert server.send() is None
    return server


def ids(ack: int, req: int, *, blocking: bool = False) -> Message:
    return MsgRequestObjectIds(blocking, ack, req)


def objects(*places: int) -> Message:
    return MsgRequestObjects(tuple(IDS[place] for place in places))


def announced(*places: int) -> Message:
    return MsgReplyObjectIds(tuple(Announcement(IDS[place], len(BODIES[place])) for place in places))


def ask(server: Server, *messages: Message) -> bytes:
    server.receive(b"".join(map(encode, messages)))
    return written(server)


def refused(server: Server, *messages: Message) -> str:
    """The rule that a request breaks."""
    with pytest.raises(ViolationError) as error:
        ask(server, *messages)
    return error.value.violation


def begun(*, announce: int = 3, **settings: int) -> tuple[Server, Pool]:
    """A server that announced ids."""
    pool = Pool(*BODIES)
    server = opened(pool, **settings)
    assert ask(server, ids(0, announce, blocking=True)) == encode(announced(*range(announce)))
    return server, pool


def test_a_reply_of_several_objects_meets_its_limit_to_the_byte() -> None:
    whole = encode(MsgReplyObjects((BODIES[0], BODIES[1])))
    server, _ = begun(reply_limit=len(whole))
    assert ask(server, objects(1, 0)) == whole
    server, _ = begun(reply_limit=len(whole) - 1)
    assert refused(server, objects(1, 0)) == "RequestedTooManyBytes"
    server, _ = begun(reply_limit=1)
    assert ask(server, objects(0)) == encode(MsgReplyObjects((BODIES[0],))), "one object may be larger"


def test_an_object_is_sent_once_per_announcement() -> None:
    server, pool = begun()
    assert refused(server, objects(0), objects(1, 0)) == "RequestedUnavailableObject"
    server, pool = begun(announce=1)
    assert ask(server, objects(0), ids(1, 5, blocking=True)) != b""
    assert pool.pins[IDS[0]] == 0
    assert pool.collect(IDS[0])
    pool.add(IDS[0], BODIES[0])  # it arrives again: another ticket
    assert ask(server, ids(5, 1, blocking=True)) == encode(announced(6))
    assert ask(server, ids(0, 3)) == encode(announced(7, 0))
    assert ask(server, objects(0)) == encode(MsgReplyObjects((BODIES[0],)))


def test_an_outstanding_id_is_not_announced_twice() -> None:
    server, pool = begun(announce=1)
    pool.arrivals[1:] = [IDS[0], IDS[4]]  # a pool that appends an object which it has
    assert ask(server, ids(0, 3)) == encode(announced(4))
    assert server.outstanding == [IDS[0], IDS[4]]


def test_the_end_by_the_client_releases_everything_and_nothing_follows() -> None:
    server, pool = begun()
    server.receive(encode(MsgDone()))
    assert server.send() is None
    assert (server.state, pool.pinned) == (State.DONE, 0)
    with pytest.raises(ViolationError, match="DecoderFailure"):
        server.receive(encode(ids(0, 1, blocking=True)))


def test_a_blocking_request_is_answered_when_a_read_finds_something() -> None:
    pool = Pool()
    server = opened(pool, lowest=5)
    assert ask(server, ids(0, 4, blocking=True)) == b""
    assert server.state is State.BLOCKING
    pool.add(IDS[6], BODIES[6])
    assert pool.collect(IDS[6]), "what woke the server may be gone"
    assert written(server) == b""
    pool.add(IDS[3], BODIES[3])  # number 4, below the client's lowest
    assert written(server) == b""
    pool.add(IDS[4], BODIES[4])
    assert written(server) == encode(announced(4))
    assert server.state is State.IDLE


def test_requests_behind_an_open_one_are_kept_up_to_a_bound() -> None:
    server = opened(Pool())
    requests = encode(ids(0, 1, blocking=True)) + encode(ids(0, 1)) * 10
    for byte in requests:
        server.receive(bytes((byte,)))
        assert server.send() is None
    with pytest.raises(ViolationError, match="TooManyPipelined"):
        server.receive(encode(ids(0, 1)))
    server.close()
    assert server.send() is None


def test_a_request_that_waits_behind_a_reply_is_checked_after_it_is_written() -> None:
    server, pool = begun()
    server.receive(encode(objects(0)) + encode(ids(3, 2, blocking=True)) + encode(objects(0)))
    assert pool.pins[IDS[0]] == 1, "the body is still to be read"
    pieces = []
    with pytest.raises(ViolationError, match="RequestedUnavailableObject"):
        pieces += list(iter(server.send, None))
    server.close()
    assert pool.pinned == 0


def test_one_body_at_a_time_is_in_memory() -> None:
    class Made(Pool):
        def body(self, one: ObjectId) -> bytes:
            return make(one.number, size=len(super().body(one)))

    size, count = 1_000_000, 20
    bodies = [make(number, size=size) for number in range(count)]
    pool = Made(*bodies)
    server = Server(pool, DiffusionSettings(max_unacked=count, objects_per_request=count, reply_limit=10**9))
    server.receive(encode(MsgInit()) + encode(ids(0, count, blocking=True)))
    state = server.state
    reply = decode(state, written(server))
    assert isinstance(reply, MsgReplyObjectIds)
    request = encode(MsgRequestObjects(tuple(one.id for one in reply.announcements)))
    tracemalloc.start()
    try:
        server.receive(request)
        sent = sum(map(len, iter(server.send, None)))
        assert tracemalloc.get_traced_memory()[1] < 3.5 * size
    finally:
        tracemalloc.stop()
    assert sent > count * size


@pytest.mark.parametrize(
    "options",
    [
        {"max_unacked": 0},
        {"max_unacked": 65_536},
        {"ids_per_request": 65_536},
        {"objects_per_request": 131},
        {"max_object_bytes": 2**32},
        {"total_bytes": 4_999_999},
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        DiffusionSettings(**options)
    assert refusal.value.setting == next(iter(options))


# --- client ---------------------------------------------------------------------------------------------------------


NOW = 100.0


def new_client(**settings: float) -> Client:
    return Client("a", identify, DiffusionSettings(**({"max_unacked": 5, "ids_per_request": 5} | settings)))  # type: ignore[arg-type]


def delivered(*places: int) -> Message:
    return MsgReplyObjects(tuple(BODIES[place] for place in places))


def client_with(*places: int, **settings: float) -> Client:
    """A new_client with these client_ids outstanding."""
    one = new_client(**settings)
    one.request_ids(0, max(1, len(places)), NOW, blocking=True)
    assert take(one, announced(*places)) == []
    return one


def take(one: Client, message: Message, now: float = NOW) -> list[Verify | TooLarge]:
    return list(one.feed(encode(message), now))


def broken(one: Client, message: Message) -> str:
    """The rule that a reply breaks."""
    with pytest.raises(ViolationError) as error:
        list(one.receive(message, NOW))
    return error.value.violation


def next_ids(one: Client, *settled: int, now: float = NOW, follows_objects: bool = False) -> Message | None:
    done = {IDS[place] for place in settled}
    data = one.next_ids(done.__contains__, now, follows_objects=follows_objects)
    return None if data is None else decode(State.IDLE, data)


def client_ids(ack: int, req: int, *, blocking: bool = False) -> Message:
    return MsgRequestObjectIds(blocking, ack, req)


def want(one: Client, *places: int, now: float = NOW) -> None:
    one.request_objects(tuple(IDS[place] for place in places), now)


# --- checks ------------------------------------------------------------------------------------------------


SHORT = make(1, b"x")
"""An object that is announced with another size."""


@pytest.mark.parametrize(
    ("bodies", "violation"),
    [
        ([SHORT], "ObjectsDifferentThanRequested"),
        ([], "ObjectsDifferentThanRequested"),
        ([SHORT, SHORT], "ObjectsDifferentThanRequested"),
        ([SHORT, b"tiny"], "ObjectsDifferentThanRequested"),
        ([SHORT, BODIES[1], BODIES[1]], "ObjectsDifferentThanRequested"),
        ([SHORT, BODIES[2]], "ObjectsDifferentThanRequested"),
        ([BODIES[1], SHORT], "ObjectSizeMismatch"),
    ],
)
def test_the_first_rule_that_objects_break_counts(bodies: list[bytes], violation: str) -> None:
    one = new_client()
    one.request_ids(0, 2, NOW, blocking=True)
    sizes = (Announcement(id_of(SHORT), len(SHORT) + 1), Announcement(IDS[1], len(BODIES[1])))
    assert take(one, MsgReplyObjectIds(sizes)) == []
    one.request_objects((id_of(SHORT), IDS[1]), NOW)
    assert broken(one, MsgReplyObjects(tuple(bodies))) == violation


def test_bytes_that_nothing_was_requested_for_are_a_violation() -> None:
    one = new_client()
    assert list(one.feed(b"", NOW)) == []
    with pytest.raises(ViolationError, match="UnexpectedReply"):
        list(one.feed(b"\x82", NOW))
    one = new_client()
    one.request_ids(0, 1, NOW, blocking=True)
    with pytest.raises(ViolationError, match="UnexpectedReply"):
        list(one.feed(encode(announced(0)) + b"\x82", NOW))
    one = new_client()
    assert broken(one, announced(0)) == "UnexpectedReply"


def test_what_came_before_a_violation_is_used_however_the_bytes_arrive() -> None:
    one = client_with(0, 1)
    want(one, 0)
    want(one, 1)
    actions = one.feed(encode(delivered(0)) + encode(announced(1)), NOW)
    assert next(actions) == Verify("a", IDS[0], BODIES[0])
    with pytest.raises(ViolationError, match="DecoderFailure"):
        next(actions)


def test_a_reply_with_objects_has_exactly_the_announced_bytes() -> None:
    one = client_with(0, 1)
    want(one, 0)
    with pytest.raises(ViolationError, match="ExceededSizeLimit"):
        take(one, MsgReplyObjects((BODIES[0] + b"x",)))
    one = client_with(0, 1)
    want(one, 0, 1)
    with pytest.raises(ViolationError, match="more than 2 items"):
        take(one, MsgReplyObjects((b"",) * 3))


def test_an_object_above_the_bound_is_reported() -> None:
    one = new_client(max_object_bytes=10)
    one.request_ids(0, 2, NOW, blocking=True)
    sizes = (Announcement(IDS[0], 10), Announcement(IDS[1], 11))
    assert take(one, MsgReplyObjectIds(sizes)) == [TooLarge("a", IDS[1], 11)]
    assert list(one.offers) == IDS[:2]


# --- time --------------------------------------------------------------------------------------------------


def late(one: Client, now: float) -> bool:
    try:
        one.tick(now)
    except ViolationError as error:
        return error.violation == "ExceededTimeLimit"
    return False


def test_a_blocking_request_has_no_limit() -> None:
    one = new_client()
    one.request_ids(0, 1, NOW, blocking=True)
    assert one.blocked
    assert not late(one, NOW + 1e6)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(1, 10), (2_500_000 - 9, 10), (2_500_000 - 8, 20), (5_000_000 - 9, 20), (5_000_000 - 8, 30), (131_072_000, 530)],
)
def test_a_large_object_has_more_time(size: int, seconds: int) -> None:
    one = new_client()
    one.request_ids(0, 1, NOW, blocking=True)
    assert take(one, MsgReplyObjectIds((Announcement(IDS[0], size),))) == []
    want(one, 0)
    assert not late(one, NOW + seconds - 0.1)
    assert late(one, NOW + seconds)


# --- requests for client_ids --------------------------------------------------------------------------------------


def test_the_window_counts_ids_that_are_in_flight() -> None:
    one = client_with(0, 1, max_unacked=6, ids_per_request=3)
    assert next_ids(one, follows_objects=True) == client_ids(0, 3)
    assert next_ids(one, follows_objects=True) == client_ids(0, 1)
    assert next_ids(one, follows_objects=True) is None
    assert next_ids(one, 0) == client_ids(1, 1)
    assert next_ids(one, 0, 1) is None


def test_an_acknowledgement_without_a_request_is_sent_when_the_window_is_full() -> None:
    one = client_with(0, 1, max_unacked=3)
    assert next_ids(one, follows_objects=True) == client_ids(0, 1)
    one.request_ids(1, 1, NOW, blocking=False)
    assert take(one, announced(2)) == []
    assert take(one, announced(3)) == []
    assert next_ids(one, follows_objects=True) is None
    one.request_objects((IDS[3],), NOW)
    assert next_ids(one, 1) == client_ids(1, 1)


def test_ids_are_not_polled_while_a_reply_is_in_flight() -> None:
    one = client_with(0, 1)
    want(one, 0)
    assert next_ids(one, now=NOW + 5) is None


def test_a_server_with_further_ids_is_queried_at_once_another_one_after_a_while() -> None:
    one = client_with(0, poll_interval=0.5)
    assert next_ids(one) == client_ids(0, 4), "the last reply was a full one"
    assert take(one, announced(1, 2)) == []
    assert next_ids(one, now=NOW + 0.49) is None
    assert next_ids(one, now=NOW + 0.5) == client_ids(0, 2)


def test_requests_in_flight_are_bounded() -> None:
    one = client_with(0, 1, max_unacked=2)
    for _ in range(3):
        one.request_ids(0, 0, NOW, blocking=False)
    assert not one.full
    one.request_ids(0, 0, NOW, blocking=False)
    assert one.full
    assert one.in_flight == 4
    assert next_ids(one, 0) is None


def test_a_body_is_not_in_a_repr() -> None:
    assert "xyz" not in repr(Verify("a", ObjectId(1, bytes(32)), b"xyz"))


# --- fetcher --------------------------------------------------------------------------------------------------------


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

    def join(self, *peers: str) -> Self:
        for peer in peers:
            assert self.read(self.fetcher.join(peer, 0, self.now)) == [(peer, MsgInit())]
        return self

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
    bench = Bench().join(A)
    assert bench.announce(A, THREE, ONE, TWO) == [request(A, ONE, TWO, THREE)]


def test_of_equal_peers_the_first_to_join_is_queried_else_the_one_with_the_fewest_bytes_in_flight() -> None:
    bench = Bench().join(A, B)
    large, small = make(1, size=500), make(2, size=100)
    assert bench.announce(B, large) == [request(B, large)]
    assert bench.announce(A, large, small, THREE) == [request(A, small, THREE)]
    bench = Bench().join(B, A)
    bench.pool.never.update(map(id_of, (ONE, TWO, THREE)))
    assert bench.announce(A, ONE, TWO, THREE) == []


def test_the_load_spreads_over_the_peers() -> None:
    bench = Bench(peer_bytes=100, total_bytes=1_000).join(A, B)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE)]
    assert bench.announce(B, ONE, TWO) == [request(B, TWO)]


def test_another_peer_is_queried_when_the_lease_ends_and_never_a_third_at_once() -> None:
    bench = Bench().join(A, B, C)
    large = make(1, size=1_000_000)  # a lease of 2 s + 1 s
    assert bench.announce(A, large) == [request(A, large)]
    assert bench.announce(B, large) == []
    assert bench.announce(C, large) == []
    assert bench.tick(2.9) == []
    assert bench.tick(3.0) == [request(B, large)]
    assert bench.tick(9.0) == []
    assert bench.fetcher.leave(A, 9.0) != []
    assert bench.fetcher.loads() == {B: 1_000_000, C: 1_000_000}


def test_a_peer_is_queried_once_per_announcement() -> None:
    bench = Bench().join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    (copy,) = bench.deliver(A, ONE)
    assert bench.verdict(copy) == []
    assert bench.pool.collect(id_of(ONE))  # the pool loses it
    assert bench.tick(5.0) == []
    assert bench.announce(B, ONE) == [request(B, ONE)]


def test_a_copy_that_is_verified_is_waited_for() -> None:
    bench = Bench().join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    (copy,) = bench.deliver(A, ONE)
    assert copy == Verify(A, id_of(ONE), ONE)
    assert bench.tick(9.0) == []
    assert bench.verdict(copy) == []
    assert id_of(ONE) in bench.pool.bodies
    assert bench.fetcher.loads() == {}


def test_a_copy_that_is_verified_survives_its_peer() -> None:
    bench = Bench().join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    (copy,) = bench.deliver(A, ONE)
    assert bench.read(bench.fetcher.leave(A, 1.0)) == []
    assert bench.fetcher.loads() == {A: 100}, "its bytes are still in memory"
    assert bench.verdict(copy) == []
    assert list(bench.pool.bodies) == [id_of(ONE)]
    assert bench.fetcher.loads() == {}


def test_an_object_that_does_not_verify_bars_its_peer_and_the_next_one_is_queried() -> None:
    bench = Bench().join(A, B)
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
    bench = Bench().join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    assert bench.tick(4.0) == [request(B, ONE)]
    (first,), (second,) = bench.deliver(B, ONE), bench.deliver(A, ONE)
    assert bench.verdict(first) == []
    assert bench.verdict(second) == []  # the pool refuses an object that it has
    assert bench.verdict(second) == []
    assert bench.fetcher.loads() == {}


def test_a_peer_that_leaves_returns_its_objects_at_once() -> None:
    bench = Bench().join(A, B)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.announce(B, ONE) == []
    assert request(B, ONE) in bench.read(bench.fetcher.leave(A, bench.now))
    assert bench.fetcher.receive(A, b"late bytes", bench.now) == []
    assert bench.fetcher.leave(A, bench.now) == []


def test_a_second_link_of_a_peer_replaces_the_first() -> None:
    bench = Bench().join(A)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    bench.join(A)
    assert bench.fetcher.loads() == {}
    assert bench.announce(A, ONE) == [request(A, ONE)]


def test_a_request_holds_several_objects_up_to_its_limits() -> None:
    fits = 4 + 2 * (2 + 100)
    bench = Bench(reply_limit=fits).join(A)
    assert bench.announce(A, ONE, TWO, THREE) == [request(A, ONE, TWO), request(A, THREE)]
    bench = Bench(reply_limit=fits - 1).join(A)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE), request(A, TWO)]
    bench = Bench(objects_per_request=3).join(A)
    assert bench.announce(A, ONE, TWO, THREE, FOUR) == [request(A, ONE, TWO, THREE), request(A, FOUR)]
    bench = Bench(reply_limit=50).join(A)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE), request(A, TWO)], "a larger one is alone"


def test_the_bytes_of_a_peer_are_bounded_until_the_verdict() -> None:
    bench = Bench(peer_bytes=200).join(A)
    assert bench.announce(A, ONE, TWO, THREE) == [request(A, ONE, TWO)]
    first, second = bench.deliver(A, ONE, TWO)
    assert bench.tick(1.0) == []
    assert bench.verdict(first) == [request(A, THREE)]
    assert bench.verdict(second) == []


def test_the_bytes_of_all_peers_are_bounded_and_no_smaller_object_passes() -> None:
    bench = Bench(peer_bytes=200, total_bytes=250).join(A, B)
    small = make(9, size=10)
    assert bench.announce(A, ONE, TWO) == [request(A, ONE, TWO)]
    assert bench.announce(B, THREE, small) == []
    (first, _) = bench.deliver(A, ONE, TWO)
    assert bench.verdict(first) == [request(B, THREE, small)]


def test_one_object_above_the_bound_is_in_flight_and_delays_no_other() -> None:
    bench = Bench(peer_bytes=200, total_bytes=200).join(A, B, C)
    huge, huger = make(1, size=201), make(2, size=5_000)
    assert bench.announce(A, huge, THREE) == [request(A, huge)]
    assert bench.announce(B, huger, FOUR) == [request(B, FOUR)]
    assert bench.announce(C, huger, THREE) == [request(C, THREE)]
    bench.verdict(*bench.deliver(B, FOUR))
    bench.verdict(*bench.deliver(C, THREE))
    assert bench.tick(1.0) == [], "one such object at a time"
    assert bench.verdict(*bench.deliver(A, huge)) == [request(B, huger)]


def test_an_object_above_the_bound_waits_for_a_peer_with_nothing_in_flight() -> None:
    bench = Bench(peer_bytes=200).join(A)
    huge = make(5, size=201)
    assert bench.announce(A, ONE, huge) == [request(A, ONE)]
    assert bench.verdict(*bench.deliver(A, ONE)) == [request(A, huge)]


def test_an_object_that_is_too_large_is_reported_and_acknowledged() -> None:
    bench = Bench(max_object_bytes=99).join(A)
    assert bench.announce(A, ONE) == [TooLarge(A, id_of(ONE), 100)]
    assert bench.fetcher.outstanding(A) == []


def test_what_is_in_the_pool_is_acknowledged_and_what_another_peer_fetches_is_not() -> None:
    bench = Bench().join(A, B)
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
    bench = Bench().join(A)
    reply = encode(MsgReplyObjectIds((Announcement(id_of(ONE), 100),)))
    sent = [decode(State.IDLE, one.data) for one in bench.fetcher.receive(A, reply, 0.0) if isinstance(one, Send)]
    assert sent == [MsgRequestObjects((id_of(ONE),)), MsgRequestObjectIds(blocking=False, ack=0, req=49)]


def test_requests_in_flight_are_bounded_and_the_rest_is_sent_later() -> None:
    bench = Bench(max_unacked=2, objects_per_request=1).join(A)
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
    bench = Bench().join(A)
    assert bench.announce(A, ONE) == [request(A, ONE)]
    assert bench.read(bench.fetcher.finish(A, 0.0)) == []
    (copy,) = bench.deliver(A, ONE)
    assert bench.announce(A, TWO) == [(A, MsgDone()), Close(A)]
    assert bench.verdict(copy) == []
    assert list(bench.pool.bodies) == [id_of(ONE)]


def test_a_blocked_link_is_dropped_at_its_end() -> None:
    bench = Bench().join(A)
    assert bench.read(bench.fetcher.finish(A, 0.0)) == [Close(A)]
    assert bench.fetcher.finish(A, 0.0) == []


def test_a_violation_names_the_peer_and_touches_no_other_link() -> None:
    bench = Bench().join(A, B)
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
