"""The wire protocol between ``cardinal serve`` and its clients: messages and chunks of records, as values and as bytes.

The version is the websocket subprotocol, :data:`SUBPROTOCOL`. Requests and answers are text messages, one JSON object
each, named by its ``type``; records are binary messages. A client's requests carry ids that increase.

==================== =============================================== ==============
request              meaning                                         answer
==================== =============================================== ==============
``list_topics``      names of all topics                             ``topics``
``get_watermarks``   first and next offset of these topics           ``watermarks``
``find_time``        their first offsets at or after a time          ``offsets``
``read``             send these partitions, and no other, from here  records
``pause``            send nothing of exactly these partitions        none
``credit``           grants more bytes; 0: sign of life              none
==================== =============================================== ==============

A request may be answered with ``failed``. A records message is the Avro value of :data:`_FRAME`: the id of the READ
that it follows, and chunks, each a run of one partition in columns (:data:`_COLUMNS`), optionally compressed with
snappy, with the CRC-32 of the uncompressed columns. Columns, because rows take seven times as long.

Rules for servers:

1. The chunks of a partition are contiguous: each begins where the one before ended, the first where the READ says.
2. A records message is sent only while credit is left; its bytes are subtracted, so credit may become negative by less
   than one message.
3. ``failed`` with the id of a READ in ``read`` ends its reading; the connection stays, and another READ may follow.

Rule for clients: a READ replaces the one before and resumes all partitions. Records that follow an older READ are
ignored.

Bytes that break these rules are a :class:`~cardinal.errors.RemoteProtocolError` for the receiver. Pure: no I/O.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial
from io import BytesIO
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter, lt
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import snappy
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from pydantic import Field, TypeAdapter, ValidationError

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams.types import Partition, Record

SUBPROTOCOL: Final = "cardinal.streams.v4"
REQUEST_MAX: Final = 1 << 20
"""Bytes of the largest request that a server accepts: a READ of some ten thousand partitions."""

CHUNK_BYTES: Final = 128 << 10
"""Content that closes a chunk: it may hold one record more."""

CHUNK_RECORDS: Final = 4096

_Value = TypeVar("_Value")
_Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]
_Topic: TypeAlias = Annotated[str, Field(max_length=1_000)]


class CloseCode(IntEnum):
    """Reasons for which a server closes a connection."""

    PROTOCOL = 4400
    """The client broke the protocol. Reconnecting does not help."""

    SLOW = 4408
    """The client accepted nothing for too long. It may reconnect at its position."""

    UNAVAILABLE = 4503
    """The server has no capacity or has failed. The client reconnects."""


class Reason(StrEnum):
    """Reasons for which a request fails."""

    TOPIC = "topic"
    """No such topic or partition is served."""

    EXPIRED = "expired"
    """Positions are below what is retained (position < limit), beyond the end (position > limit), or among other
    records than were read (position = limit).
    """

    UNAVAILABLE = "unavailable"
    """The server's source does not answer, or the server has no capacity."""

    FAILED = "failed"
    """It failed for good; the server's log has the reason."""


# --- messages ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListTopics:
    """Request the names of all topics."""

    id: _Number
    type: Literal["list_topics"] = "list_topics"


@dataclass(frozen=True, slots=True)
class GetWatermarks:
    """Request the first and the next offset of every partition of these topics."""

    id: _Number
    topics: tuple[_Topic, ...]
    type: Literal["get_watermarks"] = "get_watermarks"


@dataclass(frozen=True, slots=True)
class FindTime:
    """Request the first offset of every partition of these topics at or after a time."""

    id: _Number
    topics: tuple[_Topic, ...]
    timestamp_ms: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    type: Literal["find_time"] = "find_time"


@dataclass(frozen=True, slots=True)
class Read:
    """Send these partitions, each from an offset, and no other."""

    id: _Number
    positions: tuple[tuple[_Topic, _Number, _Number], ...]
    type: Literal["read"] = "read"


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing of exactly these partitions of the READ."""

    partitions: tuple[tuple[_Topic, _Number], ...]
    type: Literal["pause"] = "pause"


@dataclass(frozen=True, slots=True)
class Credit:
    """Grant more bytes of records."""

    size: Annotated[int, Field(ge=0, le=1 << 40)]
    type: Literal["credit"] = "credit"


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of all topics."""

    id: _Number
    topics: tuple[_Topic, ...]
    type: Literal["topics"] = "topics"


