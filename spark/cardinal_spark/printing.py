"""Rows of a query as text or Parquet, batch by batch.

Rules:

1. No shape shortens a value, except a table on a terminal, which names the columns that do not fit.
2. Only the table and the vertical shape end after some rows by themselves; their caller reports how many there are.
3. Text from a chain cannot move a terminal's cursor: characters that do not print are escaped.
"""

from __future__ import annotations

import csv
import json
from datetime import date, datetime, time
from typing import IO, TYPE_CHECKING, Any, Final

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

TABLE_ROWS: Final = 100
"""Rows of a table without a limit, which a person reads."""

_GAP: Final = 2


def first_rows(reader: pa.RecordBatchReader, limit: int) -> pa.RecordBatchReader:
    """The first ``limit`` rows; the rest stays unread in ``reader``."""
    import pyarrow as pa  # noqa: PLC0415 - `--help` needs no extra

    def batches() -> Iterator[pa.RecordBatch]:
        remaining = limit
        while remaining > 0 and (batch := next(reader, None)) is not None:
            yield batch.slice(0, remaining)
            remaining -= batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def write_json(reader: pa.RecordBatchReader, file: IO[str]) -> None:
    """One JSON object per row."""
    for row in _rows(reader):
        file.write(json.dumps(dict(zip(reader.schema.names, row, strict=True))) + "\n")


def write_csv(reader: pa.RecordBatchReader, file: IO[str]) -> None:
    """A line of names, then one per row; lists as JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(reader.schema.names)
    for row in _rows(reader):
        writer.writerow([json.dumps(value) if isinstance(value, list | dict) else value for value in row])


def write_parquet(reader: pa.RecordBatchReader, file: IO[bytes]) -> None:
    """One Parquet file."""
    from pyarrow import parquet  # noqa: PLC0415 - `--help` needs no extra

    with parquet.ParquetWriter(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def write_table(reader: pa.RecordBatchReader, file: IO[str], width: int | None = None) -> list[str]:
    """Aligned columns; returns the names of those that do not fit into ``width`` cells, None: any width."""
    lines = [list(reader.schema.names), *([_cell(value) for value in row] for row in _rows(reader))]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(lines[0]))]
    fitting = _fitting(widths, width)
    for line in lines:
        cells = (set_cell_size(line[column], min(widths[column], width or widths[column])) for column in fitting)
        file.write((" " * _GAP).join(cells).rstrip() + "\n")
    return [name for column, name in enumerate(lines[0]) if column not in fitting]


def write_vertical(reader: pa.RecordBatchReader, file: IO[str]) -> None:
    """One line for each value, with the column's name; an empty line between two rows."""
    names = reader.schema.names
    widest = max(map(cell_len, names), default=0)
    for number, row in enumerate(_rows(reader)):
        file.write("\n" if number else "")
        file.writelines(
            f"{set_cell_size(name, widest)}  {_cell(value)}".rstrip() + "\n"
            for name, value in zip(names, row, strict=True)
        )


def _fitting(widths: Sequence[int], width: int | None) -> list[int]:
    """The columns that fit, in their order; the first one always."""
    if width is None:
        return list(range(len(widths)))
    fitting: list[int] = []
    used = 0
    for column, wide in enumerate(widths):
        if used + wide <= width or not fitting:
            fitting.append(column)
            used += wide + _GAP
    return fitting


def _rows(reader: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in reader:
        yield from zip(*(map(_plain, column.to_pylist()) for column in batch.columns), strict=True)


def _plain(value: object) -> object:
    """A value for JSON: bytes as 0x text, times as ISO 8601."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cell(value: object) -> str:
    text = "" if value is None else json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
