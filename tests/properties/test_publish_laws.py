"""Laws of the publish codec and of items: every message comes back, every byte string is read or refused."""

from __future__ import annotations

import contextlib
import re

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import EncodeError, RemoteProtocolError
from cardinal.protocols.publish import (
    NONE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    EndStream,
    Header,
    Kind,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    decode_request,
    decode_response,
    encode,
    publish_pb2,
    read_item,
    read_set,
)
from model.publish_scenario import bytes_field, header_item, number_field, other_item, proof_item, varint

NUMBERS = st.integers(0, NONE) | st.sampled_from((0, 127, 128, 2**32, 2**63, NONE))
CODES = st.integers(-(2**31), 2**31 - 1)
ITEMS = st.one_of(
    st.builds(header_item, st.integers(0, NONE - 1)),
    st.builds(proof_item, NUMBERS),
    st.builds(other_item, st.integers(10, 2**29 - 1), st.integers(0, 40)),
)
REQUESTS = st.one_of(
    st.builds(BlockItemSet, st.lists(st.binary(max_size=30), max_size=8).map(tuple)),
    st.builds(BlockEnd, NUMBERS),
    st.builds(EndStream, CODES, NUMBERS, NUMBERS),
)
RESPONSES = st.one_of(
    *(st.builds(kind, NUMBERS) for kind in (Acknowledgement, SkipBlock, ResendBlock, BehindPublisher)),
    st.builds(EndOfStream, CODES, NUMBERS, NUMBERS),
)


@given(REQUESTS)
def test_every_request_comes_back(request: Request) -> None:
    assert decode_request(encode(request)) == request


@given(RESPONSES)
def test_every_response_comes_back(response: Response) -> None:
    assert decode_response(encode(response)) == response


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (decode_request, decode_response):
        with contextlib.suppress(RemoteProtocolError):
            message = read(data)
            assert message is None or read(encode(message)) == message
    assert isinstance(read_item(data), Header | Kind)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (BlockEnd(-1), "block_number"),
        (Acknowledgement(NONE + 1), "block_number"),
        (EndStream(1, 0, -1), "latest_block_number"),
        (EndStream(2**31), "end_code"),
        (EndOfStream(-(2**31) - 1, 0), "status"),
        (BlockItemSet(("item",)), "block_items"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_place_on_the_wire_is_refused(message: Request | Response, field: str) -> None:
    with pytest.raises(EncodeError) as refused:
        encode(message)
    assert refused.value.field == field


def is_one_field(item: bytes) -> bool:
    """Whether protobuf reads these bytes as a message of exactly one field."""
    message = publish_pb2.BlockEnd()  # it has no field but 1
    try:
        message.ParseFromString(bytes_field(15, b"") + item)
    except DecodeError:
        return False
    return True


@given(st.binary(max_size=12) | ITEMS)
@example(b"\x53\x08\x01\x54")  # a group, ended
@example(b"\x53\x53\x54\x08\x01\x54")  # a group inside
@example(b"\x53\x5b\x54\x5c")  # ended crosswise
@example(b"\x53\x08\x01")
@example(b"\x51" + bytes(8))
@example(b"\x51" + bytes(7))
@example(b"\x55" + bytes(4))
@example(b"\x50\x01")
@example(b"\x54")
@example(b"\x07")
@example(b"\x80\x80\x80\x80\x80\x01")
@example(b"\xfa\xff\xff\xff\x1f\x00")
@example(b"\x50" + b"\xff" * 10)
def test_an_item_that_protobuf_refuses_is_malformed(item: bytes) -> None:
    if read_item(item) is Kind.OTHER:
        assert is_one_field(item)
    elif not is_one_field(item):
        assert read_item(item) is Kind.MALFORMED


@given(NUMBERS, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=9))
def test_a_header_is_read_among_other_fields(number: int, block: bytes, parent: bytes, other: bytes) -> None:
    inside = bytes_field(7, other) + number_field(3, 1) + b"\x53\x54" + varint(3 << 3) + varint(number)
    inside += bytes_field(1001, block) + varint(1002 << 3) + b"\x05" + bytes_field(1002, parent)
    assert read_item(bytes_field(1, inside)) == Header(number, block, parent)


@pytest.mark.parametrize("inside", [b"\x18", b"\x1a\x01\x05", b"\x08\x80", b"\x22\x09ab", b"\x21ab"])
def test_a_header_that_cannot_be_read_is_malformed(inside: bytes) -> None:
    assert read_item(bytes_field(1, inside)) is Kind.MALFORMED


@pytest.mark.parametrize("tag", [b"\x53", b"\x0a"])
def test_what_is_read_field_by_field_is_bounded(tag: bytes) -> None:
    def read(size: int) -> Header | Kind:
        inside = b"\x20\x01" * size
        return read_item(tag + inside + b"\x54" if tag == b"\x53" else bytes_field(1, inside))

    assert read(32_700) in (Kind.OTHER, Header(0))
    assert read(32_800) is Kind.MALFORMED


@given(st.lists(ITEMS, max_size=6))
def test_a_set_is_a_header_then_content_then_proofs(items: list[bytes]) -> None:
    kinds = "".join("h" if isinstance(kind := read_item(item), Header) else kind.name[0] for item in items)
    allowed = bool(items) and re.fullmatch("h?O*P*", kinds) is not None
    found = read_set(items)
    assert (found is not None) is allowed
    if found is not None:
        assert found.size == sum(map(len, items))
        assert (found.proven, found.content) == (kinds.endswith("P"), "O" in kinds)
