"""Shapes that no message, record, marker or position has."""

from __future__ import annotations

import pytest

from cardinal.errors import EncodeError, ViolationError
from cardinal.protocols.cbor import Value, dump
from cardinal.protocols.replication import (
    KINDS,
    NO_HASH,
    Answer,
    Block,
    Marker,
    Observed,
    Proposal,
    Propose,
    decode,
    decode_agreed,
    decode_marker,
    decode_record,
    encode,
    read_header,
)

HASH = b"\x07" * 32


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (0, ["eth"]),
        (6, ["eth"]),
        (1, "eth"),
        (1, ["eth"]),
        (1, ["eth", 5]),
        (1, [b"eth", []]),
        (1, ["eth", [[1, HASH, HASH, b"\x01", HASH]]]),
        (1, ["eth", [[1, HASH, HASH, b"\x00\x01", HASH, 5]]]),
        (1, ["eth", [[1, HASH, HASH, 1, HASH, 5]]]),
        (1, ["eth", [[1, HASH[1:], HASH, b"\x01", HASH, 5]]]),
        (1, ["eth", [[b"1", HASH, HASH, b"\x01", HASH, 5]]]),
        (2, ["eth", 1, HASH, 1, 2**32]),
        (3, ["eth", 1, 1, 2, []]),
        (4, ["eth", b"no header"]),
        (4, ["eth", dump(["cardinal/batch/2", HASH, "eth", 1, HASH, HASH, HASH, b"", []])]),
        (5, ["eth", 1, HASH, HASH]),
    ],
)
def test_no_message(kind: int, value: Value) -> None:
    with pytest.raises(ViolationError):
        decode(kind, dump(value))


@pytest.mark.parametrize("value", [1, [], [4], [b"1"], [[]], [1], [2, b"", "a", b""]])
def test_no_record(value: Value) -> None:
    with pytest.raises(ViolationError):
        decode_record(dump(value))


def test_no_marker_and_no_position() -> None:
    with pytest.raises(ViolationError):
        decode_marker(dump([2, HASH, "eth", 1, 1, HASH, "a"]))
    with pytest.raises(ViolationError):
        decode_agreed(bytes(11))
    with pytest.raises(ViolationError):
        read_header(dump("cardinal/batch/1"))


@pytest.mark.parametrize(
    "value",
    [
        Propose("eth", 2**64, NO_HASH, 0, 0),
        Propose("eth", -1, NO_HASH, 0, 0),
        Observed("eth", (Block(1, HASH, HASH, -1, HASH, 1),)),
        Marker(HASH, "eth", 1, -1, HASH, "a"),
    ],
)
def test_numbers_without_an_encoding(value: Propose | Observed | Marker) -> None:
    with pytest.raises(EncodeError):
        encode(value)


def test_weights_of_any_size() -> None:
    for weight in (0, 1, 255, 256, 2**80):
        message = Observed("eth", (Block(1, HASH, HASH, weight, HASH, 1),))
        assert decode(KINDS[Observed], encode(message)) == message


def test_answers() -> None:
    for answer in Answer:
        message = Proposal("eth", 1, 2, answer, ())
        assert decode(KINDS[Proposal], encode(message)) == message
