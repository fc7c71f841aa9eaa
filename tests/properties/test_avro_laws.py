"""The hand-written Avro against fastavro, and against bytes that nobody should write."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import DecodeError
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.avro import BatchFields, Entry
from examples import few
from work_counter import lines, peak

# The published schemas with two exchanges that leave every byte the same: a map is the array of (path, value) records
# that it is on the wire, because fastavro's map keys have to be UTF-8; and a boolean is its one byte.
PAIR = [{"name": "path", "type": "bytes"}, {"name": "value", "type": "bytes"}]
ENTRY = [
    *PAIR,
    {"name": "count", "type": "int"},
    {"name": "delete", "type": {"name": "flag", "type": "fixed", "size": 1}},
    {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}},
]


def array(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "record", "name": "entry", "fields": fields}}


BATCH: Any = parse_schema(
    {
        "type": "record",
        "name": "batch",
        "fields": [
            {"name": "num", "type": "long"},
            {"name": "weight", "type": "bytes"},
            {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
            {"name": "updates", "type": array(ENTRY)},
        ],
    }
)
CONTENT: Any = parse_schema(
    {
        "type": "record",
        "name": "content",
        "fields": [
            {"name": "delete", "type": {"type": "array", "items": "bytes"}},
            {"name": "updates", "type": array(PAIR)},
        ],
    }
)

HASHES = st.binary(min_size=32, max_size=32)
BLOBS = st.one_of(st.binary(max_size=8), st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"y" * 8192]))
COUNTS = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))
ENTRIES = st.builds(Entry, BLOBS, BLOBS, COUNTS, st.booleans(), HASHES)
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
WEIGHTS = st.one_of(st.integers(0, 300), st.integers(0, 2**512 - 1))


def by_fastavro(schema: object, value: object) -> bytes:
    out = BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


def read_by_fastavro(schema: object, data: bytes) -> Any:  # noqa: ANN401 - what fastavro returns depends on the schema
    try:
        return schemaless_reader(BytesIO(data), schema, None)
    except (EOFError, IndexError, OverflowError, ValueError, MemoryError):
        return None


def as_dict(entry: Entry) -> dict[str, object]:
    return {
        "path": entry.path,
        "value": entry.value,
        "count": entry.count,
        "delete": b"\1" if entry.delete else b"\0",
        "subbatch": entry.sub_batch,
    }


def batch_value(number: int, weight: int, parent: bytes, entries: list[Entry]) -> dict[str, object]:
    big = weight.to_bytes((weight.bit_length() + 7) // 8, "big")
    return {"num": number, "weight": big, "parent": parent, "updates": list(map(as_dict, entries))}


def zigzag(value: int) -> bytes:
    return by_fastavro("long", value)


# --- what is written ---------------------------------------------------------------------------------------


@given(NUMBERS, WEIGHTS, HASHES, st.lists(ENTRIES, max_size=5))
def test_a_batch_is_written_as_fastavro_writes_it_and_read_back(
    number: int, weight: int, parent: bytes, entries: list[Entry]
) -> None:
    written = avro.write_batch(number, weight, parent, entries)
    assert written == by_fastavro(BATCH, batch_value(number, weight, parent, entries))
    fields = avro.read_batch(written)
    assert fields == BatchFields(number, weight, parent, {entry.path: entry for entry in entries})


@given(st.lists(BLOBS, max_size=4), st.lists(st.tuples(BLOBS, BLOBS), max_size=4))
def test_content_is_written_as_fastavro_writes_it_and_read_back(
    deletes: list[bytes], updates: list[tuple[bytes, bytes]]
) -> None:
    pairs = [{"path": path, "value": value} for path, value in updates]
    written = avro.write_content(deletes, updates)
    assert written == by_fastavro(CONTENT, {"delete": deletes, "updates": pairs})
    assert avro.read_content(written) == (deletes, dict(updates))


@given(COUNTS)
@example(63)
@example(64)
@example(-64)
@example(-65)
def test_an_integer_is_written_as_fastavro_writes_it_and_read_back(value: int) -> None:
    written = avro.write_int(value)
    assert written == by_fastavro("int", value)
    assert avro.read_int_and_size(written + b"more") == (value, len(written))


# --- what is read ------------------------------------------------------------------------------------------


def in_blocks(items: list[bytes], data: st.DataObject) -> bytes:
    """A map or array in blocks of either sign; a negative one has any size behind it."""
    out, left = b"", list(items)
    while left:
        count = data.draw(st.integers(1, len(left)))
        size = zigzag(data.draw(st.integers(-(2**63), 2**63 - 1)))
        out += zigzag(count) if data.draw(st.booleans()) else zigzag(-count) + size
        out += b"".join(left[:count])
        del left[:count]
    return out + b"\0"


def blob(value: bytes) -> bytes:
    return zigzag(len(value)) + value


@given(NUMBERS, WEIGHTS, HASHES, st.lists(ENTRIES, max_size=6), st.data())
def test_a_batchs_map_may_come_in_blocks(
    number: int, weight: int, parent: bytes, entries: list[Entry], data: st.DataObject
) -> None:
    out = avro.write_batch(number, weight, parent, [])[:-1]
    out += in_blocks([avro.write_batch(0, 0, b"", [entry])[3:-1] for entry in entries], data)
    fields = avro.read_batch(out + data.draw(st.binary(max_size=3)))
    assert fields == BatchFields(number, weight, parent, {entry.path: entry for entry in entries})


@given(st.lists(BLOBS, max_size=6), st.lists(st.tuples(BLOBS, BLOBS), max_size=6), st.data())
def test_content_may_come_in_blocks(
    deletes: list[bytes], updates: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    written = in_blocks([*map(blob, deletes)], data) + in_blocks(
        [blob(path) + blob(one) for path, one in updates], data
    )
    assert avro.read_content(written) == (deletes, dict(updates))


ANY_BYTES = st.one_of(
    st.binary(max_size=120),
    st.lists(
        st.one_of(st.integers(-(2**63), 2**63 - 1).map(zigzag), st.integers(-2, 40).map(zigzag), st.binary(max_size=4)),
        max_size=12,
    ).map(b"".join),
)


def refused(read: Callable[[bytes], object], data: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        read(data)
    return caught.value.reason


@given(ANY_BYTES)
def test_content_of_any_bytes_is_read_as_fastavro_reads_it_or_refused(data: bytes) -> None:
    theirs = read_by_fastavro(CONTENT, data)
    if theirs is None:
        refused(avro.read_content, data)
        return
    try:
        ours = avro.read_content(data)
    except DecodeError as error:
        assert "does not fit 64 bits" in error.reason  # noqa: PT017 - fastavro cuts such an integer
    else:
        assert ours == (theirs["delete"], {entry["path"]: entry["value"] for entry in theirs["updates"]})


@given(ANY_BYTES, st.booleans())
def test_a_batch_of_any_bytes_is_read_as_fastavro_reads_it_or_refused(data: bytes, plain: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
    if plain:  # past the fields before the map
        data = zigzag(1) + zigzag(1) + b"\7" + bytes(32) + data
    theirs = read_by_fastavro(BATCH, data)
    if theirs is None:
        refused(avro.read_batch, data)
        return
    try:
        ours = avro.read_batch(data)
    except DecodeError as error:
        why = ("does not fit", "is negative", "neither 0 nor 1", "longer than 64")
        assert any(word in error.reason for word in why)  # noqa: PT017 - what fastavro does not look at
    else:
        written = by_fastavro(BATCH, batch_value(*ours[:3], list(ours.entries.values())))
        assert avro.read_batch(written) == ours
        assert ours.entries.keys() == {entry["path"] for entry in theirs["updates"]}


@given(st.one_of(st.binary(max_size=14), st.integers(-(2**40), 2**40).map(zigzag)))
def test_an_integer_of_any_bytes_is_read_as_fastavro_reads_it_or_refused(data: bytes) -> None:
    theirs = read_by_fastavro("long", data)
    try:
        ours = avro.read_int(data)
    except DecodeError:
        assert theirs is None or not -(2**31) <= theirs < 2**31 or data[4] >= 0x80
    else:
        assert ours == theirs


# --- edges -------------------------------------------------------------------------------------------------

OPENING = zigzag(1) + zigzag(0) + bytes(32)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80" * 10 + b"\0" + OPENING, "64 bits"),
        (b"\xfe" * 9 + b"\x03" + OPENING[1:], "64 bits"),
        (zigzag(-1) + OPENING[1:], "the number -1 is negative"),
        (zigzag(1) + zigzag(-1) + OPENING, "a length is negative"),
        (zigzag(1) + zigzag(-(2**40)) + OPENING, "a length is negative"),
        (zigzag(1) + zigzag(65) + bytes(98), "a weight of 65 bytes is longer than 64"),
        (OPENING + zigzag(1) + b"\0\0" + zigzag(2**31) + bytes(33), "an integer does not fit 32 bits"),
        (OPENING + zigzag(1) + b"\0\0\0\2" + bytes(32), "a boolean is neither 0 nor 1"),
        (OPENING + zigzag(1) + b"\0\0\0\1" + bytes(31), "the value is truncated"),
        (OPENING, "the value is truncated"),
        (b"", "the value is truncated"),
    ],
)
def test_a_field_that_runs_over_its_type_is_refused(data: bytes, reason: str) -> None:
    assert reason in refused(avro.read_batch, data)


def test_an_overlong_integer_is_read_up_to_the_bytes_that_its_type_may_need() -> None:
    assert avro.read_int_and_size(b"\x8a" + b"\x80" * 3 + b"\0") == (5, 5)
    assert "32 bits" in refused(avro.read_int, b"\x8a" + b"\x80" * 4 + b"\0")
    assert "64 bits" in refused(avro.read_int, b"\x8a" + b"\x80" * 9 + b"\0")
    assert avro.read_batch(b"\x8a" + b"\x80" * 8 + b"\0" + OPENING[1:] + b"\0").number == 5
    assert avro.read_content(b"\0\2\x82\x80\x80\0p\2v\0") == ([], {b"p": b"v"})


LONG = 1 << 20
GIANT = [2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**62), -(2**63)]


@pytest.mark.parametrize("read", few(1, [avro.read_batch, avro.read_content, avro.read_int]))
@pytest.mark.parametrize(
    "data",
    [
        *(OPENING + zigzag(count) + zigzag(7) * (count < 0) + b"\2a" for count in GIANT),
        *(zigzag(1) + zigzag(count) + b"\2a" for count in GIANT),
        *(zigzag(count) + zigzag(7) * (count < 0) + b"\2a" for count in GIANT),
        *(b"\0" + zigzag(count) + zigzag(7) * (count < 0) + b"\2a\2b" for count in GIANT),
        b"\xff" * LONG,
        b"\x80" * LONG + b"\0",
        OPENING + b"\xff" * LONG,
        zigzag(1) + b"\x80" * LONG + b"\1",
        zigzag(1) + zigzag(LONG) + b"\xff" * LONG + bytes(33),
        zigzag(LONG) + b"\0" * LONG,
        b"\0" + zigzag(LONG) + b"\0" * (2 * LONG),
        b"\0" + (zigzag(1) + b"\0\0") * (LONG // 4),
        OPENING + zigzag(LONG) + (b"\0\0\0\0" + bytes(32)) * (LONG // 36),
        OPENING + zigzag(LONG) + b"\0" * LONG,
    ],
    ids=len,
)
def test_a_short_value_with_a_giant_count_costs_neither_memory_nor_work(
    read: Callable[[bytes], object], data: bytes
) -> None:
    """At most ten times the value's size in bytes, and thirty lines for each of its bytes."""
    answer = outcome(read, data)
    part = data[: LONG // 16]
    assert lines(lambda: outcome(read, part)) < 1_000 + 30 * len(part)
    assert peak(lambda: outcome(read, part)) < 65_536 + 10 * len(part)
    assert outcome(read, part) or answer


def outcome(read: Callable[[bytes], object], data: bytes) -> str:
    try:
        return f"read {type(read(data))}"
    except DecodeError as error:
        return f"refused: {error.reason}"
