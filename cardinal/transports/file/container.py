"""Format of a segment: an Avro object container file (Avro 1.12, Object Container Files), codec snappy.

Header, then blocks: a count of records, the size of the data, the data (snappy, then the CRC-32 of the uncompressed
data, big-endian), the file's sync marker. Any Avro reader reads it; this module reads and writes single blocks, so that
a file can be read while it grows and repaired after a crash.

The header's metadata holds the next offset of every partition (``cardinal.offsets``), the highest time of all records
before (``cardinal.latest``), and the final size of the segment before it (``cardinal.before``), which reveals a copy of
that one that was made before it was complete.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, Final, NamedTuple

import snappy
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from cardinal.protocols.streams.types import Partition, Record

SYNC_SIZE: Final = 16
PREFIX_SIZE: Final = 20
"""The longest that a block's count and size can be: two Avro longs."""

_MAGIC: Final = b"Obj\x01"
_CRC_SIZE: Final = 4
_LONG_BITS: Final = 63
_SNAPPY_RATIO: Final = 32
"""Snappy cannot make more of a byte: its longest copy is 64 bytes in three."""
_OFFSETS: Final = "cardinal.offsets"
_LATEST: Final = "cardinal.latest"
_BEFORE: Final = "cardinal.before"
_CODEC: Final = b"snappy"


def _schema(timestamp: object) -> dict[str, object]:
    header = {
        "type": "record",
        "name": "Header",
        "fields": [{"name": "name", "type": "string"}, {"name": "value", "type": "bytes"}],
    }
    return {
        "type": "record",
        "name": "Record",
        "namespace": "cardinal.file",
        "fields": [
            {"name": "key", "type": "bytes"},
            {"name": "value", "type": "bytes"},
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": timestamp},
            {"name": "headers", "type": {"type": "array", "items": header}},
        ],
    }


SCHEMA: Final = _schema({"type": "long", "logicalType": "timestamp-millis"})
"""A record as other readers see it; ``timestamp`` is milliseconds since 1970, UTC."""

# The bytes of records one after the other are those of an array without its count and its end: one call for a block.
# The logical type is left out, because a number is wanted.
_RECORDS: Final[Any] = parse_schema({"type": "array", "items": _schema("long")})
_HEADER: Final[Any] = parse_schema(
    {
        "type": "record",
        "name": "org.apache.avro.file.Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(_MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": SYNC_SIZE}},
        ],
    }
)


class BadBytesError(Exception):
    """The bytes are no header or block of ours. Never leaves this package."""


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a segment.

    Attributes:
        sync: the marker after each of its blocks.
        size: bytes of the header; the first block begins there.
        offsets: for every partition of the log the next offset when the segment was begun.
        latest: the highest time of all records before, milliseconds; 0 where there were none.
        before: bytes of the segment before it; None where there was none, or its size is unknown.

    """

    sync: bytes
    size: int
    offsets: Mapping[Partition, int]
    latest: int
    before: int | None = None


class Prefix(NamedTuple):
    """The prefix of a block: its number of records, and the positions of its data and of its end."""

    records: int
    data: int
    end: int


def encode_header(sync: bytes, offsets: Mapping[Partition, int], latest: int, before: int | None = None) -> bytes:
    """The header of a segment with this marker (16 bytes); see :class:`Header`."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    meta = {
        "avro.schema": json.dumps(SCHEMA).encode(),
        "avro.codec": _CODEC,
        _OFFSETS: json.dumps(topics, separators=(",", ":")).encode(),
        _LATEST: str(latest).encode(),
        **({} if before is None else {_BEFORE: str(before).encode()}),
    }
    out = BytesIO()
    schemaless_writer(out, _HEADER, {"magic": _MAGIC, "meta": meta, "sync": sync})
    return out.getvalue()


def read_header(file: BinaryIO) -> Header:
    """The header at the file's beginning. BadBytesError where it is incomplete or is none of ours."""
    try:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise BadBytesError("it is no Avro container")
        file.seek(0)
        fields: Any = schemaless_reader(file, _HEADER, None)
        meta = fields["meta"]
        if len(fields["sync"]) != SYNC_SIZE:
            raise BadBytesError("its header is not whole")
        if json.loads(meta["avro.schema"]) != SCHEMA or meta["avro.codec"] != _CODEC:
            raise BadBytesError("its schema is another one")
        topics: dict[str, dict[str, int]] = json.loads(meta[_OFFSETS])
        offsets = {(topic, int(number)): at for topic, numbers in topics.items() for number, at in numbers.items()}
        before = int(meta[_BEFORE]) if _BEFORE in meta else None
        return Header(fields["sync"], file.tell(), offsets, int(meta[_LATEST]), before)
    except (EOFError, KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, MemoryError):
        # Errors of fastavro and json on cut or altered bytes (seen).
        raise BadBytesError("its header is not whole") from None


