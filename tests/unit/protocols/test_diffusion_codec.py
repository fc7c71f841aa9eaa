"""Bytes of object diffusion: limits to the byte, lengths judged where they are declared, costs."""

from __future__ import annotations

import tracemalloc

import pytest

from cardinal.errors import EncodeError, ViolationError
from cardinal.protocols import cbor
from cardinal.protocols.diffusion import (
    Announcement,
    Decoder,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    decode,
    encode,
)
from cardinal.protocols.diffusion.codec import LIMITS, objects_size

ONE = ObjectId(18_000_000, bytes(range(32)))
LIST_IN_OBJECTS = bytes.fromhex("82049f")


def violation(state: State, data: bytes, *, limit: int | None = None, items: int | None = None) -> str | None:
    """The name of the rule that the bytes break so far."""
    try:
        Decoder(state, limit=limit, items=items).feed(data)
    except ViolationError as error:
        return error.violation
    return None


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (MsgInit(18_000_000), "82001a0112a880"),
        (MsgRequestObjectIds(blocking=False, ack=3, req=50), "8401f4031832"),
        (MsgReplyObjectIds((Announcement(ONE, 310_000),)), "82029f831a0112a8805820" + ONE.hash.hex() + "1a0004baf0ff"),
        (MsgRequestObjects((ONE,)), "82039f821a0112a8805820" + ONE.hash.hex() + "ff"),
        (MsgReplyObjects((b"abc",)), "82049f43616263ff"),
        (MsgDone(), "8105"),
    ],
)
def test_the_examples_of_the_fact_sheet(message: Message, written: str) -> None:
    assert encode(message).hex() == written


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (MsgInit(2**64), "lowest"),
        (MsgInit(-1), "lowest"),
        (MsgRequestObjectIds(blocking=True, ack=2**16, req=1), "ack"),
        (MsgRequestObjectIds(blocking=True, ack=0, req=2**16), "req"),
        (MsgRequestObjects((ObjectId(2**64, bytes(32)),)), "number"),
        (MsgRequestObjects((ObjectId(1, bytes(31)),)), "hash"),
        (MsgReplyObjectIds((Announcement(ONE, 2**32),)), "size"),
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


def test_nothing_may_come_after_the_end() -> None:
    for message in (MsgDone(), MsgInit(), MsgRequestObjects((ONE,))):
        assert violation(State.DONE, encode(message)) == "DecoderFailure"


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
