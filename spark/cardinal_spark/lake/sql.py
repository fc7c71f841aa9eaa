"""SQL on one state of a lake, by DuckDB: every table under its name, every ``current_`` view.

A lake in a folder is read by DuckDB's own Parquet reader, filters and columns pushed down. It must not go through an
Arrow dataset: files that delta-rs wrote name view types, for which Arrow has no comparisons. A lake in an object store
is read into memory first. DuckDB is in no extra that users need; without it tables can still be printed and read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError, LakeError

from .catalog import current_rows
from .tables import CANONICAL, CURRENT, EVENTS

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from .query import Snapshot


def run_sql(snapshot: Snapshot, sql: str) -> pa.Table:
    """The rows of a query.

    Raises ConfigurationError where DuckDB is not installed, LakeError where it refuses the query.
    """
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError:
        raise ConfigurationError(
            "SQL on a lake needs DuckDB: pip install duckdb, or use --table, which needs none", setting="sql"
        ) from None
    with duckdb.connect() as connection:
        for name in snapshot.tables:
            if not name.startswith(CURRENT):
                _stored(connection, snapshot, name)
        for name in snapshot.tables:
            if name.startswith(CURRENT):
                connection.execute(f"CREATE TEMP VIEW {name} AS {current_rows(name.removeprefix(CURRENT), CANONICAL)}")
        try:
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise LakeError(f"DuckDB refused the query: {str(error).splitlines()[0]}") from error


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
