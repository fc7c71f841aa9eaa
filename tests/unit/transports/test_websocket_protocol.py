"""Messages and chunks of records as bytes: round trips, any bytes, bounds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import CursorExpiredError, RemoteProtocolError
from cardinal.protocols.streams.types import Record
from cardinal_relay.transport import protocol
from cardinal_relay.transport.errors import request_error
from cardinal_relay.transport.protocol import (
    CHUNK_RECORDS,
    Chunk,
    Failed,
    Reason,
    decode_answer,
    decode_frame,
    decode_records,
    decode_request,
    encode_chunks,
    encode_frame,
    encode_message,
)

LIMIT = 1 << 20
ids = st.integers(0, 2**63 - 1)
names = st.text(max_size=12)
raw_names = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
pairs = st.tuples(ids, ids)


def rows(value: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(st.tuples(names, ids, value), max_size=4).map(tuple)


topics = st.lists(names, max_size=4).map(tuple)
requests = st.one_of(
    st.builds(protocol.ListTopics, ids),
    st.builds(protocol.GetWatermarks, ids, topics),
    st.builds(protocol.FindTime, ids, topics, st.integers(-(2**63), 2**63 - 1)),
    st.builds(protocol.Read, ids, rows(ids)),
    st.builds(protocol.Pause, st.lists(st.tuples(names, ids), max_size=4).map(tuple)),
    st.builds(protocol.Credit, st.integers(0, 1 << 40)),
)
answers = st.one_of(
    st.builds(protocol.Topics, ids, topics),
    st.builds(protocol.Watermarks, ids, rows(pairs)),
    st.builds(protocol.Offsets, ids, rows(ids)),
    st.builds(protocol.Failed, ids, st.sampled_from(Reason), names, rows(pairs)),
)
headers = st.lists(st.tuples(raw_names, st.binary(max_size=6)), max_size=3).map(tuple)


@st.composite
def polls(draw: st.DrawFn) -> list[Record]:
    """What one poll of a source may deliver: runs of several partitions, offsets with gaps."""
    at = {("a", 0): draw(st.integers(0, 2**40)), ("a", 7): 0, ("b", 0): 3}
    records = []
    for tp in draw(st.lists(st.sampled_from(sorted(at)), max_size=12)):
        at[tp] += draw(st.sampled_from([0, 0, 0, 1, 50, 2**33]))
        key, value = draw(st.binary(max_size=5)), draw(st.binary(max_size=9))
        time = draw(st.sampled_from([0, 1, 1_700_000_000_000, -5, 2**45]))
        records.append(Record(*tp, at[tp], key, value, time, draw(headers)))
        at[tp] += 1
    return records


def decoded(chunks: list[Chunk]) -> list[Record]:
    return [record for chunk in decode_frame(encode_frame(1, chunks))[1] for record in decode_records(chunk, LIMIT)]


@given(requests)
def test_a_request_is_decoded_as_it_was_encoded(message: protocol.Request) -> None:
    assert decode_request(encode_message(message)) == message


@given(answers)
def test_an_answer_is_decoded_as_it_was_encoded(message: protocol.Answer) -> None:
    assert decode_answer(encode_message(message)) == message


@given(st.text(max_size=60) | requests.map(encode_message).map(lambda text: text[:-1]) | st.binary(max_size=5))
@example('{"type":"read","id":1,"positions":[["t",0,-1]]}')
@example('{"type":"credit","size":1e400}')
@example("[" * 100_000)
def test_any_text_is_a_message_or_refused(data: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(data)


@given(st.binary(max_size=60))
@example(b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(b"\x02\x02\x02a\x00\x00\x00\x01\xfe\xff\xff\xff\x0f")
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        _, chunks = decode_frame(data)
        for chunk in chunks:
            decode_records(chunk, LIMIT)
    except RemoteProtocolError:
        pass


@given(polls(), st.booleans())
def test_records_are_decoded_as_they_were_encoded_and_their_chunks_join_on(
    records: list[Record],
    compress: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    before = {("a", 0): 0, ("a", 7): 0, ("b", 0): 0, ("b", 9): 4}
    after = {**before, ("b", 9): 6} | {record[:2]: record.offset + 3 for record in records}
    chunks = encode_chunks(records, before, after, compress=compress)
    read, received = decode_frame(encode_frame(5, chunks))
    assert read == 5
    assert [(one.tp, one.begin, one.next) for one in received] == [(one.tp, one.begin, one.next) for one in chunks]
    at = dict(before)
    found = []
    for chunk, sent in zip(received, chunks, strict=True):
        assert chunk.begin == at[chunk.tp]
        at[chunk.tp] = chunk.next
        some = decode_records(chunk, LIMIT)
        assert len(some) == sent.count
        found += some
    assert at == after
    for tp in before:
        assert [one for one in found if one[:2] == tp] == [one for one in records if one[:2] == tp]


@given(polls().filter(bool), st.booleans(), st.data())
def test_a_frame_with_one_byte_changed_gives_records_in_order_or_is_refused(
    records: list[Record],
    compress: bool,  # noqa: FBT001 - drawn by Hypothesis
    data: st.DataObject,
) -> None:
    raw = bytearray(encode_frame(1, encode_chunks(records, {}, {}, compress=compress)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        for chunk in decode_frame(bytes(raw))[1]:
            found = [record.offset for record in decode_records(chunk, LIMIT)]
            assert found == sorted(set(found))
            assert all(chunk.begin <= offset < chunk.next for offset in found)
    except RemoteProtocolError:
        pass


@given(polls().filter(bool))
def test_a_frame_that_ends_too_early_or_too_late_is_refused(records: list[Record]) -> None:
    data = encode_frame(1, encode_chunks(records, {}, {}))
    for wrong in (*(data[:size] for size in range(len(data))), data + b"\0"):
        with pytest.raises(RemoteProtocolError):
            decode_frame(wrong)


@pytest.mark.parametrize(
    "headers",
    [(("n" * 70_000, b""),), (("", bytes(70_000)),), tuple((str(n), b"") for n in range(70_000))],
    ids=["a long name", "a long value", "many"],
)
def test_headers_of_any_size_are_kept_and_count_for_the_size_of_a_chunk(headers: tuple[tuple[str, bytes], ...]) -> None:
    records = [Record("t", 0, at, b"k", b"v", 1, ((f"own-{at}", b"x"), *headers)) for at in range(4)]
    chunks = encode_chunks(records, {("t", 0): 0}, {("t", 0): 4})
    assert decoded(chunks) == records
    assert len(chunks) > 1


def test_a_large_poll_becomes_chunks_of_bounded_size() -> None:
    records = [Record("a", 0, index, b"k", bytes(1_000)) for index in range(1_000)]
    records += [Record("a", 1, index, b"k", b"") for index in range(3 * CHUNK_RECORDS)]
    chunks = encode_chunks(records, {}, {}, compress=False)
    assert max(len(chunk.data) for chunk in chunks) < 200_000
    assert decoded(chunks) == records


def test_a_header_without_a_value_becomes_an_empty_one() -> None:
    record = Record("a", 0, 0, b"k", b"v", 0, (("x", None),))  # type: ignore[arg-type] # what Kafka may hold
    assert decoded(encode_chunks([record], {}, {}))[0].headers == (("x", b""),)


@pytest.mark.parametrize("compress", [True, False])
def test_content_larger_than_the_limit_is_refused_before_it_is_made(
    compress: bool,  # noqa: FBT001 - a case
) -> None:
    chunks = encode_chunks([Record("a", 0, 0, b"k", bytes(LIMIT))], {}, {}, compress=compress)
    with pytest.raises(RemoteProtocolError, match=r"raise max\.frame\.bytes"):
        decoded(chunks)


@pytest.mark.parametrize(
    ("position", "limit", "says"),
    [
        (5, 9, "retention has removed the records from 5 to 9"),
        (9, 5, "ends at 5, before the position 9: the topic was recreated"),
        (5, 5, "has other records below 5 than were read: the topic was recreated"),
    ],
)
def test_an_expired_position_is_explained(position: int, limit: int, says: str) -> None:
    error = request_error(Failed(1, Reason.EXPIRED, partitions=(("block", 0, (position, limit)),)), "server")
    assert isinstance(error, CursorExpiredError)
    assert says in str(error)
    assert error.missing == {("block", 0): (position, limit)}
