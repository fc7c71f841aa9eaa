"""Complete blocks as rows: the source's internal ``table=raw``, and the input of the lake's sink.

Rules:

1. One row is one block that was added (+1) or removed (-1); a block is never split into several rows.
2. ``_seq`` is dense and belongs to ``_lineage``. The rows of one update follow each other: removed blocks newest
   first, then added blocks oldest first; ``_update_id`` is the first ``_seq`` among them.
3. A removed block's row carries the same columns as when it was added, content included.
4. ``content`` is every delete and update of the block in the encoding of a SubBatchMsg's value; paths are bytes. It is
   null, and so is ``parent``, where a block's content is not on the topics.
5. Every column is nullable for Spark, because Arrow batches must match the schema exactly, nullability included.

This file never reads a stream and never writes a table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import path_bytes, path_text
from cardinal.protocols.streams.wire import avro

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ADDED: Final = 1
"""``_change`` of a block that joins the chain."""

REMOVED: Final = -1
"""``_change`` of a block that leaves it."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Spark's TIMESTAMP in Arrow under a session in UTC."""

KEY_ARROW: Final = pa.schema(
    [
        ("_seq", pa.int64()),
        ("_change", pa.int8()),
        ("_update_id", pa.int64()),
        ("_block_number", pa.int64()),
        ("_block_hash", pa.binary()),
        ("_block_time", TIMESTAMP),
        ("_published_at", TIMESTAMP),
    ]
)
"""The columns that every row of every ``table`` of the source begins with (``docs/spark.md``)."""

RAW_ARROW: Final = pa.schema(
    [
        *KEY_ARROW,
        ("_lineage", pa.string()),
        ("_app", pa.string()),
        ("parent", pa.binary()),
        ("weight", pa.binary()),
        ("content", pa.binary()),
    ]
)
"""The columns of ``table=raw``: equal to the Arrow schema that PySpark derives from their own, as a test checks."""


class RawRow(NamedTuple):
    """One row of ``table=raw``. Times are microseconds since 1970 in UTC, None where the stream has none."""

    seq: int
    change: int
    update_id: int
    number: int
    hash: bytes
    block_time: int | None
    published_at: int | None
    lineage: str
    app: str
    parent: bytes | None
    weight: bytes
    content: bytes | None


@dataclass(frozen=True, slots=True)
class AppSpec:
    """Specification of the application that a task rebuilds: the arguments of ``cardinal.apps.get``."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> AppSpec:
        """Parse the ``_app`` column. ConfigurationError where it is no specification."""
        try:
            options = json.loads(text)
            name = options.pop("name")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ConfigurationError(
                f"_app must be an application's specification as JSON with a name, not {text[:80]!r}", setting="_app"
            ) from None
        return cls(name, options)

    def text(self) -> str:
        """The ``_app`` column: compact JSON, keys sorted, so that equal specifications are equal text."""
        return json.dumps({**self.options, "name": self.name}, sort_keys=True, separators=(",", ":"))


def weight_bytes(weight: int) -> bytes:
    """A weight as in a Batch: big-endian, minimal, empty for zero."""
    return weight.to_bytes((weight.bit_length() + 7) // 8, "big")


def encode_content(deletes: Iterable[bytes], updates: Mapping[bytes, bytes]) -> bytes:
    """The ``content`` column of a block, sorted by path. Paths are bytes as on the wire."""
    return avro.write_content(sorted(deletes), sorted(updates.items()))


def payload_content(payload: Payload) -> bytes:
    """The ``content`` column for a reassembled payload (its sub batches are already merged)."""
    return encode_content(map(path_bytes, payload.deletes), raw_updates(payload))


def raw_updates(payload: Payload) -> Mapping[bytes, bytes]:
    """The updates of a payload by paths in bytes."""
    updates = payload.updates
    return updates.raw if isinstance(updates, PathMap) else {path_bytes(path): value for path, value in updates.items()}


def row_payload(row: RawRow) -> Payload:
    """The payload of a row. DecodeError where its content is malformed."""
    deletes, updates = avro.read_content(row.content or b"")
    return Payload(
        number=row.number,
        hash=row.hash,
        parent=row.parent or b"",
        weight=int.from_bytes(row.weight, "big"),
        updates=PathMap(updates),
        deletes=frozenset(map(path_text, deletes)),
    )


def raw_batch(rows: Iterable[RawRow]) -> pa.RecordBatch:
    """Rows as one Arrow batch of ``RAW_ARROW``. Keep a batch to 8–32 MB: Spark holds it in memory."""
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) or [()] * len(RAW_ARROW)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_ARROW)


def raw_rows(batch: pa.RecordBatch) -> Iterator[RawRow]:
    """The rows of a batch of ``RAW_ARROW``, one after the other; a timestamp of any unit is read as microseconds."""
    columns = []
    for field in RAW_ARROW:
        column = batch.column(field.name)
        columns.append(column.cast(TIMESTAMP).cast(pa.int64()) if pa.types.is_timestamp(field.type) else column)
    for values in zip(*columns, strict=True):
        yield RawRow(*(value.as_py() for value in values))
