"""Messages of a gRPC stream, by every split of their bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_ingest.rpc.messages import PREFIX, MessageReader
from cardinal_ingest.rpc.status import Code, RpcError, error_of, trailers


def framed(*messages: bytes) -> bytes:
    return b"".join(PREFIX.pack(0, len(message)) + message for message in messages)


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(0, 150), max_size=12))
def test_messages_are_the_same_whatever_the_pieces(messages: list[bytes], cuts: list[int]) -> None:
    data, reader, found = framed(*messages), MessageReader(20), []
    ends = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(ends):
        reader.feed(data[start:end])
        while (message := reader.take()) is not None:
            found.append(message)
    assert found == messages
    assert reader.held == 0


def test_a_message_above_the_limit_is_refused_before_it_comes() -> None:
    reader = MessageReader(4)
    reader.feed(PREFIX.pack(0, 5))
    with pytest.raises(RpcError, match="5 bytes is larger than the limit of 4") as refused:
        reader.take()
    assert refused.value.code is Code.RESOURCE_EXHAUSTED


def test_a_compressed_message_is_refused() -> None:
    reader = MessageReader(4)
    reader.feed(PREFIX.pack(1, 1))
    with pytest.raises(RpcError, match="must not be compressed") as refused:
        reader.take()
    assert refused.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_a_status_survives_its_trailers(code: Code) -> None:
    found = error_of(dict(trailers(code, "100 % of ü")))
    assert found is not None
    assert (found.code, found.details) == (code, "100 % of ü")


@pytest.mark.parametrize("status", ["", "99", "x", "-1", "²"])
def test_a_status_that_is_none_is_unknown(status: str) -> None:
    found = error_of({"grpc-status": status})
    assert found is not None
    assert found.code is Code.UNKNOWN
    assert error_of({"grpc-status": "0"}) is None
