"""Avro container of a segment: round trips, any bytes, other readers."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams import Record
from cardinal.transports.file.container import (
    SYNC_SIZE,
    BadBytesError,
    decode_block,
    encode_block,
    encode_header,
    read_header,
    read_prefix,
)
from file_logs import fill

SYNC = bytes(range(SYNC_SIZE))


HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)


RECORDS = st.lists(
    st.builds(
        Record,
        st.text(min_size=1, max_size=8),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.binary(max_size=80),
        st.binary(max_size=300),
        st.integers(0, 2**53),
        HEADERS,
    ),
    min_size=1,
    max_size=80,
)


def decode(data: bytes, sync: bytes = SYNC) -> list[Record]:
    prefix = read_prefix(data[:20], 0)
    assert prefix is not None
    assert prefix.end == len(data)
    return decode_block(prefix.records, data[prefix.data : prefix.end], sync)


@given(RECORDS)
def test_a_block_gives_back_what_it_was_made_of(records: list[Record]) -> None:
    assert decode(encode_block(records, SYNC)) == records


@given(RECORDS, st.data())
def test_a_block_with_one_altered_bit_is_none(records: list[Record], data: st.DataObject) -> None:
    whole = bytearray(encode_block(records, SYNC))
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[place // 8] ^= 1 << place % 8
    try:
        prefix = read_prefix(bytes(whole[:20]), 0)
        if prefix is None or prefix.end != len(whole):
            return  # another length: the marker will not stand where it says
        found = decode_block(prefix.records, bytes(whole[prefix.data : prefix.end]), SYNC)
    except BadBytesError:
        return
    assert found == records  # snappy copied equal bytes from another place


def test_a_block_that_declares_fewer_records_than_it_holds_is_refused() -> None:
    """The count is not in the checksum; and a record without a key begins as records end."""
    records = [Record("logs", 0, offset, b"", b"", 5, ()) for offset in range(5)]
    whole = encode_block(records, SYNC)
    prefix = read_prefix(whole[:20], 0)
    assert prefix is not None
    for count in (1, 4, 6):
        with pytest.raises(BadBytesError):
            decode_block(count, whole[prefix.data :], SYNC)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_block_and_no_header(data: bytes) -> None:
    with pytest.raises(BadBytesError):
        read_header(io.BytesIO(data))
    try:
        prefix = read_prefix(data[:20], 0)
    except BadBytesError:
        return
    if prefix is not None and prefix.end <= len(data):
        with pytest.raises(BadBytesError):
            decode_block(prefix.records, data[prefix.data : prefix.end], os.urandom(SYNC_SIZE))


def test_a_header_cut_anywhere_is_none() -> None:
    whole = encode_header(SYNC, {("logs", 0): 5, ("logs", 64): 0, ("blöck", 1): 7}, 12)
    header = read_header(io.BytesIO(whole + b"more"))
    assert (header.sync, header.size, header.latest, header.before) == (SYNC, len(whole), 12, None)
    assert header.offsets == {("logs", 0): 5, ("logs", 64): 0, ("blöck", 1): 7}
    for end in range(len(whole)):
        with pytest.raises(BadBytesError):
            read_header(io.BytesIO(whole[:end]))


def test_a_container_of_others_is_none() -> None:
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "x", "fields": [{"name": "a", "type": "int"}]}, [{"a": 1}])
    out.seek(0)
    with pytest.raises(BadBytesError, match=r"not whole|another"):
        read_header(out)


def test_a_claim_of_gigabytes_reserves_nothing() -> None:
    packed = b"\xff\xff\xff\xff\x0f" + bytes(30)
    with pytest.raises(BadBytesError, match="decompressed"):
        decode_block(1, packed + bytes(4) + SYNC, SYNC)


def test_fastavros_own_reader_reads_a_segment(tmp_path: Path) -> None:
    fill(tmp_path, 0, 30, "cardinal.partitions=1").close()
    with (tmp_path / "000000000001.avro").open("rb") as file:
        reader = fastavro.reader(file)
        assert reader.codec == "snappy"
        rows = list(reader)
    rows = [row for row in rows if row["key"]]  # type: ignore[index,call-overload] # rows are dicts
    assert len(rows) == 30 * 5
    first: dict[str, object] = rows[0]  # type: ignore[assignment] # the same
    assert list(first) == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert first["headers"] == [{"name": "cardinal-producer", "value": b"a"}]
    moment = first["timestamp"]
    assert isinstance(moment, datetime)
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert [row["offset"] for row in rows if row["topic"] == "logs"] == list(range(1, 121))  # type: ignore[index,call-overload]
