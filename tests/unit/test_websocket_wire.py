from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams.types import Record
from cardinal.transports.websocket import frames
from cardinal.transports.websocket.chunks import (
    CHUNK_RECORDS,
    ReceivedChunk,
    decode_chunks,
    decode_records,
    encode_chunks,
)
from cardinal.transports.websocket.frames import (
    Credit,
    Failed,
    MarkList,
    Marks,
    Names,
    OffsetList,
    Open,
    Read,
    Reading,
    Reason,
    Records,
    Times,
    Topics,
)
from cardinal.transports.websocket.wire import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_records,
    encode_request,
)

ids = st.integers(0, 2**32 - 1)
names = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
places = st.tuples(names, st.integers(0, 2**32 - 1))
offsets = st.integers(0, 2**63 - 1)
pairs = st.tuples(offsets, offsets)

requests = st.one_of(
    st.builds(Open, ids, st.lists(names, max_size=4).map(tuple)),
    st.builds(Topics, ids),
    st.builds(Marks, ids),
    st.builds(Times, ids, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Read, ids, st.dictionaries(places, offsets | st.just(-1), max_size=4)),
    st.builds(Credit, ids),
)
answers = st.one_of(
    st.builds(Names, ids, st.lists(names, max_size=4).map(tuple)),
    st.builds(MarkList, ids, st.dictionaries(places, pairs, max_size=4)),
    st.builds(OffsetList, ids, st.dictionaries(places, offsets, max_size=4)),
    st.builds(Reading, ids),
    st.builds(Failed, ids, st.sampled_from(Reason), names, st.dictionaries(places, pairs, max_size=4)),
)
headers = st.lists(st.tuples(names, st.binary(max_size=6)), max_size=3).map(tuple)


@st.composite
def polls(draw: st.DrawFn) -> list[Record]:
    """What one poll of a source may give: runs of several partitions, offsets with gaps."""
    at = {("a", 0): draw(st.integers(0, 2**40)), ("a", 7): 0, ("b", 0): 3}
    records = []
    for where in draw(st.lists(st.sampled_from(sorted(at)), max_size=12)):
        at[where] += draw(st.sampled_from([0, 0, 0, 1, 50, 2**33]))
        key, value = draw(st.binary(max_size=5)), draw(st.binary(max_size=9))
        time = draw(st.sampled_from([0, 1, 1_700_000_000_000, -5, 2**45]))
        records.append(Record(*where, at[where], key, value, time, draw(headers)))
        at[where] += 1
    return records


@given(requests)
def test_a_request_is_read_as_it_was_written(frame: frames.Request) -> None:
    assert decode_request(encode_request(frame)) == frame


@given(answers)
def test_an_answer_is_read_as_it_was_written(frame: frames.Answer) -> None:
    assert decode_answer(encode_answer(frame)) == frame


@given(requests, answers)
def test_every_frame_that_ends_too_early_or_too_late_is_refused(one: frames.Request, two: frames.Answer) -> None:
    for data, decode in ((encode_request(one), decode_request), (encode_answer(two), decode_answer)):
        for wrong in (*(data[:size] for size in range(len(data))), data + b"\0"):
            with pytest.raises(RemoteProtocolError):
                decode(wrong)


@given(st.binary(max_size=60) | st.text(max_size=5))
@example(b"\x05\0\0\0\1\xff\xff\xff\xff")
@example(b"\x82\0\0\0\1\xff\xff\xff\xff")
def test_any_bytes_are_a_frame_or_refused(data: bytes | str) -> None:
    for decode in (decode_request, decode_answer):
        try:
            frame = decode(data)
            if isinstance(frame, Records):
                for chunk in decode_chunks(frame.chunks):
                    decode_records(chunk)
        except RemoteProtocolError:
            pass


