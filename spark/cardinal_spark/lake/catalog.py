"""A lake's tables for a catalog (Unity, Hive, Glue, Trino, DuckDB), as SQL text.

A Delta table of the lake holds the rows of orphans too. The views ``current_…`` hold only the rows whose block
``canonical`` names, by sequence number and hash.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError

from .functions import duckdb_macros
from .tables import CANONICAL, CURRENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .query import Snapshot

_TABLE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark": "CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{uri}';",
        "trino": "CALL {catalog}system.register_table("
        "schema_name => '{schema}', table_name => '{table}', table_location => '{uri}');",
        "duckdb": "CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{uri}');",
    }
)
_MACRO: Final = "CREATE OR REPLACE MACRO"
DIALECTS: Final = tuple(_TABLE)
"""``spark`` is also for Databricks, EMR and Hive."""

_CAVEAT: Final = (
    "-- A query that joins several of these while the lake is written may see one of them a batch ahead of another;",
    '-- format("cardinal_lake") reads all tables at one state.',
)


def statements(snapshot: Snapshot, schema: str, dialect: str) -> Iterator[str]:
    """The SQL that registers the lake's tables and views in a catalog, line by line.

    Arguments:
        snapshot: of the lake.
        schema: the schema for them, ``schema`` or ``catalog.schema``; created where it is missing, its catalog is not.
        dialect: one of ``DIALECTS``.

    Raises:
        ConfigurationError: there is no such dialect, or the schema is not a name.

    """
    if dialect not in DIALECTS:
        raise ConfigurationError(f"dialect must be one of {', '.join(DIALECTS)}, not {dialect!r}", setting="dialect")
    if not all(part.isidentifier() for part in schema.split(".")):
        raise ConfigurationError(f"schema must be a name such as main.ethereum, not {schema!r}", setting="schema")
    catalog, _, last = schema.rpartition(".")
    stored = [table for table in snapshot.tables if not table.startswith(CURRENT)]
    yield f"CREATE SCHEMA IF NOT EXISTS {schema};"
    for table in stored:
        yield _TABLE[dialect].format(
            name=f"{schema}.{table}",
            catalog=f"{catalog}." if catalog else "",
            schema=last,
            table=table,
            uri=snapshot.location.uri(table).replace("'", "''"),
        )
    yield from _CAVEAT
    for table in stored:
        if f"{CURRENT}{table}" in snapshot.tables:
            current = current_rows(f"{schema}.{table}", f"{schema}.{CANONICAL}")
            yield f"CREATE OR REPLACE VIEW {schema}.{CURRENT}{table} AS {current};"
    if dialect == "duckdb":
        yield from duckdb_macros(_MACRO, f"{schema}.")


def current_rows(table: str, canonical: str) -> str:
    """The query for the rows of a table whose blocks are in the chain."""
    return (
        f"SELECT t.* FROM {table} t "  # noqa: S608 - names of tables, which no user gives
        f"WHERE EXISTS (SELECT 1 FROM {canonical} c WHERE c.seq = t._seq AND c.hash = t._block_hash)"
    )
