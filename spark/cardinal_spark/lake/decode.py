"""Decoding by a task: raw rows in, Parquet files and the ledger's rows out. It commits nothing.

Rules:

1. Only added blocks are decoded; a removed block changes ``events`` and ``canonical`` and nothing else.
2. Rows that the lake shows already are left out: up to the seq that ``canonical``'s newest commit names. The driver
   refuses to commit if it has moved since.
3. Memory is bounded by ``_CHUNK_BYTES`` of content, for any size of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from cardinal.protocols.streams.types import path_bytes
from cardinal_spark.errors import LakeError
from cardinal_spark.rows import ADDED, RAW_ARROW, AppSpec, RawRow, raw_rows, raw_updates, row_payload

from .ledger import EventRow
from .parts import DataFile, DataFileWriter
from .state import shown_seq
from .tables import KEYS, PAYLOAD, PAYLOAD_SCHEMA
from .typed import append_schemas, typed_rows, unfit_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.protocols.streams.payload import Payload

    from .location import LakeLocation
    from .tables import LakeSettings

_CHUNK_BYTES: Final = 8 << 20
_CHUNK_BLOCKS: Final = 1024

NONE: Final = 0
"""The seq for "no seq": below every other."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task for the driver.

    Attributes:
        app: the application's specification, empty where the task saw no row.
        base: the last seq that the lake showed when the task began.
        ledger: the rows of ``events``, of every raw row.
        parts: the written files.
        unfit: the numbers of added blocks with a null for a number that no column holds.

    """

    app: str = ""
    base: int = NONE
    ledger: tuple[EventRow, ...] = ()
    parts: tuple[DataFile, ...] = ()
    unfit: tuple[int, ...] = ()


def write_task(batches: Iterable[pa.RecordBatch], location: LakeLocation, settings: LakeSettings) -> TaskResult:
    """Write the files of one task of a batch.

    Raises LakeError where rows are not those of ``table=raw`` or a block does not decode.
    """
    task: _Task | None = None
    for batch in batches:
        for row in raw_rows(_checked(batch)):
            if task is None:
                task = _Task(location, row, settings)
            task.take(row)
    return TaskResult() if task is None else task.finish()


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    missing = [name for name in RAW_ARROW.names if name not in batch.schema.names]
    if missing:
        raise LakeError(f"the rows lack {', '.join(missing)}: cardinal_lake takes the rows of table=raw")
    return batch


class _Task:
    """The state of one task: the versions it started from, the blocks that wait, the open files."""

    def __init__(self, location: LakeLocation, first: RawRow, settings: LakeSettings) -> None:
        self._app = first.app
        self._spec = AppSpec.parse(first.app)
        self._settings = settings
        schemas = append_schemas(self._spec, settings)
        self._writers = {table: DataFileWriter(location, table, schema) for table, schema in schemas.items()}
        self._schemas = schemas
        self._base = shown_seq(location, first.lineage) or NONE
        self._ledger: list[EventRow] = []
        self._waiting: dict[bytes, tuple[RawRow, Payload]] = {}
        self._bytes = 0
        self._unfit: list[int] = []

    def take(self, row: RawRow) -> None:
        if row.app != self._app:
            raise LakeError(f"a batch mixes the applications {self._app} and {row.app}: use one query per stream")
        self._ledger.append(EventRow.of(row))
        if row.change != ADDED or row.content is None or row.seq <= self._base:
            return
        if row.hash in self._waiting:  # it left and rejoined within the chunk: typed rows find their block by hash
            self._flush()
        self._waiting[row.hash] = (row, row_payload(row))
        self._bytes += len(row.content)
        if self._bytes >= _CHUNK_BYTES or len(self._waiting) >= _CHUNK_BLOCKS:
            self._flush()

    def finish(self) -> TaskResult:
        self._flush()
        parts = tuple(part for writer in self._writers.values() for part in writer.close())
        return TaskResult(self._app, self._base, tuple(self._ledger), parts, tuple(self._unfit))

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = [row for row, _ in self._waiting.values()]
        payloads = [payload for _, payload in self._waiting.values()]
        keys = key_columns(rows)
        typed = typed_rows(self._spec, payloads, keys, self._settings)
        self._unfit += unfit_blocks(typed)
        tables = {PAYLOAD: payload_rows(payloads, keys), **typed}
        for table, writer in self._writers.items():
            writer.write(tables[table].cast(self._schemas[table]))
        self._waiting.clear()
        self._bytes = 0


def key_columns(rows: Iterable[RawRow | EventRow]) -> pa.Table:
    """The key columns of typed and payload rows, one row per block."""
    values = [(row.seq, row.number, row.hash, row.block_time, row.published_at) for row in rows]
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=KEYS)


def payload_rows(payloads: Iterable[Payload], keys: pa.Table) -> pa.Table:
    """The rows of ``payload``: every delete and every update of every block; row i of ``keys`` is block i's."""
    block, paths, values = path_rows(payloads)
    return pa.table([*keys.take(block).columns, *path_columns(paths), values], schema=PAYLOAD_SCHEMA)


def path_rows(payloads: Iterable[Payload]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """For every delete and every update of every block its block's index, its path in bytes, and its value."""
    paths: list[bytes] = []
    values: list[bytes | None] = []
    block: list[int] = []
    for index, payload in enumerate(payloads):
        updates, deletes = raw_updates(payload), sorted(map(path_bytes, payload.deletes))
        paths += [*deletes, *updates]
        values += [*[None] * len(deletes), *updates.values()]
        block += [index] * (len(deletes) + len(updates))
    return pa.array(block, pa.int64()), pa.array(paths, pa.binary()), pa.array(values, pa.binary())


def path_columns(raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Paths as text, and as bytes where they are not UTF-8."""
    try:
        return raw.cast(pa.string()), pa.nulls(len(raw), pa.binary())
    except pa.ArrowInvalid:
        paths = raw.to_pylist()
        texts = [_utf8(path) for path in paths]
        rest = [path if text is None else None for path, text in zip(paths, texts, strict=True)]
        return pa.array(texts, pa.string()), pa.array(rest, pa.binary())


def _utf8(path: bytes) -> str | None:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None
