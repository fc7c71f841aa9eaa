"""SQL on one state of a lake, by DuckDB: every table under its name, every ``current_`` view.

DuckDB pushes a query's filters and columns down to the files. It is not part of any extra that users need; without
it the tables can still be printed and read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError, LakeError

from .tables import CANONICAL, CURRENT

if TYPE_CHECKING:
    import pyarrow as pa

    from .query import Snapshot


def run_sql(snapshot: Snapshot, sql: str) -> pa.Table:
    """The rows that a query gives.

    Raises ConfigurationError where DuckDB is not installed, LakeError where it refuses the query.
    """
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError:
        raise ConfigurationError(
            "SQL on a lake needs DuckDB: pip install duckdb; --table prints a table without it", setting="sql"
        ) from None
    with duckdb.connect() as connection:
        for name in snapshot.tables:
            if not name.startswith(CURRENT):
                connection.register(name, snapshot.dataset(name))
        for name in snapshot.tables:
            if name.startswith(CURRENT):
                stored = name.removeprefix(CURRENT)
                connection.execute(
                    f'CREATE TEMP VIEW "{name}" AS SELECT * FROM "{stored}" '  # noqa: S608 - names of our own tables
                    f'SEMI JOIN "{CANONICAL}" ON "{stored}"._seq = "{CANONICAL}".seq'
                )
        try:
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise LakeError(f"the query was refused: {str(error).splitlines()[0]}") from error
