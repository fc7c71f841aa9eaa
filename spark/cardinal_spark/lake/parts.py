"""Parquet files that a transaction adds to a table.

Rules:

1. A file has a random name and counts only when a commit names it: a killed task leaves orphans that ``clean``
   removes.
2. Every file carries its number of rows, and bounds and null counts of every column that Delta keeps them for. A
   count would return 0 without the first; and where some columns have bounds, deltalake's own pyarrow dataset takes
   a missing one for "no rows" and a filter on that column drops the file (seen with 1.6.6).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from .location import LakeLocation, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow.fs as pafs

TARGET_BYTES: Final = 128 << 20
"""Size at which a file is closed and the next begun (``spark/cardinal_spark/docs/spark.md``, rule 13)."""

Bound: TypeAlias = int | str

_TEXT: Final = 32
_HIGHEST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROW_GROUP_ROWS: Final = 1 << 17
_PLAIN: Final = frozenset({"value", "raw_path", "input", "data", "logs_bloom"})
"""Columns whose values hardly repeat: a dictionary would be built and discarded."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written and not yet committed.

    Attributes:
        table: the table's name.
        path: within the table.
        size: in bytes.
        rows: number of rows.
        bounds: column to lowest and highest value, as Delta writes them in JSON.
        nulls: column to the number of its nulls.

    """

    table: str
    path: str
    size: int
    rows: int
    bounds: Mapping[str, tuple[Bound, Bound]]
    nulls: Mapping[str, int]

    def action(self, now_ms: int) -> AddAction:
        """The Delta action that adds this file."""
        stats = {
            "numRecords": self.rows,
            "minValues": {name: low for name, (low, _) in self.bounds.items()},
            "maxValues": {name: high for name, (_, high) in self.bounds.items()},
            "nullCount": dict(self.nulls),
        }
        return AddAction(self.path, self.size, {}, now_ms, True, json.dumps(stats))  # noqa: FBT003 - data_change


class DataFileWriter:
    """One table's files of one task: ``write`` rows, then ``close`` and take the parts."""

    def __init__(self, location: LakeLocation, table: str, schema: pa.Schema) -> None:
        self._location = location
        self._table = table
        self._schema = schema
        self._files: pafs.FileSystem | None = None
        self._writer: pq.ParquetWriter | None = None
        self._stream: pa.NativeFile | None = None
        self._path = ""
        self._rows = 0
        self._bounds: dict[str, tuple[Bound, Bound]] = {}
        self._nulls: dict[str, int] = {}
        self._parts: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Append rows of this table's schema. LakeError where the store refuses."""
        if not rows.num_rows:
            return
        with mapped(f"write {self._table} of the lake {self._location.root}"):
            if self._writer is None:
                self._open()
            assert self._writer is not None  # noqa: S101 - opened in the line above
            assert self._stream is not None  # noqa: S101 - the same
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
            self._note(rows)
            if self._stream.tell() >= TARGET_BYTES:
                self._finish()

    def close(self) -> list[DataFile]:
        """Finish the last file and return all of them."""
        with mapped(f"write {self._table} of the lake {self._location.root}"):
            self._finish()
        return self._parts

    def _open(self) -> None:
        if self._files is None:
            self._files = self._location.files(self._table)
        self._path = f"part-{uuid.uuid4()}.zstd.parquet"
        self._stream = self._files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in self._schema.names if name not in _PLAIN],
        )

    def _note(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for field, column in zip(rows.schema, rows.columns, strict=True):
            kind = _bound_kind(field.type)
            if kind is None:
                continue
            self._nulls[field.name] = self._nulls.get(field.name, 0) + column.null_count
            if column.null_count < rows.num_rows:
                found = pc.min_max(column)
                new = kind(found["min"], found["max"])
                low, high = self._bounds.get(field.name, new)
                self._bounds[field.name] = (min(low, new[0]), max(high, new[1]))

    def _finish(self) -> None:
        if self._writer is None or self._stream is None:
            return
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        self._parts.append(DataFile(self._table, self._path, size, self._rows, self._bounds, self._nulls))
        self._writer, self._stream, self._rows = None, None, 0
        self._bounds, self._nulls = {}, {}


# --- bounds as Delta's JSON has them -------------------------------------------------------------------------


def _numbers(low: pa.Scalar, high: pa.Scalar) -> tuple[Bound, Bound]:
    return int(low.as_py()), int(high.as_py())


def _texts(low: pa.Scalar, high: pa.Scalar) -> tuple[Bound, Bound]:
    """The first characters; an upper bound that was truncated ends in the highest character."""
    least, most = low.as_py(), high.as_py()
    return least[:_TEXT], most if len(most) <= _TEXT else most[:_TEXT] + _HIGHEST


def _times(low: pa.Scalar, high: pa.Scalar) -> tuple[Bound, Bound]:
    """Milliseconds in UTC, the upper bound rounded up. Equal lengths, so that they compare as text."""
    least, most = low.value // 1000, -(-high.value // 1000)
    return _iso(least), _iso(most)


def _iso(milliseconds: int) -> str:
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z"


def _dates(low: pa.Scalar, high: pa.Scalar) -> tuple[Bound, Bound]:
    return f"{low.as_py():%Y-%m-%d}", f"{high.as_py():%Y-%m-%d}"


def _bound_kind(kind: pa.DataType) -> Callable[[pa.Scalar, pa.Scalar], tuple[Bound, Bound]] | None:
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _numbers
    if pa.types.is_string(kind):
        return _texts
    if pa.types.is_date(kind):  # without bounds, deltalake's own dataset finds no row by a day
        return _dates
    return _times if pa.types.is_timestamp(kind) else None
