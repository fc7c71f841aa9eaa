"""Client of object diffusion: the mirror of one server, its checks in order, the request for ids that is due."""

from __future__ import annotations

import pytest

from cardinal.errors import ViolationError
from cardinal.protocols.diffusion import (
    Announcement,
    Client,
    DiffusionSettings,
    Message,
    MsgDone,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    ObjectId,
    State,
    TooLarge,
    Verify,
    decode,
    encode,
)
from diffusing import id_of, identify, make

BODIES = [make(number, b"body" * number) for number in range(1, 9)]
IDS = [id_of(body) for body in BODIES]
NOW = 100.0


def client(**settings: float) -> Client:
    return Client("a", identify, DiffusionSettings(**({"max_unacked": 5, "ids_per_request": 5} | settings)))  # type: ignore[arg-type]


def announced(*places: int) -> Message:
    return MsgReplyObjectIds(tuple(Announcement(IDS[place], len(BODIES[place])) for place in places))


def delivered(*places: int) -> Message:
    return MsgReplyObjects(tuple(BODIES[place] for place in places))


def begun(*places: int, **settings: float) -> Client:
    """A client with these ids outstanding."""
    one = client(**settings)
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


def ids(ack: int, req: int, *, blocking: bool = False) -> Message:
    return MsgRequestObjectIds(blocking, ack, req)


def objects(one: Client, *places: int, now: float = NOW) -> None:
    one.request_objects(tuple(IDS[place] for place in places), now)


# --- checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "violation"),
    [
        # the first rule that a reply breaks counts
        ((0, 1, 1, 2), "ObjectIdsNotRequested"),
        ((0, 0, 1), "ObjectIdsDuplicate"),
        ((3, 0), "ObjectIdsAlreadyKnown"),
    ],
)
def test_the_first_rule_that_announcements_break_counts(places: tuple[int, ...], violation: str) -> None:
    one = begun(0)
    one.request_ids(0, 3, NOW, blocking=False)
    assert broken(one, announced(*places)) == violation


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
    one = client()
    one.request_ids(0, 2, NOW, blocking=True)
    sizes = (Announcement(id_of(SHORT), len(SHORT) + 1), Announcement(IDS[1], len(BODIES[1])))
    assert take(one, MsgReplyObjectIds(sizes)) == []
    one.request_objects((id_of(SHORT), IDS[1]), NOW)
    assert broken(one, MsgReplyObjects(tuple(bodies))) == violation


def test_bytes_that_nothing_was_requested_for_are_a_violation() -> None:
    one = client()
    assert list(one.feed(b"", NOW)) == []
    with pytest.raises(ViolationError, match="UnexpectedReply"):
        list(one.feed(b"\x82", NOW))
    one = client()
    one.request_ids(0, 1, NOW, blocking=True)
    with pytest.raises(ViolationError, match="UnexpectedReply"):
        list(one.feed(encode(announced(0)) + b"\x82", NOW))
    one = client()
    assert broken(one, announced(0)) == "UnexpectedReply"


def test_what_came_before_a_violation_is_used_however_the_bytes_arrive() -> None:
    one = begun(0, 1)
    objects(one, 0)
    objects(one, 1)
    actions = one.feed(encode(delivered(0)) + encode(announced(1)), NOW)
    assert next(actions) == Verify("a", IDS[0], BODIES[0])
    with pytest.raises(ViolationError, match="DecoderFailure"):
        next(actions)


def test_a_reply_with_objects_has_exactly_the_announced_bytes() -> None:
    one = begun(0, 1)
    objects(one, 0)
    with pytest.raises(ViolationError, match="ExceededSizeLimit"):
        take(one, MsgReplyObjects((BODIES[0] + b"x",)))
    one = begun(0, 1)
    objects(one, 0, 1)
    with pytest.raises(ViolationError, match="more than 2 items"):
        take(one, MsgReplyObjects((b"",) * 3))


def test_an_object_above_the_bound_is_reported() -> None:
    one = client(max_object_bytes=10)
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
    one = client()
    one.request_ids(0, 1, NOW, blocking=True)
    assert one.blocked
    assert not late(one, NOW + 1e6)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(1, 10), (2_500_000 - 9, 10), (2_500_000 - 8, 20), (5_000_000 - 9, 20), (5_000_000 - 8, 30), (131_072_000, 530)],
)
def test_a_large_object_has_more_time(size: int, seconds: int) -> None:
    one = client()
    one.request_ids(0, 1, NOW, blocking=True)
    assert take(one, MsgReplyObjectIds((Announcement(IDS[0], size),))) == []
    objects(one, 0)
    assert not late(one, NOW + seconds - 0.1)
    assert late(one, NOW + seconds)


# --- requests for ids --------------------------------------------------------------------------------------


def test_the_window_counts_ids_that_are_in_flight() -> None:
    one = begun(0, 1, max_unacked=6, ids_per_request=3)
    assert next_ids(one, follows_objects=True) == ids(0, 3)
    assert next_ids(one, follows_objects=True) == ids(0, 1)
    assert next_ids(one, follows_objects=True) is None
    assert next_ids(one, 0) == ids(1, 1)
    assert next_ids(one, 0, 1) is None


def test_an_acknowledgement_without_a_request_is_sent_when_the_window_is_full() -> None:
    one = begun(0, 1, max_unacked=3)
    assert next_ids(one, follows_objects=True) == ids(0, 1)
    one.request_ids(1, 1, NOW, blocking=False)
    assert take(one, announced(2)) == []
    assert take(one, announced(3)) == []
    assert next_ids(one, follows_objects=True) is None
    one.request_objects((IDS[3],), NOW)
    assert next_ids(one, 1) == ids(1, 1)


def test_ids_are_not_polled_while_a_reply_is_in_flight() -> None:
    one = begun(0, 1)
    objects(one, 0)
    assert next_ids(one, now=NOW + 5) is None


def test_a_server_with_further_ids_is_asked_at_once_another_one_after_a_while() -> None:
    one = begun(0, poll_interval=0.5)
    assert next_ids(one) == ids(0, 4), "the last reply was a full one"
    assert take(one, announced(1, 2)) == []
    assert next_ids(one, now=NOW + 0.49) is None
    assert next_ids(one, now=NOW + 0.5) == ids(0, 2)


def test_requests_in_flight_are_bounded() -> None:
    one = begun(0, 1, max_unacked=2)
    for _ in range(3):
        one.request_ids(0, 0, NOW, blocking=False)
    assert not one.full
    one.request_ids(0, 0, NOW, blocking=False)
    assert one.full
    assert one.in_flight == 4
    assert next_ids(one, 0) is None


def test_a_message_of_the_other_side_is_not_a_reply() -> None:
    one = client()
    one.request_ids(0, 1, NOW, blocking=True)
    with pytest.raises(ViolationError, match="DecoderFailure"):
        take(one, MsgDone())


def test_a_body_is_not_in_a_repr() -> None:
    assert "xyz" not in repr(Verify("a", ObjectId(1, bytes(32)), b"xyz"))
