"""Laws of object diffusion's bytes: round trip, every split, agreement with cbor2, mutations."""

from __future__ import annotations

from io import BytesIO
from itertools import combinations
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ViolationError
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
from examples import examples

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]


def words(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([edge for edge in EDGES if edge < 2**bits]))


IDS = st.builds(ObjectId, words(64), st.binary(min_size=32, max_size=32))
OBJECTS = st.one_of(st.binary(max_size=30), st.sampled_from([b"x" * size for size in (23, 24, 255, 256, 65_536)]))
ANNOUNCEMENTS = st.lists(st.builds(Announcement, IDS, words(32)), max_size=6).map(tuple)

MESSAGES: st.SearchStrategy[tuple[State, Message]] = st.one_of(
    st.tuples(st.just(State.INIT), st.builds(MsgInit, words(64))),
    st.tuples(st.just(State.IDLE), st.builds(MsgRequestObjectIds, st.booleans(), words(16), words(16))),
    st.tuples(st.just(State.IDLE), st.builds(MsgRequestObjects, st.lists(IDS, max_size=6).map(tuple))),
    st.tuples(st.just(State.IDLE), st.just(MsgDone())),
    st.tuples(st.just(State.NON_BLOCKING), st.builds(MsgReplyObjectIds, ANNOUNCEMENTS)),
    st.tuples(st.just(State.BLOCKING), st.builds(MsgReplyObjectIds, ANNOUNCEMENTS.filter(bool))),
    st.tuples(st.just(State.OBJECTS), st.builds(MsgReplyObjects, st.lists(OBJECTS, max_size=4).map(tuple))),
)


def outcome(state: State, data: bytes) -> Message | str:
    """The message of a closed frame, or the name of the rule that it breaks."""
    try:
        return decode(state, data)
    except ViolationError as error:
        assert error.violation in ("DecoderFailure", "ExceededSizeLimit", "Incomplete")  # noqa: PT017 - all that there is
        return error.violation


def in_pieces(state: State, pieces: list[bytes]) -> Message | str:
    """The outcome of the same bytes, fed in pieces."""
    decoder, message = Decoder(state), None
    try:
        for piece in pieces:
            if message is not None and piece:
                return "DecoderFailure"
            message = decoder.feed(piece) if message is None else message
    except ViolationError as error:
        return error.violation
    if message is not None and decoder.rest:
        return "DecoderFailure"
    return message or "Incomplete"


@given(MESSAGES)
def test_a_message_survives_the_round_trip(case: tuple[State, Message]) -> None:
    state, message = case
    assert decode(state, encode(message)) == message


@given(MESSAGES)
def test_a_message_is_one_only_in_its_states(case: tuple[State, Message]) -> None:
    home, message = case
    for state in State:
        both = isinstance(message, MsgReplyObjectIds) and {state, home} == {State.BLOCKING, State.NON_BLOCKING}
        if state is not home and not both:
            assert outcome(state, encode(message)) == "DecoderFailure"


SMALL = [
    (State.INIT, MsgInit(18_000_000)),
    (State.IDLE, MsgRequestObjectIds(blocking=False, ack=3, req=50)),
    (State.IDLE, MsgRequestObjects((ObjectId(24, b"h" * 32),))),
    (State.BLOCKING, MsgReplyObjectIds((Announcement(ObjectId(2**16, b"h" * 32), 310_000),) * 2)),
    (State.OBJECTS, MsgReplyObjects((b"abc", b"", b"d" * 24))),
    (State.IDLE, MsgDone()),
]


@pytest.mark.parametrize(("state", "message"), SMALL)
@pytest.mark.parametrize("after", [b"", b"\x00"])
def test_every_split_in_two_and_three_pieces_reads_the_same(state: State, message: Message, after: bytes) -> None:
    data = encode(message) + after
    expected = outcome(state, data)
    assert expected == ("DecoderFailure" if after else message)
    for first, second in combinations(range(len(data) + 1), 2):
        assert in_pieces(state, [data[:first], data[first:]]) == expected
        assert in_pieces(state, [data[:first], data[first:second], data[second:]]) == expected
    assert in_pieces(state, [data[at : at + 1] for at in range(len(data))]) == expected


@pytest.mark.parametrize(("state", "message"), SMALL)
def test_every_prefix_is_incomplete(state: State, message: Message) -> None:
    data = encode(message)
    assert {outcome(state, data[:end]) for end in range(len(data))} == {"Incomplete"}


@given(MESSAGES, st.data())
@settings(max_examples=examples(400))
def test_mutations_raise_the_documented_errors_alone_whatever_the_pieces(
    case: tuple[State, Message], data: st.DataObject
) -> None:
    state, message = case
    mutated = bytearray(encode(message)[:400])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        end = data.draw(st.integers(at, min(len(mutated), at + 4)))
        mutated[at:end] = data.draw(st.binary(max_size=4))
    state = data.draw(st.sampled_from([state, state, *State]))
    cut = data.draw(st.integers(0, len(mutated)))
    frame = bytes(mutated)
    assert outcome(state, frame) == in_pieces(state, [frame[:cut], frame[cut:]])


@given(st.sampled_from(list(State)), st.binary(max_size=60))
def test_noise_raises_the_documented_errors_alone(state: State, noise: bytes) -> None:
    found = outcome(state, noise)
    if not isinstance(found, str):
        assert decode(state, encode(found)) == found


# --- cbor2 as oracle ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cbor2() -> ModuleType:
    return pytest.importorskip("cbor2", reason="the oracle of these tests is cbor2, of the extra 'dev'")


def term_of(message: Message) -> list[Any]:
    """The message as a CBOR term."""
    match message:
        case MsgInit(lowest):
            return [0, lowest] if lowest else [0]
        case MsgRequestObjectIds(blocking, ack, req):
            return [1, blocking, ack, req]
        case MsgReplyObjectIds(announcements):
            return [2, [[one.number, one.hash, size] for one, size in announcements]]
        case MsgRequestObjects(ids):
            return [3, [list(one) for one in ids]]
        case MsgReplyObjects(objects):
            return [4, list(objects)]
    return [5]


def composed(cbor2: ModuleType, message: Message) -> bytes:
    """The bytes as the oracle writes their parts; it cannot write the outer array definite and the inner one not."""
    head, *fields = term_of(message)
    parts = [bytes((0x80 | 1 + len(fields),)), cbor2.dumps(head)]
    for field in fields:
        if isinstance(field, list):
            parts += [b"\x9f", *map(cbor2.dumps, field), b"\xff"]
        else:
            parts.append(cbor2.dumps(field))
    return b"".join(parts)


def listed(term: object) -> object:
    return [listed(one) for one in term] if isinstance(term, (list, tuple)) else term


@given(MESSAGES)
def test_the_bytes_are_those_of_cbor2(cbor2: ModuleType, case: tuple[State, Message]) -> None:
    _, message = case
    data = encode(message)
    assert data == composed(cbor2, message)
    stream = BytesIO(data)
    assert listed(cbor2.load(stream)) == term_of(message)
    assert stream.read() == b""


@given(MESSAGES, st.data())
@settings(max_examples=examples(300))
def test_what_reads_here_reads_the_same_in_cbor2(
    cbor2: ModuleType, case: tuple[State, Message], data: st.DataObject
) -> None:
    state, message = case
    mutated = bytearray(encode(message)[:400])
    for _ in range(data.draw(st.integers(0, 2))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    found = outcome(state, bytes(mutated))
    if not isinstance(found, str):
        read = listed(cbor2.loads(bytes(mutated)))
        assert read in (term_of(found), [0, 0] if found == MsgInit() else None)