@given(polls())
def test_records_are_read_as_they_were_written_and_their_chunks_join_on(records: list[Record]) -> None:
    before = {("a", 0): 0, ("a", 7): 0, ("b", 0): 0, ("b", 9): 4}
    after = {**before, ("b", 9): 6} | {record[:2]: record.offset + 3 for record in records}
    chunks = encode_chunks(records, before, after)
    frame = decode_answer(encode_records(5, [chunk.data for chunk in chunks]))
    assert isinstance(frame, Records)
    received = decode_chunks(frame.chunks)
    assert [(one.where, one.begin, one.next) for one in received] == [
        (one.where, one.begin, one.next) for one in chunks
    ]
    at = dict(before)
    found = []
    for chunk in received:
        assert chunk.begin == at[chunk.where]
        at[chunk.where] = chunk.next
        found += decode_records(chunk)
    assert at == after
    for where in before:
        assert [one for one in found if one[:2] == where] == [one for one in records if one[:2] == where]


@given(polls().filter(bool), st.data())
def test_a_chunk_with_one_byte_changed_gives_records_in_order_within_it_or_is_refused(
    records: list[Record], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(chunk.data for chunk in encode_chunks(records, {}, {})))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        for chunk in decode_chunks(memoryview(bytes(raw))):
            found = [record.offset for record in decode_records(chunk)]
            assert found == sorted(set(found))
            assert all(chunk.begin <= offset < chunk.next for offset in found)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "headers",
    [(("n" * 70_000, b""),), (("", bytes(70_000)),), tuple((str(n), b"") for n in range(70_000))],
    ids=["a long name", "a long value", "many"],
)
def test_headers_of_any_size_are_read_as_they_were_written_and_count_for_the_size_of_a_chunk(
    headers: tuple[tuple[str, bytes], ...],
) -> None:
    records = [Record("t", 0, at, b"k", b"v", 1, ((f"own-{at}", b"x"), *headers)) for at in range(4)]
    chunks = encode_chunks(records, {("t", 0): 0}, {("t", 0): 4})
    assert [
        record
        for chunk in decode_chunks(memoryview(b"".join(chunk.data for chunk in chunks)))
        for record in decode_records(chunk)
    ] == records
    assert len(chunks) > 1


def test_a_large_poll_becomes_chunks_of_bounded_size() -> None:
    records = [Record("a", 0, index, b"k", bytes(1_000)) for index in range(1_000)]
    records += [Record("a", 1, index, b"k", b"") for index in range(3 * CHUNK_RECORDS)]
    chunks = encode_chunks(records, {}, {})
    assert max(len(chunk.data) for chunk in chunks) < 200_000
    assert [one for chunk in chunks for one in decode_records(decode_chunks(memoryview(chunk.data))[0])] == records


def test_a_header_without_a_value_becomes_an_empty_one() -> None:
    record = Record("a", 0, 0, b"k", b"v", 0, (("x", None),))  # type: ignore[arg-type] # what Kafka may hold
    (chunk,) = encode_chunks([record], {}, {})
    (found,) = decode_records(decode_chunks(memoryview(chunk.data))[0])
    assert found.headers == (("x", b""),)


def _body(count: int, offsets: tuple[int, ...], *, place: int = 0, table: bytes = b"\0\0\0\1" + bytes(4)) -> memoryview:
    row = struct.Struct(f">{len(offsets)}I")
    zeros = row.pack(*[0] * len(offsets))
    head = struct.pack(">IQq", count, 10, 0)
    columns = row.pack(*offsets) + zeros * 3 + struct.pack(f">{len(offsets)}H", *[place] * len(offsets))
    return memoryview(head + columns + table)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (_body(2**32 - 1, (0,)), "announces"),
        (_body(2, (0, 0)), "ascend"),
        (_body(2, (5, 1)), "ascend"),
        (_body(2, (0, 2**31)), "ascend"),
        (_body(1, (0,), place=1), "headers"),
        (_body(1, (0,), table=b"\xff\xff\xff\xff"), "announces"),
        (_body(1, (0,), table=b"\0\0\0\1" + bytes(4) + b"rest"), "another size"),
        (memoryview(b""), "too early"),
    ],
)
def test_columns_that_do_not_fit_are_refused(body: memoryview, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        decode_records(ReceivedChunk(("a", 0), 10, 20, body))
    assert decode_records(ReceivedChunk(("a", 0), 10, 20, _body(2, (0, 9))))[1].offset == 19
