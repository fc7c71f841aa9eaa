"""Offset of a stream, as the JSON of Spark's checkpoint, and the rows of the batch that ends there.

``{"v":2,"seq":…,"number":…,"cursor":"c1:…","batch":"…"}``: the last sequence number, the head's block number, the
consumer's cursor, and base64 of an Avro record that names every row of the batch.

Rules:

1. Spark stores an offset before it runs the batch that ends there. So the rows of a batch are decided once: after a
   restart they are looked up by name, for any start of the batch.
2. A row's name is nine bytes: flags, and eight derived from its block's hash. ``topics`` holds for every partition the
   range of the messages of all rows.
3. A row without ranges, of a block that is not on the topics, holds the block's number and complete hash.
"""

from __future__ import annotations

import base64
import binascii
import pickle
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from cardinal.errors import CursorInvalidError
from cardinal.protocols.streams.assembly.digests import HeaderOnly
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import HASH_SIZE, SHORT, short
from cardinal.protocols.streams.wire.ranges import TOPICS_SCHEMA, read_topics

from .tables import KeyRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.payload import MissingPayload
    from cardinal.protocols.streams.types import Partition

    Ranges = Mapping[Partition, tuple[int, int]]

VERSION: Final = 2

_ADDED: Final = 1
_FIRST: Final = 2
_BARE: Final = 4
_NAME_SIZE: Final = 1 + SHORT
_NUMBER_SIZE: Final = 8

_SCHEMA: Final[Any] = parse_schema(
    {
        "type": "record",
        "name": "batch",
        "fields": [
            {"name": "names", "type": "bytes"},
            {"name": "bare", "type": "bytes"},
            {"name": "topics", "type": TOPICS_SCHEMA},
        ],
    }
)


class PlannedRow(NamedTuple):
    """One row: a block that joins (+1) or leaves (-1) the chain, the ranges of its messages, and their bytes.

    Without ranges its content is not on the topics.
    """

    row: KeyRow
    ranges: Ranges
    size: int


@dataclass(frozen=True, slots=True)
class NamedRow:
    """One row of a batch by name. ``ref``: number and hash where its content is not on the topics."""

    seq: int
    change: int
    update_id: int
    name: bytes
    ref: tuple[int, bytes] | None


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """The rows of a batch by name, and the ranges of all their messages."""

    lineage: str
    rows: Sequence[NamedRow]
    ranges: Ranges


def offset_of(cursor: Cursor, rows: Sequence[PlannedRow] = ()) -> dict[str, Any]:
    """The offset of a cursor, and of the batch that ends there."""
    number = -1 if cursor.head is None else cursor.head.number
    return {"v": VERSION, "seq": cursor.seq, "number": number, "cursor": str(cursor), "batch": _encoded(rows)}


def cursor_at(offset: Mapping[str, Any]) -> Cursor | None:
    """The cursor of an offset; None for one that holds a start instead. CursorInvalidError for anything else."""
    if offset.get("v") != VERSION:
        raise CursorInvalidError(
            f"this checkpoint's offsets have version {offset.get('v')!r}, and this release reads {VERSION}: start with "
            "a new checkpoint, and with restartFrom=sink if there is a lake"
        )
    return None if "start" in offset else Cursor.parse(str(offset.get("cursor")))


def batch_at(offset: Mapping[str, Any]) -> NamedBatch:
    """The batch that ends at an offset. CursorInvalidError where the offset was altered."""
    cursor = cursor_at(offset)
    if cursor is None:
        raise CursorInvalidError("no batch ends at a stream's start")
    try:
        fields: Any = schemaless_reader(BytesIO(base64.b64decode(offset["batch"], validate=True)), _SCHEMA, None)
        return NamedBatch(cursor.lineage.hex(), _rows(fields, cursor.seq), read_topics(fields["topics"]))
    except (KeyError, TypeError, binascii.Error, EOFError, IndexError, ValueError):
        raise CursorInvalidError("the checkpoint's offset was altered: its batch is malformed") from None


def planned_row(block: HeaderOnly | MissingPayload, seq: int, change: int, update_id: int, lineage: str) -> PlannedRow:
    """The row of a block whose content is on the topics, or of one without content."""
    if isinstance(block, HeaderOnly) and block.ranges:
        header = (block.number, block.hash, block.published_ms, lineage, block.parent, block.weight)
        return PlannedRow(KeyRow(seq, change, update_id, *header), block.ranges, block.size)
    return PlannedRow(KeyRow(seq, change, update_id, block.number, block.hash, 0, lineage, b"", 0), {}, 0)


def packed(rows: Sequence[PlannedRow]) -> bytes:
    """Rows compressed, to hold and to send."""
    return zlib.compress(pickle.dumps(list(rows)), 1)


def unpacked(content: bytes) -> list[PlannedRow]:
    """The rows of :func:`packed`."""
    rows: list[PlannedRow] = pickle.loads(zlib.decompress(content))  # noqa: S301 - of packed()
    return rows


def widen(span: dict[Partition, tuple[int, int]], ranges: Ranges) -> None:
    """Extend a span over these ranges."""
    for tp, (low, high) in ranges.items():
        span_low, span_high = span.get(tp, (low, high))
        span[tp] = (min(low, span_low), max(high, span_high))


def spanned(rows: Sequence[PlannedRow]) -> dict[Partition, tuple[int, int]]:
    """The range of the messages of these rows, by partition."""
    span: dict[Partition, tuple[int, int]] = {}
    for planned in rows:
        widen(span, planned.ranges)
    return span


def _encoded(rows: Sequence[PlannedRow]) -> str:
    names, bare = bytearray(), bytearray()
    for row, ranges, _ in rows:
        flags = (_ADDED if row.change > 0 else 0) | (_FIRST if row.seq == row.update_id else 0)
        if not ranges:
            flags |= _BARE
            bare += row.number.to_bytes(_NUMBER_SIZE) + row.hash
        names += bytes([flags]) + short(row.hash)
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), (low, high) in sorted(spanned(rows).items()):
        entry = topics.setdefault(topic, {"name": topic, "partitions": [], "first": [], "records": []})
        entry["partitions"].append(partition)
        entry["first"].append(low)
        entry["records"].append(high - low)
    out = BytesIO()
    schemaless_writer(out, _SCHEMA, {"names": bytes(names), "bare": bytes(bare), "topics": list(topics.values())})
    return base64.b64encode(out.getvalue()).decode()


def _rows(fields: Any, last: int) -> list[NamedRow]:  # noqa: ANN401 - what fastavro read
    names, bare = fields["names"], BytesIO(fields["bare"])
    count = len(names) // _NAME_SIZE
    rows: list[NamedRow] = []
    update_id = 0
    for at in range(count):
        flags, name = names[at * _NAME_SIZE], names[at * _NAME_SIZE + 1 : (at + 1) * _NAME_SIZE]
        seq = last - count + 1 + at
        update_id = seq if flags & _FIRST else update_id
        ref = (int.from_bytes(bare.read(_NUMBER_SIZE)), bare.read(HASH_SIZE)) if flags & _BARE else None
        rows.append(NamedRow(seq, 1 if flags & _ADDED else -1, update_id, name, ref))
    return rows
