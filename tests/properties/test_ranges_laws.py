"""A Batch that names its ranges: the header's bytes, and what a reader without content makes of it."""

from __future__ import annotations

from io import BytesIO

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import DecodeError
from cardinal.protocols.streams import Batch, Completed, Update, encode
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly, digested
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.types import Record, path_bytes
from cardinal.protocols.streams.wire.ranges import (
    RANGES_HEADER,
    RANGES_SCHEMA,
    BlockRanges,
    decode_ranges,
    encode_ranges,
    ranges_of,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
PARTITIONS = st.tuples(NAMES, st.integers(0, 1000))
SPANS = st.tuples(st.integers(0, 2**48), st.integers(1, 2**20)).map(lambda span: (span[0], span[0] + span[1]))
RANGES = st.builds(
    BlockRanges,
    NAMES,
    st.integers(0, 2**40),
    st.dictionaries(PARTITIONS, SPANS, max_size=9),
    st.dictionaries(NAMES.map(path_bytes), st.binary(max_size=9), max_size=2),
)
HASH, PARENT = b"h" * 32, b"p" * 32


def batch(*headers: tuple[str, bytes], counted: int = 3, offset: int = 70) -> Record:
    message = Batch(HASH, 7, 9, PARENT, {"a/": Update(count=counted), "inside": Update(value=b"v")})
    key, value = encode(message)
    return Record("block", 1, offset, key, value, 1234, tuple(headers))


@given(RANGES)
def test_what_is_written_is_read_back_and_is_avro(named: BlockRanges) -> None:
    value = encode_ranges(named)
    assert decode_ranges(value) == named
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (low, high) in named.ranges.items():
        topics.setdefault(topic, []).append((partition, low, high - low))
    columns = []
    for topic, rows in topics.items():
        partitions, first, records = map(list, zip(*rows, strict=True))
        columns.append({"name": topic, "partitions": partitions, "first": first, "records": records})
    out = BytesIO()
    values = {path.decode(): content for path, content in named.values.items()}
    schemaless_writer(
        out, parse_schema(RANGES_SCHEMA), {"log": named.log, "size": named.size, "values": values, "topics": columns}
    )
    assert value == out.getvalue()


@given(st.binary(max_size=60))
def test_any_bytes_are_ranges_or_refused(value: bytes) -> None:
    try:
        decode_ranges(value)
    except DecodeError:
        assert ranges_of(((RANGES_HEADER, value),)) is None


@pytest.mark.parametrize("span", [(-1, 5), (5, 5), (5, 4)])
def test_offsets_that_cannot_be_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(DecodeError, match="impossible offsets"):
        decode_ranges(encode_ranges(BlockRanges("log", 1, {("a", 0): span}, {})))


@given(RANGES)
def test_a_block_is_complete_with_a_batch_that_names_its_ranges(named: BlockRanges) -> None:
    record = batch(("cardinal-sealed", b"1"), (RANGES_HEADER, encode_ranges(named)))
    (event,) = Reassembler(["a/"], contents=Contents.DIGESTS).receive(digested([record]))
    assert isinstance(event, Completed)
    header = event.payload
    assert isinstance(header, HeaderOnly)
    assert (header.number, header.hash, header.parent, header.weight) == (7, HASH, PARENT, 9)
    low, high = named.ranges.get(("block", 1), (70, 70))
    assert header.ranges == {**named.ranges, ("block", 1): (min(low, 70), max(high, 71))}
    assert header.values == {**named.values, b"inside": b"v"}
    assert header.size == named.size + len(record.key) + len(record.value)
    assert header.published_ms == 1234


@pytest.mark.parametrize("headers", [(), ((RANGES_HEADER, b"\1"),), ((RANGES_HEADER, None),)])
def test_without_ranges_the_messages_are_counted(headers: tuple[tuple[str, bytes], ...]) -> None:
    reassembler = Reassembler(["a/"], contents=Contents.DIGESTS)
    assert reassembler.receive(digested([batch(*headers)])) == []
    assert reassembler.explain(HASH).missing_counts == {"a/": 3}


def test_a_copy_that_names_ranges_completes_a_block_whose_batch_names_none() -> None:
    """Retention has cut the ranges of the first producer, and the second's are whole."""
    reassembler = Reassembler(["a/"], contents=Contents.DIGESTS)
    ranges = {("a", 0): (8, 11), ("block", 1): (80, 82)}
    named = (RANGES_HEADER, encode_ranges(BlockRanges("log", 1, ranges, {})))
    assert reassembler.receive(digested([batch(), batch(offset=75)])) == []
    (event,) = reassembler.receive(digested([batch(named, offset=90)]))
    assert isinstance(event, Completed)
    assert isinstance(event.payload, HeaderOnly)
    assert event.payload.ranges == {("a", 0): (8, 11), ("block", 1): (80, 91)}


def test_who_takes_content_counts_it_whatever_the_batch_names() -> None:
    reassembler = Reassembler(["a/"])
    named = (RANGES_HEADER, encode_ranges(BlockRanges("log", 1, {("a", 0): (1, 4)}, {})))
    assert reassembler.receive([batch(named)]) == []
    assert reassembler.explain(HASH).missing_counts == {"a/": 3}


def test_a_batch_lists_what_is_followed_of_its_block() -> None:
    candidate = Reassembler(["a/"], inline=True).candidate(batch())
    assert candidate.counters.missing() == {b"a/": 3}
    assert candidate.values == {b"inside": b"v"}
    with pytest.raises(DecodeError):
        Reassembler().candidate(batch(counted=-1))
