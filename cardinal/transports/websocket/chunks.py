"""Records of one partition as bytes, in columns: encoded once for all clients, decoded with few steps a record.

A chunk, numbers big-endian::

    topic: text, partition:4, begin:8, next:8     what lies between begin and next and is not here does not exist
    size:4                                        of everything that follows
    count:4, first offset:8, time:signed 8        of the records; the lowest of their times, in ms since 1970
    offsets: count × 4                            each record's offset less the first
    times: count × 4                              each record's time less the lowest
    key sizes: count × 4, value sizes: count × 4
    headers: count × 2                            each record's place in the table
    table: count:4, of entries: count:4 of (size:4, name, size:4, value)
    keys and values                               key, value, key, value, …

``text`` is as in :mod:`.wire`; a header's name is UTF-8 as well, and may be as long as a record. A chunk without
records says only that a position moves (control records, gaps). Pure: no I/O.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from cardinal.errors import RemoteProtocolError
from cardinal.protocols.streams.types import Record

from .fields import Cursor, long_text, sized, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition

CHUNK_BYTES: Final = 128 << 10
"""Content from which on the next chunk is begun: a record more may be in it."""

CHUNK_RECORDS: Final = 4096

_WHERE: Final = struct.Struct(">IQQI")
_FIRST: Final = struct.Struct(">IQq")
_COUNT: Final = struct.Struct(">I")
_ROW_BYTES: Final = 18
_HEADER_BYTES: Final = 8
_U32_MAX: Final = (1 << 32) - 1
_new_record = partial(tuple.__new__, Record)

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is between two positions of a partition, as bytes."""

    where: Partition
    begin: int
    next: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """The same at the receiver: where it belongs, and what :func:`decode_records` makes records of."""

    where: Partition
    begin: int
    next: int
    body: memoryview


# --- writing -------------------------------------------------------------------------------------------------


def encode_chunks(
    records: Sequence[Record], before: Mapping[Partition, int], after: Mapping[Partition, int]
) -> list[Chunk]:
    """What a source gave, in chunks.

    Arguments:
        records: in order within each partition.
        before: the source's positions before them. A partition that is not here begins at its first record.
        after: its positions after them. Where one moved without a record, a chunk says so.

    """
    groups: defaultdict[Partition, list[Record]] = defaultdict(list)
    for where, run in groupby(records, itemgetter(0, 1)):
        groups[where] += run
    chunks: list[Chunk] = []
    for where, group in groups.items():
        begin = before.get(where, group[0].offset)
        parts = list(_parts(group))
        for index, part in enumerate(parts):
            last = part[-1].offset + 1
            following = last if index < len(parts) - 1 else max(last, after.get(where, last))
            chunks.append(Chunk(where, begin, following, _encode(where, begin, following, part)))
            begin = following
    for where, position in after.items():
        if where not in groups and where in before and position > before[where]:
            data = _encode(where, before[where], position, ())
            chunks.append(Chunk(where, before[where], position, data))
    return chunks