@dataclass(frozen=True, slots=True)
class Watermarks:
    """First and next offset of every partition."""

    id: _Number
    partitions: tuple[tuple[_Topic, _Number, tuple[_Number, _Number]], ...]
    type: Literal["watermarks"] = "watermarks"


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset of every partition."""

    id: _Number
    partitions: tuple[tuple[_Topic, _Number, _Number], ...]
    type: Literal["offsets"] = "offsets"


@dataclass(frozen=True, slots=True)
class Failed:
    """A request, or the reading of a READ, failed; with position and limit of the partitions concerned."""

    id: _Number  # 0: a READ failed
    reason: Reason
    topic: _Topic = ""
    partitions: tuple[tuple[_Topic, _Number, tuple[_Number, _Number]], ...] = ()
    read: _Number = 0
    type: Literal["failed"] = "failed"


Request: TypeAlias = ListTopics | GetWatermarks | FindTime | Read | Pause | Credit
Answer: TypeAlias = Topics | Watermarks | Offsets | Failed

_REQUESTS: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="type")])
_ANSWERS: Final[TypeAdapter[Answer]] = TypeAdapter(Annotated[Answer, Field(discriminator="type")])


def encode_message(message: Request | Answer) -> str:
    """The JSON text of a request or an answer."""
    adapter: TypeAdapter[Any] = _REQUESTS if isinstance(message, Request) else _ANSWERS
    return adapter.dump_json(message).decode()


def decode_request(data: bytes | str) -> Request:
    """A client's message. RemoteProtocolError: it is none."""
    return _decode(_REQUESTS, data)


def decode_answer(data: str) -> Answer:
    """A server's text message. RemoteProtocolError: it is none."""
    return _decode(_ANSWERS, data)


def _decode(adapter: TypeAdapter[_Value], data: bytes | str) -> _Value:
    if not isinstance(data, str):
        raise RemoteProtocolError("a request of a websocket stream is binary, and requests are JSON text")
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "message"
        raise RemoteProtocolError(f"a message of a websocket stream has a wrong {field}: {first['msg']}") from None


def rows(values: Mapping[Partition, _Value]) -> tuple[tuple[str, int, _Value], ...]:
    """Values by partition as a message carries them."""
    return tuple((topic, number, value) for (topic, number), value in values.items())


def by_partition(rows: Iterable[tuple[str, int, _Value]]) -> dict[Partition, _Value]:
    """Values of a message, by partition."""
    return {(topic, number): value for topic, number, value in rows}


# --- records -------------------------------------------------------------------------------------------------

