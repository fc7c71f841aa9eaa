"""Frames of the mesh: shapes and ranges that are refused, in both directions, and the limit of a length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import EncodeError, ViolationError
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
    with pytest.raises(ViolationError, match=r"DecoderFailure.*1 bytes after the frame"):
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