def _parts(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Runs of records that fit a chunk: by bytes, by number, and by what four bytes can say."""
    begin = size = 0
    headers: Headers = ()
    for index, record in enumerate(records):
        first = records[begin]
        if index > begin and (
            size >= CHUNK_BYTES
            or index - begin >= CHUNK_RECORDS
            or record.offset - first.offset > _U32_MAX
            or abs(record.timestamp_ms - first.timestamp_ms) > _U32_MAX // 2
        ):
            yield records[begin:index]
            begin, size = index, 0
        size += len(record.key) + len(record.value)
        if record.headers != headers:  # the same ones lie in the chunk once
            headers = record.headers
            size += sum(len(name) + len(value or b"") for name, value in headers)
    yield records[begin:]


def _encode(where: Partition, begin: int, following: int, records: Sequence[Record]) -> bytes:
    body = _encode_records(records) if records else _FIRST.pack(0, 0, 0) + _COUNT.pack(0)
    return b"".join((text(where[0]), _WHERE.pack(where[1], begin, following, len(body)), body))


def _encode_records(records: Sequence[Record]) -> bytes:
    count = len(records)
    _, _, offsets, keys, values, times, headers = zip(*records, strict=True)
    first, earliest = offsets[0], min(times)
    table = {entry: index for index, entry in enumerate(dict.fromkeys(headers))}
    row = struct.Struct(f">{count}I")
    return b"".join(
        (
            _FIRST.pack(count, first, earliest),
            row.pack(*(offset - first for offset in offsets)),
            row.pack(*(time - earliest for time in times)),
            row.pack(*map(len, keys)),
            row.pack(*map(len, values)),
            struct.pack(f">{count}H", *map(table.__getitem__, headers)),
            _COUNT.pack(len(table)),
            *map(_encode_headers, table),
            *chain.from_iterable(zip(keys, values, strict=True)),
        )
    )


def _encode_headers(entry: Headers) -> bytes:
    # Kafka allows a header without a value; to everybody here that is an empty one.
    return _COUNT.pack(len(entry)) + b"".join(long_text(name) + sized(value or b"") for name, value in entry)


# --- reading -------------------------------------------------------------------------------------------------


def decode_chunks(data: memoryview) -> list[ReceivedChunk]:
    """The chunks of a frame, their records not looked at yet. RemoteProtocolError: these are none."""
    cursor = Cursor(data)
    chunks: list[ReceivedChunk] = []
    while cursor.at < len(data):
        topic = cursor.text()
        number, begin, following, size = cursor.unpack(_WHERE)
        if begin > following:
            raise RemoteProtocolError(f"a chunk of {topic}:{number} ends at {following}, before its begin {begin}")
        chunks.append(ReceivedChunk((topic, number), begin, following, cursor.take(size)))
    return chunks


def decode_records(chunk: ReceivedChunk) -> list[Record]:
    """The records of a chunk.

    Raises:
        RemoteProtocolError: columns that do not fit each other, offsets outside of the chunk or out of order.

    """
    cursor = Cursor(chunk.body)
    count, first, earliest = cursor.unpack(_FIRST)
    if count * _ROW_BYTES > len(chunk.body) - cursor.at:
        raise RemoteProtocolError(f"a chunk announces {count} records and ends before them")
    row = struct.Struct(f">{count}I")
    offsets, times, keys, values = (row.unpack(cursor.take(row.size)) for _ in range(4))
    places = struct.unpack(f">{count}H", cursor.take(2 * count))
    table = [_decode_headers(cursor) for _ in range(cursor.count(_COUNT.size))]
    content = bytes(cursor.take(len(cursor.data) - cursor.at))
    _check(chunk, first, offsets)
    if count and max(places) >= len(table):
        raise RemoteProtocolError(f"a chunk of {chunk.where[0]}:{chunk.where[1]} names headers that it does not have")
    ends = list(accumulate(chain.from_iterable(zip(keys, values, strict=True))))
    if (ends[-1] if ends else 0) != len(content):
        raise RemoteProtocolError(f"the content of a chunk of {chunk.where[0]}:{chunk.where[1]} has another size")
    parts = list(map(content.__getitem__, map(slice, chain((0,), ends), ends)))
    rows = zip(
        repeat(chunk.where[0]),
        repeat(chunk.where[1]),
        map(first.__add__, offsets),
        parts[::2],
        parts[1::2],
        map(earliest.__add__, times),
        map(table.__getitem__, places),
        strict=False,
    )
    return list(map(_new_record, rows))


def _check(chunk: ReceivedChunk, first: int, offsets: Sequence[int]) -> None:
    inside = not offsets or (
        offsets[0] == 0
        and chunk.begin <= first
        and first + offsets[-1] < chunk.next
        and all(map(int.__lt__, offsets, offsets[1:]))
    )
    if not inside:
        raise RemoteProtocolError(
            f"the offsets of a chunk of {chunk.where[0]}:{chunk.where[1]} do not ascend from {chunk.begin} to "
            f"{chunk.next}"
        )


def _decode_headers(cursor: Cursor) -> Headers:
    return tuple((cursor.long_text(), bytes(cursor.sized())) for _ in range(cursor.count(_HEADER_BYTES)))
