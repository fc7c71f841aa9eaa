"""The cursor's text: round trip, size, and what is no cursor."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import CursorError, CursorInvalidError, CursorMismatchError
from cardinal.protocols.streams import BlockRef, Cursor, Finality, FinalityViolated, Follower, FollowerSettings
from cardinal.protocols.streams.cursor import _check

hashes = st.binary(min_size=32, max_size=32)
prefixes = st.frozensets(st.binary(min_size=8, max_size=8), max_size=4)
offsets = st.integers(0, 2**60)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    places = draw(st.lists(st.tuples(st.sampled_from(["a", "b-c", "d"]), st.integers(0, 5)), unique=True))
    next_ = {place: draw(offsets) for place in places}
    number = draw(st.integers(10, 2**40))
    ring = draw(st.lists(hashes, max_size=5, unique=True))
    return Cursor(
        draw(st.binary(min_size=16, max_size=16)),
        "evm",
        "evm:1",
        len(ring) + draw(offsets),
        tuple(BlockRef(number - index, block) for index, block in enumerate(ring)),
        draw(st.integers(0, 2**256)),
        next_,
        {place: draw(st.integers(0, offset)) for place, offset in next_.items()},
        draw(prefixes),
        draw(prefixes),
        draw(st.sampled_from([None, Finality(1, None), Finality(None, 2), Finality(7, 3)])),
        draw(st.sampled_from([None, FinalityViolated(BlockRef(9, bytes(32)), 7)])),
        BlockRef(draw(st.integers(0, 9)), draw(hashes)) if ring else None,
        frozenset(ring[::2]) if draw(st.booleans()) else frozenset(),
        tuple(BlockRef(1, block) for block in draw(st.lists(hashes, max_size=3, unique=True))),
    )


@given(cursors())
def test_a_cursor_survives_its_text(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor
    assert Cursor.parse(f" {cursor}\n").head == cursor.head


@given(cursors(), st.data())
def test_a_cut_or_altered_cursor_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    text = str(cursor)
    at = data.draw(st.integers(3, len(text) - 1))
    with pytest.raises(CursorInvalidError):
        Cursor.parse(text[:at])
    other = "A" if text[at] != "A" else "B"
    altered = text[:at] + other + text[at + 1 :]
    if base64.urlsafe_b64decode(altered[3:] + "==") != base64.urlsafe_b64decode(text[3:] + "=="):
        with pytest.raises(CursorInvalidError):
            Cursor.parse(altered)


@given(st.one_of(st.text(max_size=50), st.binary(max_size=80).map(lambda raw: f"c1:{base64.b64encode(raw).decode()}")))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalidError):
        Cursor.parse(text)


@given(st.binary(max_size=120))
def test_a_good_checksum_over_nonsense_is_refused_too(body: bytes) -> None:
    text = base64.urlsafe_b64encode(_check(body) + body).rstrip(b"=").decode()
    with pytest.raises(CursorInvalidError):
        Cursor.parse(f"c1:{text}")


def test_a_later_version_is_named() -> None:
    with pytest.raises(CursorInvalidError, match="version 'c9' is not known"):
        Cursor.parse("c9:abc")


def test_a_cursor_of_another_chain_or_with_other_options_is_refused() -> None:
    settings = FollowerSettings("evm", "evm:1")
    cursor = Follower(settings).cursor()
    with pytest.raises(CursorMismatchError, match="belongs to evm on evm:1, not to evm on evm:5"):
        Follower(FollowerSettings("evm", "evm:5"), cursor)
    with pytest.raises(CursorMismatchError, match="another start, whitelist, threshold"):
        Follower(FollowerSettings("evm", "evm:1", reorg_threshold=7), cursor)
    with pytest.raises(CursorError):
        Follower(FollowerSettings("evm", "evm:1", start=BlockRef(1, bytes(32))), cursor)
