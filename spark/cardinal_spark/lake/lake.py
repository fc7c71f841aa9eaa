"""An open lake for Python, without Spark: SQL by DuckDB, and tables as lazy Arrow datasets.

Everything that one :class:`Lake` returns is of one state, the lake's when it was opened. It never writes.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal.texts import Count, short_hash

from .query import NumberRange
from .sql import run_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    import pyarrow.dataset as pads

    from .query import Snapshot


@dataclass(frozen=True, slots=True)
class SqlRows:
    """The rows of a query: an Arrow table that converts itself to pandas and Polars.

    Methods and properties of the Arrow table (``num_rows``, ``column``, ``to_pylist``, …) are those of this value, and
    whatever reads Arrow streams (``pyarrow.table``, Polars, DuckDB) reads it.

    Attributes:
        table: the Arrow table itself.

    """

    table: pa.Table

    def arrow(self) -> pa.Table:
        """The Arrow table itself."""
        return self.table

    def df(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame, which no extra of lakes installs
        """The rows as a pandas DataFrame. ConfigurationError where pandas is not installed."""
        _needed("pandas")
        return self.table.to_pandas()

    def pl(self) -> Any:  # noqa: ANN401 - a polars.DataFrame, the same
        """The rows as a Polars DataFrame. ConfigurationError where Polars is not installed."""
        return _needed("polars").from_arrow(self.table)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as the Arrow table's
        return self.table[key]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the Arrow table's
        if name.startswith("_") or name == "table":  # a copy reads names before it has a table
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.table, name)


@dataclass(frozen=True, slots=True, repr=False)
class Lake:
    """A lake as it was when it was opened; open it again for newer blocks.

    Attributes:
        snapshot: its state.

    """

    snapshot: Snapshot

    def __repr__(self) -> str:
        state = self.snapshot.state
        earlier = "" if self.snapshot.until is None else f", as of seq {self.snapshot.seq}"
        head = f"block {state.number} {short_hash(state.hash)}"
        return f"<Lake {self.snapshot.location.root}, {head}{earlier}, {Count(len(self.snapshot.tables), 'table')}>"

    @property
    def tables(self) -> Mapping[str, pa.Schema]:
        """The columns of every table that can be read, by its name."""
        return {name: self.snapshot.schema(name) for name in self.snapshot.tables}

    def sql(self, query: str) -> SqlRows:
        """Run SQL, which may name every table and its ``current_`` view.

        Raises MissingExtraError where DuckDB is not installed, LakeError where DuckDB refuses the query.
        """
        try:
            importlib.import_module("duckdb")
        except ImportError:
            raise MissingExtraError("SQL on a lake", "tables") from None
        return SqlRows(run_sql(self.snapshot, query))

    def table(self, name: str, *, from_block: int | None = None, to_block: int | None = None) -> pads.Dataset:
        """A table, or its ``current_`` view, as an Arrow dataset: nothing is read before it is requested.

        Arguments:
            name: of the table.
            from_block: number of the lowest block.
            to_block: number of the highest block.

        Raises:
            LakeError: there is no such table.

        """
        return self.snapshot.lazy(name, NumberRange(from_block, to_block))


def _needed(package: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigurationError(
            f"this needs {package}: pip install {package}, or take the Arrow table", setting=package
        ) from None
