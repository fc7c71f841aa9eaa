"""The header ``cardinal-ranges`` of a sealed Batch: for readers that take Batches alone and leave the content in place.

It names the ranges of offsets of the other messages of the block, the log that these offsets belong to (a
copy of the stream has other offsets), their size, and the few values that decide about the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_reader

from cardinal.errors import DecodeError
from cardinal.protocols.streams.types import Headers, Partition, path_bytes

from .avro import array_of, record_of

RANGES_HEADER: Final = "cardinal-ranges"

_LONGS: Final = array_of("long")
TOPICS_SCHEMA: Final = array_of(record_of("topic", name="string", partitions=_LONGS, first=_LONGS, records=_LONGS))
"""Ranges of offsets: of every topic its partitions, the first offset in each, and how many from there on."""

RANGES_SCHEMA: Final = record_of(
    "ranges", log="string", size="long", values={"type": "map", "values": "bytes"}, topics=TOPICS_SCHEMA
)
_END: Final = 0
"""Ends an array or a map: a block of no items."""

_MORE: Final = 0x80
_LAST: Final = 0x7F

_SCHEMA: Final = parse_schema(RANGES_SCHEMA)


class BlockRanges(NamedTuple):
    """Content of the header.

    ``log`` names the log that the offsets belong to, such as the id of a Kafka cluster. ``ranges`` has for every
    partition the offset of the first message, and the one after the last; ``size`` their bytes of keys and values.
    ``values``: by path, those of them that decide about the chain.
    """

    log: str
    size: int
    ranges: Mapping[Partition, tuple[int, int]]
    values: Mapping[bytes, bytes]


def encode_ranges(named: BlockRanges) -> bytes:
    """The header's value; by hand, because a producer of small blocks writes many: a fifth of fastavro's time."""
    topics: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for (topic, partition), (low, high) in named.ranges.items():
        partitions, first, records = topics.get(topic) or topics.setdefault(topic, ([], [], []))
        partitions.append(partition)
        first.append(low)
        records.append(high - low)
    out = bytearray()
    _write_text(out, (), named.log.encode())
    before: tuple[int, ...] = (named.size, len(named.values)) if named.values else (named.size,)
    for path, value in named.values.items():
        _write_text(out, before, path)
        _write_text(out, (), value)
        before = ()
    before = (*before, _END, len(topics)) if topics else (*before, _END)
    for topic, (partitions, first, records) in topics.items():
        _write_text(out, before, topic.encode())
        count = len(partitions)
        _write_longs(out, (count, *partitions, _END, count, *first, _END, count, *records, _END))
        before = ()
    _write_longs(out, (*before, _END))
    return bytes(out)


def _write_text(out: bytearray, before: tuple[int, ...], content: bytes) -> None:
    """Append some longs, and a string or bytes."""
    _write_longs(out, (*before, len(content)))
    out += content


def _write_longs(out: bytearray, numbers: Iterable[int]) -> None:
    """Append Avro longs."""
    append = out.append
    for number in numbers:
        rest = (number << 1) ^ (number >> 63)
        while rest > _LAST:
            append(rest & _LAST | _MORE)
            rest >>= 7
        append(rest)


def decode_ranges(value: bytes) -> BlockRanges:
    """Decode the header's value. DecodeError where it is malformed."""
    try:
        fields: Any = schemaless_reader(BytesIO(value), _SCHEMA, None)
        ranges = read_topics(fields["topics"])
    except (EOFError, IndexError, ValueError, OverflowError, MemoryError):
        raise DecodeError(f"the header {RANGES_HEADER} is malformed") from None
    if any(low < 0 or high <= low for low, high in ranges.values()):
        raise DecodeError(f"the header {RANGES_HEADER} names impossible offsets")
    values = {path_bytes(path): value for path, value in fields["values"].items()}
    return BlockRanges(fields["log"], fields["size"], ranges, values)


def read_topics(topics: Any) -> dict[Partition, tuple[int, int]]:  # noqa: ANN401 - what fastavro read
    """For every partition the first offset, and the one after the last. ValueError where the columns differ."""
    return {
        (topic["name"], partition): (first, first + records)
        for topic in topics
        for partition, first, records in zip(topic["partitions"], topic["first"], topic["records"], strict=True)
    }


def ranges_of(headers: Headers) -> BlockRanges | None:
    """The ranges that a Batch's headers give for its block's content; None where there are none, or malformed ones."""
    for name, value in headers:
        if name == RANGES_HEADER and value is not None:
            try:
                return decode_ranges(value)
            except DecodeError:
                return None
    return None
