"""Parquet files that a transaction adds to a table.

Rules:

1. A file has a random name and counts only when a commit names it: what a killed task leaves is an orphan that
   ``clean`` removes.
2. Every file carries its number of rows and the bounds of its seq and heights: without them readers cannot prune,
   and a count would answer 0.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from .place import Place, mapped
from .tables import BOUND_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow.fs as pafs

TARGET_BYTES: Final = 128 << 20
"""Size at which a file is closed and the next begun (spark facts, rule 13)."""

_ROW_GROUP_ROWS: Final = 1 << 17
_PLAIN: Final = frozenset({"value", "raw_path", "input", "data", "logs_bloom"})
"""Columns whose values hardly repeat: a dictionary would be built and thrown away."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is written and not yet committed. ``bounds``: column to lowest and highest value."""

    table: str
    path: str
    size: int
    rows: int
    bounds: Mapping[str, tuple[int, int]]

    def action(self, now_ms: int) -> AddAction:
        """The Delta action that adds this file."""
        stats = {
            "numRecords": self.rows,
            "minValues": {name: low for name, (low, _) in self.bounds.items()},
            "maxValues": {name: high for name, (_, high) in self.bounds.items()},
            "nullCount": dict.fromkeys(self.bounds, 0),
        }
        return AddAction(self.path, self.size, {}, now_ms, True, json.dumps(stats))  # noqa: FBT003 - data_change


class PartWriter:
    """One table's files of one task: ``write`` rows, then ``close`` and take the parts."""

    def __init__(self, place: Place, table: str, schema: pa.Schema) -> None:
        self._place = place
        self._table = table
        self._schema = schema
        self._files: pafs.FileSystem | None = None
        self._writer: pq.ParquetWriter | None = None
        self._stream: pa.NativeFile | None = None
        self._path = ""
        self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}
        self._parts: list[Part] = []

    def write(self, rows: pa.Table) -> None:
        """Append rows of this table's schema. LakeError where the store refuses."""
        if not rows.num_rows:
            return
        with mapped(f"write {self._table} of the lake {self._place.root}"):
            if self._writer is None:
                self._open()
            assert self._writer is not None  # noqa: S101 - opened in the line above
            assert self._stream is not None  # noqa: S101 - the same
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
            self._note(rows)
            if self._stream.tell() >= TARGET_BYTES:
                self._finish()

    def close(self) -> list[Part]:
        """Finish the last file and return all of them."""
        with mapped(f"write {self._table} of the lake {self._place.root}"):
            self._finish()
        return self._parts

    def _open(self) -> None:
        if self._files is None:
            self._files = self._place.files(self._table)
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
        for name in BOUND_COLUMNS.intersection(self._schema.names):
            bounds = pc.min_max(rows.column(name)).as_py()
            low, high = self._bounds.get(name, (bounds["min"], bounds["max"]))
            self._bounds[name] = (min(low, bounds["min"]), max(high, bounds["max"]))

    def _finish(self) -> None:
        if self._writer is None or self._stream is None:
            return
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        self._parts.append(Part(self._table, self._path, size, self._rows, self._bounds))
        self._writer, self._stream, self._rows, self._bounds = None, None, 0, {}