_HEADER: Final = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "name", "type": "bytes"}, {"name": "value", "type": "bytes"}],
}
_COLUMNS: Final[Any] = parse_schema(
    {
        "type": "record",
        "name": "Columns",
        "namespace": "cardinal.websocket",
        "fields": [
            {"name": "offsets", "type": {"type": "array", "items": "long"}, "doc": "the first alone if consecutive"},
            {"name": "timestamps", "type": {"type": "array", "items": "long"}},
            {"name": "sizes", "type": {"type": "array", "items": "int"}, "doc": "of key, value, key, value, …"},
            {"name": "content", "type": "bytes", "doc": "keys and values"},
            {"name": "headers", "type": {"type": "array", "items": "int"}, "doc": "of distinct; none if all equal"},
            {"name": "distinct", "type": {"type": "array", "items": {"type": "array", "items": _HEADER}}},
        ],
    }
)
_CHUNK_SCHEMA: Final = {
    "type": "record",
    "name": "Chunk",
    "namespace": "cardinal.websocket",
    "fields": [
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "begin", "type": "long", "doc": "offsets from here to next that are not in the chunk do not exist"},
        {"name": "next", "type": "long"},
        {"name": "compressed", "type": "boolean"},
        {"name": "content", "type": "bytes", "doc": "columns and their CRC-32; empty where only the position moves"},
    ],
}
_CHUNK: Final[Any] = parse_schema(_CHUNK_SCHEMA)
_FRAME: Final[Any] = parse_schema(
    {
        "type": "record",
        "name": "Records",
        "namespace": "cardinal.websocket",
        "fields": [
            {"name": "read", "type": "long"},
            {"name": "chunks", "type": {"type": "array", "items": _CHUNK_SCHEMA}},
        ],
    }
)
_LONG: Final[Any] = parse_schema({"type": "long"})
_CRC_SIZE: Final = 4
# Errors of fastavro and snappy on cut or altered bytes (seen).
_MALFORMED: Final = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, AttributeError,
)  # fmt: skip
_new_record = partial(tuple.__new__, Record)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The records between two positions of a partition, encoded once for all clients.

    Attributes:
        tp: the partition.
        begin, next: the position before and after it.
        count: records.
        oldest_ms, newest_ms: times of its first and its last record; 0 without records.
        data: its bytes.

    """

    tp: Partition
    begin: int
    next: int
    count: int
    oldest_ms: int
    newest_ms: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """A chunk at the receiver; :func:`decode_records` decodes its content."""

    tp: Partition
    begin: int
    next: int
    compressed: bool
    content: bytes


def encode_chunks(
    records: Sequence[Record], before: Mapping[Partition, int], after: Mapping[Partition, int], *, compress: bool = True
) -> list[Chunk]:
    """Encode records of a source.

    Arguments:
        records: in order within each partition.
        before: the source's positions before them. A partition that is not here begins at its first record.
        after: its positions after them. A partition that moved without a record yields an empty chunk.
        compress: whether to compress the content with snappy.

    """
    groups: defaultdict[Partition, list[Record]] = defaultdict(list)
    for tp, run in groupby(records, itemgetter(0, 1)):
        groups[tp] += run
    chunks: list[Chunk] = []
    for tp, group in groups.items():
        begin = before.get(tp, group[0].offset)
        parts = list(_parts(group))
        for index, part in enumerate(parts):
            last = part[-1].offset + 1
            following = last if index < len(parts) - 1 else max(last, after.get(tp, last))
            chunks.append(_chunk(tp, begin, following, part, compress=compress))
            begin = following
    for tp, position in after.items():
        if tp not in groups and tp in before and position > before[tp]:
            chunks.append(_chunk(tp, before[tp], position, (), compress=False))
    return chunks


def encode_frame(read: int, chunks: Sequence[Chunk]) -> bytes:
    """A records message of these chunks, at least one, that follows the READ with this id."""
    return b"".join((_long(read), _long(len(chunks)), *[chunk.data for chunk in chunks], b"\0"))


def decode_frame(data: bytes) -> tuple[int, list[ReceivedChunk]]:
    """The READ's id and the chunks of a records message. RemoteProtocolError: it is none."""
    file = BytesIO(data)
    try:
        frame: Any = schemaless_reader(file, _FRAME, None)
        if file.read(1):
            raise EOFError
        chunks = [
            ReceivedChunk(
                (one["topic"], one["partition"]), one["begin"], one["next"], one["compressed"], one["content"]
            )
            for one in frame["chunks"]
        ]
    except _MALFORMED:
        raise RemoteProtocolError("a records message of a websocket stream is malformed") from None
    for chunk in chunks:
        if not 0 <= chunk.begin <= chunk.next:
            raise RemoteProtocolError(
                f"a chunk of {chunk.tp[0]}:{chunk.tp[1]} ends at {chunk.next}, before its begin {chunk.begin}"
            )
    return frame["read"], chunks


def decode_records(chunk: ReceivedChunk, size_max: int) -> list[Record]:
    """The records of a chunk.

    Arguments:
        chunk: as :func:`decode_frame` returned it.
        size_max: bytes that its content may have when it is uncompressed.

    Raises:
        RemoteProtocolError: columns that do not match each other, offsets outside the chunk or out of order.

    """
    if not chunk.content:
        return []
    tp = f"{chunk.tp[0]}:{chunk.tp[1]}"
    try:
        columns: Any = schemaless_reader(BytesIO(_content(chunk, size_max)), _COLUMNS, None)
        offsets, headers, content = columns["offsets"], columns["headers"], columns["content"]
        ends = list(accumulate(columns["sizes"]))
        parts = list(map(content.__getitem__, map(slice, [0, *ends], ends)))
        distinct = [
            tuple([(header["name"].decode("utf-8", "surrogateescape"), header["value"]) for header in entry])
            for entry in columns["distinct"]
        ]
        if min([0, *headers, *columns["sizes"]]) < 0 or (ends or [0])[-1] != len(content):
            raise IndexError
        count = len(columns["timestamps"])
        rows = zip(
            repeat(chunk.tp[0], count),
            repeat(chunk.tp[1], count),
            range(offsets[0], offsets[0] + count) if len(offsets) == 1 else offsets,
            parts[::2],
            parts[1::2],
            columns["timestamps"],
            map(distinct.__getitem__, headers or repeat(0, count)),
            strict=True,
        )
        records = list(map(_new_record, rows))
    except _MALFORMED:
        raise RemoteProtocolError(f"a chunk of {tp} is malformed") from None
    inside = not records or (chunk.begin <= records[0].offset and records[-1].offset < chunk.next)
    if not (inside and all(map(lt, offsets, offsets[1:]))):
        raise RemoteProtocolError(f"the offsets of a chunk of {tp} do not ascend from {chunk.begin} to {chunk.next}")
    return records


