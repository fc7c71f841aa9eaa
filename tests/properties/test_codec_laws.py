"""Messages to bytes and back: what is written is read back, what is no message is a DecodeError and nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import DecodeError, EncodeError
from cardinal.protocols.streams import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    BlockRef,
    ChainUpdate,
    Heartbeat,
    Message,
    MissingPayload,
    Payload,
    Ping,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
    decode,
    encode,
)
from cardinal.protocols.streams.events import Change
from cardinal.protocols.streams.payload import PathMap
from cardinal.protocols.streams.types import PRODUCER_HEADER, is_sealed, path_bytes, path_text, producer_of
from cardinal.protocols.streams.wire.codec import encode_content
from cardinal.texts import Count

HASHES = st.binary(min_size=32, max_size=32)
PATHS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.binary(max_size=12).map(path_text))
INTS = st.integers(0, 2**31 - 1)
UPDATES = st.builds(Update, st.binary(max_size=40), st.integers(-(2**31), 2**31 - 1), st.booleans(), HASHES)
SECONDS = st.integers(-(2**62), 2**62)
OFFSETS = st.one_of(st.none(), st.integers(-64_800, 64_800).filter(lambda offset: not -120 < offset <= -60))

MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Batch,
        HASHES,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**512 - 1),
        HASHES,
        st.dictionaries(PATHS, UPDATES, max_size=4),
    ),
    st.builds(SubBatchHeader, HASHES, HASHES, INTS),
    st.builds(
        SubBatchMsg,
        HASHES,
        HASHES,
        INTS,
        st.lists(PATHS, max_size=3).map(tuple),
        st.dictionaries(PATHS, st.binary(max_size=9), max_size=4),
    ),
    st.builds(BatchMsg, HASHES, PATHS, st.binary(max_size=40)),
    st.builds(BatchDeleteMsg, HASHES, PATHS),
    st.builds(Reorg, HASHES, INTS),
    st.builds(ReorgComplete, HASHES, INTS),
    st.builds(Ping, HASHES, SECONDS, st.integers(0, 999_999_999), OFFSETS),
    st.just(Heartbeat()),
)


@given(MESSAGES)
def test_every_message_is_read_back_as_it_was_written(message: Message) -> None:
    key, value = encode(message)
    assert decode(key, value) == message
    assert encode(decode(key, value)) == (key, value)


@given(st.dictionaries(PATHS, UPDATES, max_size=6), st.randoms(use_true_random=False))
def test_equal_messages_are_equal_bytes_whatever_the_order_of_their_maps(
    updates: dict[str, Update], rng: object
) -> None:
    items = list(updates.items())
    rng.shuffle(items)  # type: ignore[attr-defined]  # Hypothesis's random.Random
    one, two = (Batch(bytes(32), 1, 1, bytes(32), dict(order)) for order in (updates.items(), items))
    assert encode(one) == encode(two)
    first, second = (
        SubBatchMsg(bytes(32), bytes(32), 0, (), {path: update.value for path, update in order})
        for order in (updates.items(), items)
    )
    assert encode(first) == encode(second)


@given(st.frozensets(PATHS, max_size=5))
def test_deletes_that_have_no_order_are_written_sorted(deletes: frozenset[str]) -> None:
    ordered = tuple(sorted(deletes, key=path_bytes))
    assert encode_content(deletes, {}) == encode_content(ordered, {})


KEYS = st.one_of(
    st.binary(max_size=110),
    st.tuples(st.sampled_from([*range(8), 254, 255]), HASHES, st.binary(max_size=40)).map(
        lambda parts: bytes((parts[0],)) + parts[1] + parts[2]
    ),
    st.tuples(st.sampled_from([1, 2]), HASHES, HASHES, st.binary(max_size=12)).map(
        lambda parts: bytes((parts[0],)) + parts[1] + parts[2] + parts[3]
    ),
)


@given(KEYS, st.one_of(st.binary(max_size=120), st.binary(min_size=14, max_size=17)))
@example(b"\2" + bytes(64) + b"\1", b"\0\0")
@example(b"\2" + bytes(64) + b"\0\0", b"\0\0")
@example(b"\xff" + bytes(32), b"\1" + bytes(8) + b"\xff" * 4 + bytes(2))
def test_any_bytes_are_a_message_or_a_decode_error_that_holds_the_key(key: bytes, value: bytes) -> None:
    try:
        message = decode(key, value)
    except DecodeError as error:
        assert error.key == key and error.reason  # noqa: PT017, PT018 - either outcome is right
    else:
        try:
            again = encode(message)
        except EncodeError:
            # A ping may be read with an offset that cannot be said in minutes and seconds of one sign.
            assert isinstance(message, Ping)
        else:
            assert decode(*again) == message


CASES = json.loads((Path(__file__).parents[2] / "schemas/vectors/messages.json").read_text())["cases"]
WHOLE = [
    (bytes.fromhex(case["key"]), bytes.fromhex(case["value"]))
    for case in CASES
    if case.get("key") and "error" not in case and "cardinal" not in case
]


@pytest.mark.slow
def test_no_true_prefix_of_a_vectors_value_is_the_same_message() -> None:
    """Cut anywhere, a value is refused; a BatchMsg's is raw bytes, and a delete's is ignored: they have no end."""
    cut = 0
    for key, value in WHOLE:
        message = decode(key, value)
        if isinstance(message, BatchMsg | BatchDeleteMsg):
            continue
        end = len(encode(message)[1]) if not isinstance(message, Batch | SubBatchMsg) else len(value)
        end = min(end, len(value))
        for size in {*range(min(end, 100)), *range(max(0, end - 60), end), *range(0, end, 97)}:
            with pytest.raises(DecodeError):
                decode(key, value[:size])
            cut += 1
    assert cut > 5_000


WRONG: list[tuple[Callable[[], Message], str]] = [
    (lambda: Batch(b"short", 1, 1, bytes(32)), "hash"),
    (lambda: Batch(bytes(32), 1, 1, b"short"), "parent"),
    (lambda: Batch(bytes(32), -1, 1, bytes(32)), "number"),
    (lambda: Batch(bytes(32), 2**63, 1, bytes(32)), "number"),
    (lambda: Batch(bytes(32), 1, -1, bytes(32)), "weight"),
    (lambda: Batch(bytes(32), 1, 2**512, bytes(32)), "weight"),
    (lambda: Batch(bytes(32), 1, 1, bytes(32), {"a": Update(sub_batch=b"short")}), "sub_batch"),
    (lambda: Batch(bytes(32), 1, 1, bytes(32), {"a": Update(count=2**31)}), "count"),
    (lambda: Batch(bytes(32), 1, 1, bytes(32), {"\ud800": Update()}), "updates"),
    (lambda: SubBatchHeader(bytes(32), b"short", 1), "batch_id"),
    (lambda: SubBatchHeader(bytes(32), bytes(32), -1), "count"),
    (lambda: SubBatchMsg(bytes(32), bytes(32), 2**31), "index"),
    (lambda: SubBatchMsg(bytes(32), bytes(32), 0, ("\ud800",)), "deletes"),
    (lambda: BatchMsg(bytes(32), "\ud800", b""), "path"),
    (lambda: BatchDeleteMsg(b"", "a"), "hash"),
    (lambda: Reorg(bytes(32), 2**31), "number"),
    (lambda: ReorgComplete(bytes(31), 0), "hash"),
    (lambda: Ping(bytes(31), 0), "producer_id"),
    (lambda: Ping(bytes(32), 2**63), "unix_seconds"),
    (lambda: Ping(bytes(32), 0, 10**9), "nanoseconds"),
    (lambda: Ping(bytes(32), 0, 0, -60), "utc_offset_seconds"),
    (lambda: Ping(bytes(32), 0, 0, 60 * 2**15), "utc_offset_seconds"),
]


@pytest.mark.parametrize(("make", "field"), WRONG, ids=lambda case: case if isinstance(case, str) else "")
def test_a_field_that_has_no_place_on_the_wire_is_refused_by_name(make: Callable[[], Message], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(make())
    assert caught.value.field == field


@pytest.mark.parametrize("size", [0, 31, 33])
@pytest.mark.parametrize("kind", [0, 1, 2, 5, 6, 7, 254, 255])
def test_a_key_of_no_type_or_of_the_wrong_length_is_refused(kind: int, size: int) -> None:
    with pytest.raises(DecodeError):
        decode(bytes((kind,)) + bytes(size), b"\0")


def test_a_sub_batch_of_a_negative_count_is_refused() -> None:
    with pytest.raises(DecodeError, match="the count -1 of a sub batch is negative"):
        decode(b"\1" + bytes(64), b"\1")


# --- headers -----------------------------------------------------------------------------------------------


def test_producer_and_seal_are_found_among_other_headers() -> None:
    headers = (("traceparent", b"00"), (PRODUCER_HEADER, b"one"), ("cardinal-sealed", b""))
    assert (producer_of(headers), is_sealed(headers)) == (b"one", True)
    assert producer_of(headers[:1]) == producer_of(()) == b"anonymous"
    assert not is_sealed((("cardinal-producer", b"cardinal-sealed"),))


# --- paths -------------------------------------------------------------------------------------------------


@given(st.binary(max_size=20))
def test_any_bytes_are_a_path_and_come_back(raw: bytes) -> None:
    assert path_bytes(path_text(raw)) == raw


@given(st.dictionaries(st.binary(max_size=6), st.binary(max_size=6), max_size=5), st.binary(max_size=6))
def test_a_map_of_byte_paths_reads_as_a_map_of_text_paths(raw: dict[bytes, bytes], other: bytes) -> None:
    view = PathMap(raw)
    assert dict(view) == {path_text(path): value for path, value in raw.items()}
    assert (path_text(other) in view) == (other in raw)
    assert len(view) == len(raw)
    assert "\ud800" not in view
    assert view == MappingProxyType(dict(view))
    assert repr(view) == f"PathMap({Count(len(raw), 'path')})"


def test_content_that_is_made_on_access_is_made_once_and_survives_pickling() -> None:
    made: list[int] = []
    view = PathMap(lambda: made.append(1) or {b"a": b"1"})  # type: ignore[func-returns-value]  # to count
    assert made == []
    assert pickle.loads(pickle.dumps(view)) == view == {"a": b"1"}  # noqa: S301 - made here
    assert view.raw is view.raw
    assert made == [1]


def test_an_update_extends_replaces_or_only_removes() -> None:
    one = (Payload(1, bytes(32), bytes(32), 1),)
    changes = [ChainUpdate(1, removed, added).change for removed, added in (((), one), (one, one), (one, ()))]
    assert changes == [Change.EXTEND, Change.REORG, Change.REVERT]


def test_a_block_is_known_by_number_and_hash_whether_its_content_is_there_or_not() -> None:
    whole, missing = Payload(3, bytes(32), bytes(32), 3), MissingPayload(3, bytes(32))
    assert whole.ref == missing.ref == BlockRef(3, bytes(32))
