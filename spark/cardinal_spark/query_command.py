"""`cardinal lake query`: arguments, and where the rows go."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from cardinal_spark.errors import LakeError

from . import printing
from .command_options import lake_option, open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from cardinal_spark.lake import Snapshot
    from cardinal_spark.lake.query import NumberRange

_SUFFIXES: Final[dict[str, str]] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "table",
}
_TEXTS: Final[dict[str, Callable[[pa.RecordBatchReader, IO[str]], object]]] = {
    "json": printing.write_json,
    "csv": printing.write_csv,
    "table": printing.write_table,
    "vertical": printing.write_vertical,
}
_READ_BY_PEOPLE: Final = ("table", "vertical")


@click.command()
@click.argument("path")
@click.argument("sql", required=False)
@click.option("--table", help="Print this table instead of running SQL; needs no DuckDB.")
@click.option("--from-block", type=click.IntRange(0), help="Lowest block, with --table.")
@click.option("--to-block", type=click.IntRange(0), help="Highest block, with --table.")
@click.option("--columns", help="Comma-separated names, with --table.")
@click.option("--as-of-seq", type=click.IntRange(1), help="The state after this row of events.")
@click.option("--as-of-block", type=click.IntRange(0), help="The state when this block had just joined.")
@click.option(
    "--as-of-time",
    metavar="TIME",
    help="The state of what was published by this time, such as 2026-01-31T12:00:00Z: it is the time of publication, "
    "so after a backfill every block is as late as the backfill, whatever its timestamp.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Most rows.  [default: every row, but a table on standard output ends after {printing.TABLE_ROWS}]",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(["table", "json", "csv", "parquet"]),
    help="Output format.  [default: by the ending of --output, else table]",
)
@click.option("--vertical", is_flag=True, help="Print each column of a row on a line of its own.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write every row there."
)
@lake_option
def query(
    *,
    path: str,
    sql: str | None,
    table: str | None,
    from_block: int | None,
    to_block: int | None,
    columns: str | None,
    as_of_seq: int | None,
    as_of_block: int | None,
    as_of_time: str | None,
    limit: int | None,
    shape: str | None,
    vertical: bool,
    output: Path | None,
    options: tuple[str, ...],
) -> None:
    """Run SQL on one state of the lake at PATH, or print one of its tables.

    The SQL may name every table and its current_ view, for example current_logs. uint256(hex) and address(topic) read
    words of logs. Of a table, the columns _block_… are printed only if --columns names them.

    \b
    Examples:
      cardinal lake query ./lake "select block_number, count(*) from current_logs group by 1"
      cardinal lake query ./lake "select address(topic1), sum(uint256(data)) from current_logs group by 1"
      cardinal lake query ./lake --table current_blocks --from-block 100 --output blocks.parquet
    """
    from cardinal_spark.lake.query import NumberRange  # noqa: PLC0415 - `--help` needs no extra
    from cardinal_spark.lake.sql import open_sql  # noqa: PLC0415 - the same

    if (sql is None) == (table is None):
        raise click.UsageError("pass either SQL or --table")
    if sql is not None and (from_block, to_block, columns) != (None, None, None):
        raise click.UsageError("--from-block, --to-block and --columns are for --table: write them into the SQL")
    chosen = _shape(shape, output, vertical=vertical)
    parsed = {"asofseq": as_of_seq, "asofblock": as_of_block, "asoftime": as_of_time}
    snapshot = open_snapshot(path, options, {name: str(value) for name, value in parsed.items() if value is not None})
    with contextlib.ExitStack() as closing:
        if table is None:
            reader = closing.enter_context(open_sql(snapshot, sql or ""))
        else:
            heights = NumberRange(from_block, to_block)
            names = [name.strip() for name in columns.split(",")] if columns else _own_columns(snapshot, table)
            reader = snapshot.scan(table, heights, names)
        if limit is not None:
            reader = printing.first_rows(reader, limit)
        elif output is None and chosen in _READ_BY_PEOPLE:
            count = None if table is None else _count(snapshot, table, heights)
            reader = _head(reader, count)
        if output is None:
            _print(reader, chosen)
        else:
            _save(reader, chosen, output)


def _shape(shape: str | None, output: Path | None, *, vertical: bool) -> str:
    """The output format. UsageError where the options contradict each other."""
    if vertical:
        if shape not in (None, "table"):
            raise click.UsageError(f"--vertical is a way to print a table: leave out --format {shape}")
        return "vertical"
    if shape is None and output is not None:
        shape = _SUFFIXES.get(output.suffix.lower())
        if shape is None:
            raise click.UsageError(f"the ending of {output} names no format: add --format csv, json, parquet or table")
    if shape == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal: add --output FILE")
    return shape or "table"


def _own_columns(snapshot: Snapshot, table: str) -> list[str]:
    """The columns of a table, without the keys ``_block_…`` where the table has the block in columns of its own."""
    names = snapshot.schema(table).names
    own = "block_number" in names
    return [name for name in names if not (own and name.startswith("_block_"))]


def _count(snapshot: Snapshot, table: str, heights: NumberRange) -> int:
    """The rows of a table, by its narrowest column."""
    names = snapshot.schema(table).names
    narrow = "_seq" if "_seq" in names else "seq"
    return sum(batch.num_rows for batch in snapshot.scan(table, heights, [narrow]))


def _head(reader: pa.RecordBatchReader, count: int | None) -> pa.RecordBatchReader:
    """The rows that a person reads; reports how many there are. ``count``: where the reader need not be read for it."""
    import pyarrow as pa  # noqa: PLC0415 - `--help` needs no extra

    batches, rows = [], 0
    for batch in reader:
        batches.append(batch.slice(0, max(0, printing.TABLE_ROWS - rows)))
        rows += batch.num_rows
        if count is not None and rows >= printing.TABLE_ROWS:
            break
    rows = rows if count is None else count
    if rows > printing.TABLE_ROWS:
        click.echo(
            f"{printing.TABLE_ROWS} of {rows} rows: --limit prints more, --output FILE or --format csv all of them",
            err=True,
        )
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _print(reader: pa.RecordBatchReader, shape: str) -> None:
    hidden: list[str] = []
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    try:
        if shape == "parquet":
            printing.write_parquet(reader, sys.stdout.buffer)
        elif shape == "table":
            hidden = printing.write_table(reader, sys.stdout, width)
        else:
            _TEXTS[shape](reader, sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        # Buffered data would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe may have seen enough
            raise LakeError(f"the rows could not be written to the standard output: {error.strerror}") from error
    if hidden:
        click.echo(
            f"columns that do not fit here: {', '.join(hidden)}; name columns, or use --vertical or --format csv",
            err=True,
        )


def _save(reader: pa.RecordBatchReader, shape: str, output: Path) -> None:
    """Write a file, complete or not at all."""
    with _replacing(output) as path:
        if shape == "parquet":
            with path.open("wb") as binary:
                printing.write_parquet(reader, binary)
        else:
            with path.open("w", encoding="utf-8", newline="") as text:
                _TEXTS[shape](reader, text)


@contextlib.contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """A path whose file takes the place of ``output`` at the end; LakeError where it cannot be written."""
    partial = output
    if not output.exists() or output.is_file():  # a device or a pipe is written to as it is
        partial = output.with_name(f".{output.name}.partial")
    try:
        yield partial
        if partial is not output:
            partial.replace(output)
    except OSError as error:
        raise LakeError(f"could not write {output}: {error.strerror or error}; choose another --output") from error
    finally:
        if partial is not output:
            with contextlib.suppress(OSError):
                partial.unlink()
