"""Rows of each ``table``: complete blocks in, Arrow batches in Spark's exact schema out.

Rules:

1. Every row of every table begins with the columns of ``KEY_ARROW``.
2. A row of a block that leaves the chain (-1) has the same columns as when it joined.
3. ``events`` needs no content; its ``_block_time`` is null, because the time of a block is part of its content.

This file never reads a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cardinal.protocols.streams.payload import Payload
from cardinal_spark.rows import (
    KEY_ARROW,
    RAW_ARROW,
    AppSpec,
    RawRow,
    payload_content,
    raw_batch,
    raw_updates,
    weight_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RAW: Final = "raw"
EVENTS: Final = "events"
PAYLOAD: Final = "payload"
DECODED_LOGS: Final = "decoded_logs"

EVENTS_ARROW: Final = pa.schema(
    [*KEY_ARROW, ("_lineage", pa.string()), ("parent", pa.binary()), ("weight", pa.binary())]
)
PAYLOAD_ARROW: Final = pa.schema([*KEY_ARROW, ("path", pa.string()), ("raw_path", pa.binary()), ("value", pa.binary())])

_BATCH_BYTES: Final = 8 << 20
_EVM: Final = "evm"


class KeyRow(NamedTuple):
    """The planner's part of a row: the columns that every table begins with, and the block's header."""

    seq: int
    change: int
    update_id: int
    number: int
    hash: bytes
    published_ms: int
    lineage: str
    parent: bytes
    weight: int

    def key(self, block_time: int | None) -> tuple[int, int, int, int, bytes, int | None, int | None]:
        """The values of ``KEY_ARROW``; times in microseconds."""
        published = self.published_ms * 1000 if self.published_ms > 0 else None
        return (self.seq, self.change, self.update_id, self.number, self.hash, block_time, published)


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of a table. ``spec`` is the application's specification (:class:`~cardinal_spark.rows.AppSpec`)."""

    table: str
    spec: str
    integers: str = "string"
    senders: bool = True
    abi: str = ""


def arrow_schema(table: str, integers: str) -> pa.Schema:
    """The columns of a table, all nullable. ConfigurationError where the application has no such table."""
    if table == RAW:
        return RAW_ARROW
    if table == EVENTS:
        return EVENTS_ARROW
    if table == PAYLOAD:
        return PAYLOAD_ARROW
    columns = _columns(table, integers)
    return pa.schema([*KEY_ARROW, *(pa.field(field.name, field.type) for field in columns)])


def _columns(table: str, integers: str) -> pa.Schema:
    """The application's columns of a table."""
    if table == DECODED_LOGS:
        from cardinal_ethereum.tables.decoded import SCHEMAS  # noqa: PLC0415 - the extra of one application

        return SCHEMAS[table]
    from cardinal_ethereum.tables import schemas  # noqa: PLC0415 - the same

    return schemas.schema(table, integers)


def event_batch(rows: Sequence[KeyRow]) -> pa.RecordBatch:
    """The rows of ``events``."""
    values = [(*row.key(None), row.lineage, row.parent or None, weight_bytes(row.weight)) for row in rows]
    return _batch(values, EVENTS_ARROW)


def block_batches(blocks: Iterable[tuple[KeyRow, Payload | None]], settings: TableSettings) -> Iterator[pa.RecordBatch]:
    """The rows of some blocks, in batches of some megabytes. ApplicationError where a block does not decode.

    A block without a payload, whose content is not on the topics, is a row of ``raw`` and none of any other table.
    """
    rows: list[tuple[KeyRow, Payload | None]] = []
    size = 0
    for row, payload in blocks:
        if payload is None and settings.table != RAW:
            continue
        rows.append((row, payload))
        size += 0 if payload is None else sum(map(len, raw_updates(payload).values()))
        if size >= _BATCH_BYTES:
            yield from _made(rows, settings)
            rows, size = [], 0
    if rows:
        yield from _made(rows, settings)


def key_batch(rows: Sequence[KeyRow], times: Sequence[int | None]) -> pa.RecordBatch:
    """The columns of ``KEY_ARROW``."""
    return _batch([row.key(time) for row, time in zip(rows, times, strict=True)], KEY_ARROW)


