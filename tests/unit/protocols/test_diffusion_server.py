"""Server of object diffusion: its queue, its pins, what waits; each rule and each order of rules is a vector, too."""

from __future__ import annotations

import tracemalloc

import pytest

from cardinal.errors import ConfigurationError, ViolationError
from cardinal.protocols.diffusion import (
    Announcement,
    DiffusionSettings,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    Server,
    State,
    decode,
    encode,
)
from diffusing import Pool, id_of, make, written

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


NO_IDS = encode(MsgReplyObjectIds(()))


@pytest.mark.parametrize(
    ("request_", "violation"),
    [
        # the first rule that a request breaks counts: each breaks as many of the later ones as it can
        (ids(4, 60_000), "AckedTooManyObjectIds"),
        (ids(4, 0, blocking=True), "AckedTooManyObjectIds"),
        (ids(1, 4, blocking=True), "RequestedTooManyObjectIds"),
        (ids(3, 6), "RequestedTooManyObjectIds"),
        (ids(0, 0, blocking=True), "RequestedNothing"),
        (ids(3, 0, blocking=True), "RequestedNothing"),
        (ids(2, 1, blocking=True), "RequestBlocking"),
        (ids(0, 0), "RequestedNothing"),
        (ids(3, 0), "RequestNonBlocking"),
        (ids(3, 5), "RequestNonBlocking"),
        (objects(), "RequestedNothing"),
        (objects(7, 7), "RequestedDuplicateObject"),
        (objects(0, 0), "RequestedDuplicateObject"),
        (objects(0, 1, 2, 7), "RequestedUnavailableObject"),
        (objects(0, 1, 2), "RequestedTooManyBytes"),
    ],
)
def test_the_first_rule_that_a_request_breaks_closes_the_link(request_: Message, violation: str) -> None:
    server, pool = begun(reply_limit=40)
    assert refused(server, request_) == violation
    server.close()
    assert pool.pinned == 0


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


def test_a_second_init_is_no_message() -> None:
    server, _ = begun()
    with pytest.raises(ViolationError, match="no message of length 1 and tag 0 in StIdle"):
        server.receive(encode(MsgInit()))


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


def test_objects_are_announced_in_order_of_arrival_and_past_what_is_below_the_lowest() -> None:
    pool = Pool(*(BODIES[place] for place in (7, 0, 1, 6, 2, 5)))
    server = opened(pool, lowest=6)
    assert ask(server, ids(0, 2, blocking=True)) == encode(announced(7, 6))
    assert ask(server, ids(0, 3)) == encode(announced(5))
    assert ask(server, ids(0, 2)) == NO_IDS


def test_pipelined_requests_are_answered_in_order_each_checked_when_its_turn_comes() -> None:
    server, _ = begun()
    out = ask(server, objects(2), ids(1, 3), objects(0 + 1, 3))
    assert out == encode(MsgReplyObjects((BODIES[2],))) + encode(announced(3, 4, 5)) + encode(
        MsgReplyObjects((BODIES[1], BODIES[3]))
    )
    assert server.outstanding == IDS[1:6]


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
