"""JSON texts out of a stream, however it is cut and whatever stands between them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import NodeAnswerError
from cardinal_connectors.ethereum.rpc.json_stream import JsonFrames

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{}[]\n\té', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='k"}\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXTS = st.lists(st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6)


@given(texts=TEXTS, between=st.sampled_from(["", "\n", "\r\n", " "]), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_texts_are_found_wherever_the_stream_is_cut(texts: list[Any], between: str, cuts: list[int]) -> None:
    stream = "".join(json.dumps(text) + between for text in texts).encode()
    frames, found, at, turn = JsonFrames(most=1 << 20), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += frames.receive(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [json.loads(frame) for frame in found] == texts


def test_text_over_several_lines_is_one_text() -> None:
    shown = json.dumps({"id": 1, "result": ["0x1", {"a": None}]}, indent=2).encode()
    assert JsonFrames(most=1000).receive(shown) == [shown]


def test_text_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    frames = JsonFrames(most=100)
    frames.receive(b'["' + b"0" * 98)
    with pytest.raises(NodeAnswerError, match="longer than 100 bytes"):
        frames.receive(b"0")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
        JsonFrames(most=100).receive(b"HTTP/1.1 400 Bad Request\r\n")