def payload_table(keys: pa.RecordBatch, block: pa.Array, paths: pa.Array, values: pa.Array) -> pa.Table:
    """Rows of ``payload``: for each the number of its block's row, its path in bytes, and its value."""
    from cardinal_spark.lake.decode import path_columns  # noqa: PLC0415 - imports the lake's dependencies

    columns = pa.Table.from_batches([keys]).take(block).columns
    return pa.table([*columns, *path_columns(paths), values], schema=PAYLOAD_ARROW)


def _made(blocks: list[tuple[KeyRow, Payload | None]], settings: TableSettings) -> Iterator[pa.RecordBatch]:
    spec = AppSpec.parse(settings.spec)
    times = [None if payload is None else block_time(spec, payload) for _, payload in blocks]
    if settings.table == RAW:
        yield raw_batch(
            RawRow(
                *row.key(time),
                row.lineage,
                settings.spec,
                row.parent or None,
                weight_bytes(row.weight),
                None if payload is None else payload_content(payload),
            )
            for (row, payload), time in zip(blocks, times, strict=True)
        )
        return
    keys = key_batch([row for row, _ in blocks], times)
    payloads = [payload for _, payload in blocks if payload is not None]
    if settings.table == PAYLOAD:
        from cardinal_spark.lake.decode import path_rows  # noqa: PLC0415 - imports the lake's dependencies

        table = payload_table(keys, *path_rows(payloads))
    else:
        table = _typed(payloads, keys, settings)
    yield from table.combine_chunks().to_batches()


def _batch(values: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[tuple[Any, ...]] = list(zip(*values, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(payloads: Sequence[Payload], keys: pa.RecordBatch, settings: TableSettings) -> pa.Table:
    # A block that leaves and rejoins within these rows is here twice; typed rows find their block by hash.
    places: dict[bytes, list[int]] = {}
    for index, payload in enumerate(payloads):
        places.setdefault(payload.hash, []).append(index)
    once = [payloads[indexes[0]] for indexes in places.values()]
    found = _found(once, settings)
    hashes = pa.array([f"0x{payload.hash.hex()}" for payload in once], pa.string())
    block = pc.index_in(found.column("block_hash"), value_set=hashes).to_pylist()
    order = [(index, row) for row, at in enumerate(block) for index in places[once[at].hash]]
    order.sort()
    key_rows = pa.Table.from_batches([keys]).take(pa.array([index for index, _ in order], pa.int64()))
    rows = found.take(pa.array([row for _, row in order], pa.int64()))
    schema = arrow_schema(settings.table, settings.integers)
    return pa.table([*key_rows.columns, *rows.columns], names=schema.names).cast(schema)


def _found(payloads: Sequence[Payload], settings: TableSettings) -> pa.Table:
    """The application's rows of some blocks."""
    if settings.table == DECODED_LOGS:
        from cardinal_ethereum import decoded_frames  # noqa: PLC0415 - the extra of one application

        from .decoded import abi_of  # noqa: PLC0415 - the same

        return decoded_frames(payloads, abi_of(settings.abi), tables=[settings.table])[settings.table]
    from cardinal_ethereum import frames  # noqa: PLC0415 - the same

    made = frames(payloads, integers=settings.integers, tables=[settings.table], senders=settings.senders)  # type: ignore[arg-type] # checked by the options
    return made[settings.table]


def time_path(app: AppSpec, block_hash: bytes) -> str | None:
    """The path of the value that holds a block's time; None where the application has none."""
    return f"c/{app.options.get('chain_id', 1):x}/b/{block_hash.hex()}/h" if app.name == _EVM else None


def block_time(app: AppSpec, payload: Payload) -> int | None:
    """A block's own time, microseconds since 1970; None where the application has none, or it fits no column."""
    path = time_path(app, payload.hash)
    value = None if path is None else payload.updates.get(path)
    if value is None:
        return None
    from cardinal_ethereum.times import header_time  # noqa: PLC0415 - of one application

    return header_time(value)