def _content(chunk: ReceivedChunk, size_max: int) -> bytes:
    """The columns' bytes. One of _MALFORMED, or RemoteProtocolError: they are damaged or too large."""
    packed, crc = chunk.content[:-_CRC_SIZE], chunk.content[-_CRC_SIZE:]
    # Snappy's content begins with its uncompressed size; altered bytes must not reserve gigabytes.
    size = _varint(packed) if chunk.compressed else len(packed)
    if size > size_max:
        raise RemoteProtocolError(
            f"a chunk of {chunk.tp[0]}:{chunk.tp[1]} has {size} bytes: raise max.frame.bytes, now {size_max}"
        )
    try:
        content = bytes(snappy.uncompress(packed)) if chunk.compressed else packed
    except snappy.UncompressError:
        raise ValueError from None
    if zlib.crc32(content) != int.from_bytes(crc, "big"):
        raise RemoteProtocolError(f"the checksum of a chunk of {chunk.tp[0]}:{chunk.tp[1]} does not match")
    return content


def _parts(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Runs of records that fit a chunk."""
    begin = size = 0
    headers: object = ()
    for index, record in enumerate(records):
        if index > begin and (size >= CHUNK_BYTES or index - begin >= CHUNK_RECORDS):
            yield records[begin:index]
            begin, size = index, 0
        size += len(record.key) + len(record.value)
        if record.headers != headers:  # equal ones are in the chunk once
            headers = record.headers
            size += sum(len(name) + len(value or b"") for name, value in record.headers)
    yield records[begin:]


def _chunk(tp: Partition, begin: int, following: int, records: Sequence[Record], *, compress: bool) -> Chunk:
    content = _encode_columns(records) if records else b""
    crc = zlib.crc32(content).to_bytes(_CRC_SIZE, "big") if records else b""
    chunk = {
        "topic": tp[0],
        "partition": tp[1],
        "begin": begin,
        "next": following,
        "compressed": compress,
        "content": (snappy.compress(content) if compress else content) + crc,
    }
    out = BytesIO()
    schemaless_writer(out, _CHUNK, chunk)
    oldest, newest = (records[0].timestamp_ms, records[-1].timestamp_ms) if records else (0, 0)
    return Chunk(tp, begin, following, len(records), oldest, newest, out.getvalue())


def _encode_columns(records: Sequence[Record]) -> bytes:
    _, _, offsets, keys, values, timestamps, headers = zip(*records, strict=True)
    distinct = {entry: index for index, entry in enumerate(dict.fromkeys(headers))}
    columns = {
        "offsets": offsets[:1] if offsets[-1] - offsets[0] == len(offsets) - 1 else offsets,
        "timestamps": timestamps,
        "sizes": list(chain.from_iterable(zip(map(len, keys), map(len, values), strict=True))),
        "content": b"".join(chain.from_iterable(zip(keys, values, strict=True))),
        "headers": list(map(distinct.__getitem__, headers)) if len(distinct) > 1 else (),
        # Kafka allows a header without a value; it is sent as an empty one.
        "distinct": [
            [{"name": name.encode("utf-8", "surrogateescape"), "value": value or b""} for name, value in entry]
            for entry in distinct
        ],
    }
    out = BytesIO()
    schemaless_writer(out, _COLUMNS, columns)
    return out.getvalue()


def _long(number: int) -> bytes:
    out = BytesIO()
    schemaless_writer(out, _LONG, number)
    return out.getvalue()


def _varint(data: bytes) -> int:
    """The unsigned number at the beginning of these bytes, seven bits a byte. ValueError: there is none."""
    value = 0
    for shift, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004 - the highest bit marks that another byte follows
            return value
    raise ValueError
