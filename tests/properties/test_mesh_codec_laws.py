"""Laws of the mesh's bytes: round trip, one encoding alone, every split, agreement with cbor2, mutations."""

from __future__ import annotations

from itertools import combinations
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ViolationError
from cardinal.protocols import cbor
from cardinal.protocols.mesh import (
    Ack,
    Begin,
    Decoder,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Refusal,
    Refused,
    Welcome,
    decode,
    encode,
)
from examples import examples

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]
WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from(EDGES))
NUMBERS = WORDS.filter(bool)
NAMES = st.text("abcxyz019-", min_size=1, max_size=32)
NONCES = st.binary(min_size=16, max_size=16)
SIGNATURES = st.binary(min_size=64, max_size=64)
PAYLOADS = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * size for size in (255, 256, 65_536)]))
HASHES = st.binary(min_size=32, max_size=32)

FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, HASHES, NAMES, NAMES, st.lists(WORDS, max_size=4).map(tuple), NONCES, SIGNATURES),
    st.builds(Welcome, NAMES, NAMES, WORDS, NONCES, SIGNATURES),
    st.builds(Begin, SIGNATURES),
    st.builds(Refused, st.sampled_from(Refusal), st.text(max_size=40).filter(str.isprintable)),
    st.builds(Message, NUMBERS, WORDS, PAYLOADS, SIGNATURES),
    st.builds(Heartbeat, NUMBERS, SIGNATURES),
    st.builds(Ack, NUMBERS, SIGNATURES),
)
DOCUMENTED = ("DecoderFailure", "ExceededSizeLimit", "Incomplete")


def outcome(data: bytes, limit: int = 2**20) -> list[Frame] | str:
    """The frames of closed bytes, or the name of the rule that they break."""
    return in_pieces([data], limit)


def in_pieces(pieces: list[bytes], limit: int = 2**20) -> list[Frame] | str:
    decoder, found = Decoder(limit), list[Frame]()
    try:
        for piece in pieces:
            found += decoder.feed(piece)
    except ViolationError as error:
        assert error.violation in DOCUMENTED  # noqa: PT017 - all that there is
        return error.violation
    return "Incomplete" if decoder.rest else found


@given(FRAMES)
def test_a_frame_survives_the_round_trip(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


SMALL = [
    Hello(b"h" * 32, "a", "node-2", (1, 300), b"n" * 16, b"s" * 64),
    Welcome("node-2", "a", 1, b"n" * 16, b"s" * 64),
    Begin(b"s" * 64),
    Refused(Refusal.CLUSTER, "überall"),
    Message(24, 5, b"payload", b"s" * 64),
    Heartbeat(256, b"s" * 64),
    Ack(65_536, b"s" * 64),
]


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("after", [[], [Heartbeat(1, b"s" * 64)]], ids=["alone", "followed"])
def test_every_split_in_two_and_three_pieces_reads_the_same(frame: Frame, after: list[Frame]) -> None:
    data = b"".join(map(encode, [frame, *after]))
    expected = [frame, *after]
    for first, second in combinations(range(0, len(data) + 1, 2 if after else 1), 2):
        assert in_pieces([data[:first], data[first:second], data[second:]]) == expected
    assert in_pieces([data[at : at + 1] for at in range(len(data))]) == expected


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
def test_every_prefix_is_incomplete(frame: Frame) -> None:
    data = encode(frame)
    for end in range(len(data)):
        with pytest.raises(ViolationError, match="Incomplete"):
            decode(data[:end])
    assert {outcome(data[:end]) == "Incomplete" for end in range(1, len(data))} == {True}


@pytest.mark.parametrize("frame", SMALL, ids=lambda frame: type(frame).__name__)
def test_a_shortened_body_with_a_length_that_fits_is_no_frame(frame: Frame) -> None:
    body = encode(frame)[4:]
    for end in range(len(body)):
        assert outcome(end.to_bytes(4, "big") + body[:end]) == "DecoderFailure"


@given(FRAMES, st.data())
@settings(max_examples=examples(400))
def test_mutations_raise_the_documented_errors_alone_whatever_the_pieces(frame: Frame, data: st.DataObject) -> None:
    mutated = bytearray(encode(frame)[:400])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        end = data.draw(st.integers(at, min(len(mutated), at + 4)))
        mutated[at:end] = data.draw(st.binary(max_size=4))
    cut = data.draw(st.integers(0, len(mutated)))
    closed = bytes(mutated)
    found = outcome(closed)
    assert found == in_pieces([closed[:cut], closed[cut:]])
    if not isinstance(found, str):
        assert b"".join(map(encode, found)) == closed, "a frame has one encoding"


@given(st.binary(max_size=60))
def test_noise_raises_the_documented_errors_alone(noise: bytes) -> None:
    found = outcome(len(noise).to_bytes(4, "big") + noise)
    assert isinstance(found, str) or list(map(decode, map(encode, found))) == found


# --- values, with cbor2 as oracle --------------------------------------------------------------------------

LEAVES = st.one_of(WORDS, st.binary(max_size=30), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


def arrays(items: st.SearchStrategy[Any], depth: int) -> st.SearchStrategy[Any]:
    inner = items if depth == 1 else st.one_of(items, arrays(items, depth - 1))
    return st.lists(inner, max_size=4)


VALUES = st.one_of(LEAVES, arrays(LEAVES, 4))


@pytest.fixture(scope="module")
def cbor2() -> ModuleType:
    return pytest.importorskip("cbor2", reason="the oracle of these tests is cbor2, of the extra 'dev'")


@given(VALUES)
def test_values_are_written_and_read_as_by_cbor2(cbor2: ModuleType, value: object) -> None:
    data = cbor.dump(value)
    assert data == cbor2.dumps(value)
    assert cbor.load(data) == value == cbor2.loads(data)


@given(VALUES, st.data())
@settings(max_examples=examples(400))
def test_what_is_read_here_is_read_the_same_by_cbor2_and_has_one_encoding(
    cbor2: ModuleType, value: object, data: st.DataObject
) -> None:
    mutated = bytearray(cbor.dump(value))
    for _ in range(data.draw(st.integers(0, 2))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = cbor.load(bytes(mutated))
    except ViolationError as error:
        assert error.violation == "DecoderFailure"  # noqa: PT017 - all that there is
        return
    assert cbor2.loads(bytes(mutated)) == found
    assert cbor.dump(found) == bytes(mutated)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "end inside"),
        ("1801", "not the shortest"),
        ("190018", "not the shortest"),
        ("1a00000100", "not the shortest"),
        ("1b0000000000000100", "not the shortest"),
        ("580100", "not the shortest"),
        ("18", "end inside"),
        ("1c", "additional information 28"),
        ("9f01ff", "additional information 31"),
        ("5f4100ff", "additional information 31"),
        ("20", "major type 1"),
        ("a0", "major type 5"),
        ("c000", "major type 6"),
        ("f4", "major type 7"),
        ("f97e00", "major type 7"),
        ("0000", "1 bytes after"),
        ("4200", "end inside"),
        ("8200", "end inside"),
        ("9bffffffffffffffff00", "end inside"),
        ("61ff", "not UTF-8"),
        ("8181818180", "too deep"),
    ],
)
def test_what_the_subset_lacks_is_refused(data: str, reason: str) -> None:
    with pytest.raises(ViolationError, match=reason) as refused:
        cbor.load(bytes.fromhex(data))
    assert refused.value.violation == "DecoderFailure"
