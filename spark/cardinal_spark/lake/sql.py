"""SQL on one state of a lake, by DuckDB: every table under its name, every ``current_`` view.

A lake in a folder is read by DuckDB's own Parquet reader, filters and columns pushed down. It must not go through an
Arrow dataset: files that delta-rs wrote name view types, for which Arrow has no comparisons. A lake in an object store
is read into memory first. DuckDB is in no extra that users need; without it tables can still be printed and read.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError

from .catalog import current_rows
from .functions import duckdb_macros
from .tables import CANONICAL, CURRENT, EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from .query import Snapshot

_WIDE: Final = re.compile("BIGNUM|UHUGEINT")


@contextlib.contextmanager
def open_sql(snapshot: Snapshot, sql: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of a query, batch by batch; integers beyond 128 bits are decimal text, and no name occurs twice.

    Raises ConfigurationError where DuckDB is not installed, LakeError where it refuses the query.
    """
    import pyarrow as pa  # noqa: PLC0415 - optional

    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError:
        raise ConfigurationError(
            "SQL on a lake needs DuckDB: pip install duckdb, or use --table, which needs none", setting="sql"
        ) from None
    with duckdb.connect() as connection:
        for macro in duckdb_macros("CREATE TEMP MACRO"):
            connection.execute(macro)
        for name in snapshot.tables:
            if not name.startswith(CURRENT):
                _stored(connection, snapshot, name)
        for name in snapshot.tables:
            if name.startswith(CURRENT):
                connection.execute(f"CREATE TEMP VIEW {name} AS {current_rows(name.removeprefix(CURRENT), CANONICAL)}")
        try:
            found = connection.sql(sql)
            reader = pa.table({}).to_reader() if found is None else _reader(found)
        except duckdb.Error as error:
            raise LakeError(f"DuckDB refused the query: {_reason(error)}") from error
        yield pa.RecordBatchReader.from_batches(reader.schema, _batches(reader))


def run_sql(snapshot: Snapshot, sql: str) -> pa.Table:
    """As :func:`open_sql`, as one table."""
    with open_sql(snapshot, sql) as reader:
        return reader.read_all()


def _reader(found: DuckDBPyRelation) -> pa.RecordBatchReader:
    """The rows as Arrow, which has no integer beyond 128 bits and whose readers address columns by name."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    types = [str(kind) for kind in found.types]
    if any(_WIDE.search(kind) for kind in types):
        columns = enumerate(zip(found.columns, types, strict=True), 1)
        found = found.project(
            ", ".join(f"CAST(#{at} AS {_WIDE.sub('VARCHAR', kind)}) AS {_name(name)}" for at, (name, kind) in columns)
        )
    reader = pa.RecordBatchReader.from_stream(found)
    names: list[str] = []
    for name in reader.schema.names:
        free = (each for each in itertools.chain([name], (f"{name}_{n}" for n in itertools.count(1))))
        names.append(next(each for each in free if each not in names))
    schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
    return pa.RecordBatchReader.from_batches(
        schema, (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
    )


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except OSError as error:  # Arrow's, for a query that fails after its first rows
        raise LakeError(f"DuckDB ended the query: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """DuckDB's message up to the place in the query, with its advice, in one line."""
    return " ".join(itertools.takewhile(lambda line: not line.startswith("LINE "), str(error).splitlines())).strip()


def _name(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _stored(connection: DuckDBPyConnection, snapshot: Snapshot, name: str) -> None:
    """Register a stored table, without the rows that its state does not name."""
    if name == CANONICAL and snapshot.until is not None:
        connection.register(name, snapshot.scan(name).read_all())
        return
    files = [fragment.path for fragment in snapshot.files(name).get_fragments()]
    if not files or not snapshot.location.is_local:
        connection.register(name, snapshot.scan(name).read_all())
        return
    paths = ", ".join(_quoted(f"{snapshot.location.uri(name)}/{file}") for file in files)
    seq = "seq" if name in (CANONICAL, EVENTS) else "_seq"
    connection.execute(
        f'CREATE TEMP VIEW "{name}" AS SELECT * FROM read_parquet([{paths}], union_by_name = true, '  # noqa: S608 - quoted
        f"hive_partitioning = {name == CANONICAL}) WHERE {seq} <= {snapshot.seq}"
    )


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