def encode_block(records: Sequence[Record], sync: bytes) -> bytes:
    """One block of these records, at least one."""
    out = BytesIO()
    schemaless_writer(out, _RECORDS, [_fields(record) for record in records])
    count = _long(len(records))
    data = out.getvalue()[len(count) : -1]
    body = snappy.compress(data) + zlib.crc32(data).to_bytes(_CRC_SIZE, "big")
    return b"".join((count, _long(len(body)), body, sync))


def read_prefix(data: bytes, at: int) -> Prefix | None:
    """The prefix of the block at this position of the file, of which these are the next bytes; None: incomplete.

    Raises:
        BadBytesError: no block begins like this.

    """
    count = _read_long(data, 0)
    size = None if count is None else _read_long(data, count[1])
    if count is None or size is None:
        if len(data) >= PREFIX_SIZE:
            raise BadBytesError("a number is longer than numbers are")
        return None
    if count[0] <= 0 or size[0] <= _CRC_SIZE:
        raise BadBytesError("a block has no records or no bytes")
    begin = at + size[1]
    return Prefix(count[0], begin, begin + size[0] + SYNC_SIZE)


def decode_block(count: int, body: bytes, sync: bytes) -> list[Record]:
    """The records of a block's data and marker. BadBytesError where these bytes are not what was written."""
    if body[-SYNC_SIZE:] != sync:
        raise BadBytesError("a block does not end with the file's marker")
    crc = int.from_bytes(body[-SYNC_SIZE - _CRC_SIZE : -SYNC_SIZE], "big")
    packed = body[: -SYNC_SIZE - _CRC_SIZE]
    size = _read_varint(packed, 0)
    # Snappy's data begins with its uncompressed size; altered bytes must not reserve gigabytes.
    if size is None or size[0] > len(packed) * _SNAPPY_RATIO:
        raise BadBytesError("a block cannot be decompressed")
    try:
        data = bytes(snappy.uncompress(packed))
    except (snappy.UncompressError, ValueError):
        raise BadBytesError("a block cannot be decompressed") from None
    if zlib.crc32(data) != crc:
        raise BadBytesError("a block's checksum does not match")
    stream = BytesIO(_long(count) + data + b"\0")
    try:
        rows: Any = schemaless_reader(stream, _RECORDS, None)
    except (EOFError, ValueError, IndexError, OverflowError):  # the checksum is right, so another program wrote it
        raise BadBytesError("a block does not hold records of ours") from None
    if len(rows) != count or stream.read(1):  # the checksum does not cover the count
        raise BadBytesError("a block does not hold as many records as its prefix declares")
    return [
        Record(
            row["topic"],
            row["partition"],
            row["offset"],
            row["key"],
            row["value"],
            row["timestamp"],
            tuple([(header["name"], header["value"]) for header in row["headers"]]),
        )
        for row in rows
    ]


def _fields(record: Record) -> dict[str, object]:
    topic, partition, offset, key, value, timestamp, headers = record
    return {
        "key": key,
        "value": value,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        # Kafka allows a header without a value; this format stores an empty one.
        "headers": [{"name": name, "value": content or b""} for name, content in headers],
    }


def _long(number: int) -> bytes:
    """A number that is not negative, as an Avro long: zigzag, seven bits a byte, lowest first."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_long(data: bytes, at: int) -> tuple[int, int] | None:
    """The Avro long at a position of these bytes and the position after it; None where the bytes end before."""
    varint = _read_varint(data, at)
    return None if varint is None else ((varint[0] >> 1) ^ -(varint[0] & 1), varint[1])


def _read_varint(data: bytes, at: int) -> tuple[int, int] | None:
    value = shift = 0
    while at < len(data) and shift <= _LONG_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says whether another byte follows
            return value, at
        shift += 7
    return None
