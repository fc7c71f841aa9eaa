"""The cursor's text: round trip, size, and what is no cursor."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from io import BytesIO

import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import CursorInvalidError, CursorMismatchError
from cardinal.protocols.streams import (
    BlockRef,
    Cursor,
    Finality,
    FinalityViolated,
    Follower,
    FollowerSettings,
    Payload,
    Record,
    Reorg,
    encode,
    split,
)
from cardinal.protocols.streams.cursor import _SCHEMA, _check

hashes = st.binary(min_size=32, max_size=32)
prefixes = st.frozensets(st.binary(min_size=8, max_size=8), max_size=4)
offsets = st.integers(0, 2**60)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    numbers = st.one_of(st.integers(0, 5), st.integers(64, 70), st.integers(0, 10_000))
    places = draw(st.lists(st.tuples(st.sampled_from(["a", "b-c", "d"]), numbers), unique=True))
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
        draw(st.sampled_from([None, Finality(1, None), Finality(None, 2), Finality(7, 3)])),
        draw(st.sampled_from([None, FinalityViolated(BlockRef(9, bytes(32)), 7)])),
        BlockRef(draw(st.integers(0, 9)), draw(hashes)) if ring else None,
        frozenset(ring[::2]) if draw(st.booleans()) else frozenset(),
        tuple(BlockRef(1, block) for block in draw(st.lists(hashes, max_size=3, unique=True))),
        draw(st.one_of(st.just(b""), hashes.filter(lambda root: root not in ring))) if ring else b"",
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


def as_text(body: bytes) -> str:
    """A text with a good checksum."""
    return "c1:" + base64.urlsafe_b64encode(_check(body) + body).rstrip(b"=").decode()


@given(st.text(max_size=50) | st.binary(max_size=80).map(lambda raw: f"c1:{base64.b64encode(raw).decode()}"))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalidError):
        Cursor.parse(text)


@given(st.binary(max_size=120).map(as_text))
def test_a_good_checksum_over_nonsense_is_refused_too(text: str) -> None:
    with pytest.raises(CursorInvalidError):
        Cursor.parse(text)


def test_a_later_version_is_named() -> None:
    with pytest.raises(CursorInvalidError, match="version 'c9', this release reads c1"):
        Cursor.parse("c9:abc")


def test_a_cursor_of_another_chain_or_with_other_options_is_refused() -> None:
    settings = FollowerSettings("evm", "evm:1")
    cursor = Follower(settings).cursor()
    with pytest.raises(CursorMismatchError, match="belongs to evm on evm:1, not to evm on evm:5"):
        Follower(FollowerSettings("evm", "evm:5"), cursor)
    with pytest.raises(CursorMismatchError, match="another whitelist, reorg threshold"):
        Follower(FollowerSettings("evm", "evm:1", reorg_threshold=7), cursor)


# --- sense -------------------------------------------------------------------------------------------------


def forged(**changes: object) -> str:
    """A text with a good checksum, and fields that no consumer writes."""
    fields: dict[str, object] = {
        "lineage": bytes(16),
        "app": "evm",
        "chain": "evm:1",
        "seq": 5,
        "number": 7,
        "weight": b"\x07",
        "ring": bytes(32) + b"\1" * 32,
        "missing": [1],
        "topics": [{"name": "t", "next": [5, -1, 7], "back": [2, 0, 7]}],
        "open": bytes(8),
        "done": b"",
        "safe": 1,
        "finalized": None,
        "start": [{"number": 6, "hash": b"\1" * 32}],
        "root": b"\2" * 32,
        "violator": [],
        "violated": None,
        "channels": [],
    } | changes
    out = BytesIO()
    schemaless_writer(out, _SCHEMA, fields)
    return as_text(out.getvalue())


def ref(size: int = 32, fill: int = 0) -> dict[str, object]:
    return {"number": 1, "hash": bytes([fill]) * size}


def test_what_a_consumer_can_have_written_is_read() -> None:
    cursor = Cursor.parse(forged())
    assert cursor.next == {("t", 0): 5, ("t", 2): 7}
    assert cursor.floor == {("t", 0): 3, ("t", 2): 0}
    assert cursor.missing == {b"\1" * 32}
    assert str(cursor) == forged()


def test_a_cursor_that_names_every_number_without_a_partition_is_read() -> None:
    """As they were written before: 64 numbers of one place, and the 3 partitions of another."""
    following, back = [5, 6, *[-1] * 62, 7, 8, 9], [2, 0, *[0] * 62, 1, 0, 9]
    cursor = Cursor.parse(forged(topics=[{"name": "t", "next": following, "back": back}]))
    assert cursor.next == {("t", 0): 5, ("t", 1): 6, ("t", 64): 7, ("t", 65): 8, ("t", 66): 9}
    assert cursor.floor == {("t", 0): 3, ("t", 1): 6, ("t", 64): 6, ("t", 65): 8, ("t", 66): 0}
    assert Cursor.parse(str(cursor)) == cursor
    assert len(str(cursor)) < len(forged()) + 16


@pytest.mark.parametrize("first", [64, 1_000, 1_000_000])
def test_the_numbers_of_a_place_cost_nothing(first: int) -> None:
    """Two places of 7 topics with 2 partitions each, in 12 kilobytes with whatever else a cursor may hold."""
    places = [(f"topic-{index}", number) for index in range(7) for number in (0, 1, first, first + 1)]
    following = dict.fromkeys(places, 2**36)
    cursor = Cursor(bytes(16), "evm", "evm:1", 0, (), 0, following, following)
    near = dict.fromkeys(((topic, number % 62) for topic, number in places), 2**36)
    assert Cursor.parse(str(cursor)) == cursor
    assert len(str(cursor)) < len(str(replace(cursor, next=near, floor=near))) + 7 * 16


@pytest.mark.parametrize(
    "changes",
    [
        {"lineage": b"short"},
        {"seq": 1},
        {"seq": -1, "ring": b"", "number": -1, "start": [], "missing": [], "root": b""},
        {"number": -1},
        {"number": 0},
        {"number": -5, "ring": b"", "start": [], "missing": [], "root": b""},
        {"ring": bytes(33)},
        {"ring": bytes(64)},
        {"missing": [2]},
        {"missing": [-1]},
        {"topics": [{"name": "t", "next": [5], "back": [6]}]},
        {"topics": [{"name": "t", "next": [5], "back": [-1]}]},
        {"topics": [{"name": "t", "next": [-2], "back": [0]}]},
        {"topics": [{"name": "t", "next": [-2, 5], "back": [1, 0]}]},
        {"topics": [{"name": "t", "next": [-(2**31), 5], "back": [0, 0]}]},
        {"topics": [{"name": "t", "next": [5, 5], "back": [0]}]},
        {"topics": [{"name": "t", "next": [5], "back": [0]}] * 2},
        {"open": b"1234567"},
        {"done": b"123456789"},
        {"safe": -1},
        {"finalized": -7},
        {"start": []},
        {"start": [ref(), ref(fill=1)]},
        {"start": [ref(31)]},
        {"root": bytes(31)},
        {"root": b"\1" * 32},
        {"seq": 0, "ring": b"", "number": -1, "start": [], "missing": []},
        {"violated": 3},
        {"violator": [ref()]},
        {"channels": [ref(), ref()]},
        {"channels": [ref(fill=index) for index in range(17)]},
    ],
    ids=repr,
)
def test_what_no_consumer_can_have_written_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CursorInvalidError, match="contradict each other"):
        Cursor.parse(forged(**changes))


def test_a_real_cursor_at_the_limits_stays_below_12_kilobytes() -> None:
    """Threshold 128, 64 partitions, 160 side blocks, more open blocks than are named, 16 channels; real hashes."""
    rng = random.Random(7)
    settings = FollowerSettings("evm", "evm:1", prefixes=("p/",), default_topic="cardinal-1-block")
    follower = Follower(settings)
    topics = [(f"cardinal-1-topic-{index // 8}", index % 8) for index in range(64)]
    at = {place: rng.randrange(2**36) for place in topics}

    def take(key: bytes, value: bytes, place: tuple[str, int]) -> None:
        at[place] += rng.randrange(1, 200)
        record = Record(*place, at[place], key, value)
        at[place] += 1
        follower.step([record], at)

    def publish(number: int, parent: bytes, weight: int, *, whole: bool = True) -> bytes:
        payload = Payload(number, rng.randbytes(32), parent, weight, {"p/a": b"1", "p/b": b"2"})
        *content, batch = split(payload, {"p/": "t"}, "t")
        for message in content[: None if whole else 1]:
            take(message.key, message.value, rng.choice(topics))
        take(batch.key, batch.value, rng.choice(topics))
        return payload.hash

    chain = [publish(20_000_000, rng.randbytes(32), 2**70)]
    follower.step([], at, at)
    for number in range(20_000_001, 20_000_600):
        chain.append(publish(number, chain[-1], 2**70 + number))
    for index in range(160):
        publish(20_000_500 + index % 90, chain[499 + index % 90], 5)
    for _ in range(200):
        publish(20_000_599, rng.randbytes(32), 5, whole=False)
    for number in range(20_000_100, 20_000_116):
        ancestor = rng.randbytes(32)
        key, value = encode(Reorg(ancestor, number))
        follower.step([Record("cardinal-1-block", 0, number, key, value)], at)
    cursor = follower.cursor()
    assert (len(cursor.ring), len(cursor.next), len(cursor.open), len(cursor.channels)) == (129, 64, 64, 16)
    assert len(str(cursor)) < 12_000
    assert Cursor.parse(str(cursor)) == cursor
    assert Follower(settings, cursor).cursor().head == cursor.head
