"""Queries of a lake without Spark: Arrow tables for Python, Polars and DuckDB.

Rules:

1. A snapshot resolves ``canonical`` first and then exactly the table versions that its commit names. All rows read
   through one snapshot are of one state, also while the writer commits.
2. ``current_X`` is canonical ⋈ X: the rows whose ``_seq`` canonical names. Seqs are unique in a table (see
   ``tables``), so this is the join by hash without its duplicates.
3. No row beyond the state's seq is shown: a killed driver may have left some that canonical does not name.
4. Logs forget old versions within minutes. So a snapshot opens ``canonical`` when it is made; every other table is only
   appended to, and a newer version of it contains the same rows.

It never writes. Row order is not defined; sort by ``_block_number`` and the table's own index.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.types import BlockRef
from cardinal_spark.errors import LakeError

from .as_of import NOW, AsOf, chain_at, last_seq
from .ledger import FIRST_SEQ, EventRow, chain_before, event_rows
from .location import LakeLocation, mapped
from .seqs import SeqRuns
from .state import LakeState, find_state, read_state
from .tables import CANONICAL, CURRENT, EVENTS, bucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

DEFAULT_DEPTH: Final = 256
"""Blocks of the chain that :func:`last_committed` returns: twice the usual reorg threshold."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A range of block numbers, both ends included; None is open."""

    first: int | None = None
    last: int | None = None

    def on(self, column: str) -> pads.Expression | None:
        """The range as a filter on a column; None where it is open on both ends."""
        number = pads.field(column)
        low = None if self.first is None else number >= self.first
        high = None if self.last is None else number <= self.last
        return high if low is None else low if high is None else low & high


EVERY: Final = NumberRange()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A lake as it was at one commit of ``canonical``, or earlier: ``until`` is the ledger's last row then."""

    location: LakeLocation
    state: LakeState
    until: int | None = None
    _open: dict[str, pads.FileSystemDataset] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def at(cls, path: str, storage: Mapping[str, str] | None = None, as_of: AsOf = NOW) -> Snapshot:
        """The newest state of the lake at a path or URL, or an earlier one. ``storage``: settings of the object store.

        Raises LakeError where there is no lake, or no state so old.
        """
        return cls.of(LakeLocation.at(path, storage), as_of)

    @classmethod
    def of(cls, location: LakeLocation, as_of: AsOf = NOW) -> Snapshot:
        """As :meth:`at`, for a location."""
        now = cls(location, read_state(location))
        if as_of:
            return cls(location, now.state, last_seq(now, as_of))
        now.files(CANONICAL)
        return now

    @property
    def seq(self) -> int:
        """The last row of the ledger that is shown."""
        return self.state.seq if self.until is None else min(self.until, self.state.seq)

    @property
    def tables(self) -> list[str]:
        """Every name that can be read."""
        stored = sorted(self.state.versions)
        return [*stored, CANONICAL, *(f"{CURRENT}{name}" for name in stored if name != EVENTS)]

    def dataset(self, table: str) -> pads.Dataset:
        """A stored table (no ``current_``) as a dataset at its version, limited to the state's seq.

        Filter it on numbers only: files that delta-rs wrote name view types, for which Arrow has no comparisons.
        Raises LakeError for an unknown table.
        """
        if table == CANONICAL:
            return self.files(table) if self.until is None else pads.dataset(self._chain())
        return self.files(table).filter(self.visible(table))

    def files(self, table: str) -> pads.FileSystemDataset:
        """The files of a stored table at its version, perhaps with rows beyond :meth:`visible`."""
        if table not in self._open:
            self._open[table] = self._files(table)
        return self._open[table]

    def visible(self, table: str) -> pads.Expression:
        """The filter that leaves out rows of a killed driver that this state does not name."""
        return pads.field("seq" if table == EVENTS else "_seq") <= self.seq

    def schema(self, table: str) -> pa.Schema:
        """The columns of any table that can be read."""
        return self.dataset(self.stored(table)).schema

    def scan(
        self, table: str, heights: NumberRange = EVERY, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a table within a range of heights, batch by batch.

        Raises LakeError for an unknown table, ConfigurationError for an unknown column.
        """
        stored = self.stored(table)
        dataset = self.dataset(stored)
        wanted = list(columns) if columns else dataset.schema.names
        unknown = [name for name in wanted if name not in dataset.schema.names]
        if unknown:
            raise ConfigurationError(f"{table} has no column {unknown[0]!r}", setting="columns")
        within = heights.on(_height_column(stored))
        if table.startswith(CURRENT):
            needed = wanted if "_seq" in wanted else [*wanted, "_seq"]
            found = self.current(heights).only(dataset.to_batches(columns=needed, filter=within))
            batches = (batch.select(wanted) for batch in found)
        else:
            batches = dataset.to_batches(columns=wanted, filter=within)
        schema = pa.schema([dataset.schema.field(name) for name in wanted])
        return pa.RecordBatchReader.from_batches(schema, self._mapped(batches, table))

    def lazy(self, table: str, heights: NumberRange = EVERY) -> pads.Dataset:
        """As :meth:`scan`, as a dataset that reads when it is scanned.

        Raises LakeError for an unknown table.
        """
        stored = self.stored(table)
        dataset = self.dataset(stored)
        within = heights.on(_height_column(stored))
        if table.startswith(CURRENT):
            runs = self.current(heights).on("_seq")
            within = runs if within is None else within & runs
        return dataset if within is None else dataset.filter(within)

    def current(self, heights: NumberRange = EVERY) -> SeqRuns:
        """The seqs of the chain's blocks within a range of heights."""
        within = heights.on("number")
        for end, compare in ((heights.first, pc.greater_equal), (heights.last, pc.less_equal)):
            if end is not None and within is not None:
                within &= compare(pads.field("bucket"), bucket(end))
        with mapped(f"read canonical of the lake {self.location.root}"):
            seqs = self.dataset(CANONICAL).to_table(columns=["seq"], filter=within).column("seq")
        return SeqRuns.of(seqs.to_numpy())

    def stored(self, table: str) -> str:
        """The table that a name reads from. LakeError where the lake has no such name."""
        stored = table.removeprefix(CURRENT)
        if table not in self.tables:
            raise LakeError(f"the lake {self.location.root} has no table {table!r}; it has {', '.join(self.tables)}")
        return stored

    def _chain(self) -> pa.Table:
        with mapped(f"read events of the lake {self.location.root}"):
            return chain_at(self, self.seq)

    def _files(self, table: str) -> pads.FileSystemDataset:
        version = self.state.canonical if table == CANONICAL else self.state.versions.get(table)
        if version is None:
            self.stored(table)
        with mapped(f"open {table} of the lake {self.location.root}"):
            return self.location.dataset(table, self._opened(table, version))

    def _opened(self, table: str, version: int | None) -> DeltaTable:
        try:
            return self.location.open(table, version)
        except LakeError:
            if table == CANONICAL:
                raise
            return self.location.open(table)

    def _mapped(self, batches: Iterator[pa.RecordBatch], table: str) -> Iterator[pa.RecordBatch]:
        with mapped(f"read {table} of the lake {self.location.root}; was it vacuumed while it was read?"):
            yield from batches


def _height_column(table: str) -> str:
    return "number" if table in (EVENTS, CANONICAL) else "_block_number"


def read(
    path: str,
    table: str,
    *,
    from_block: int | None = None,
    to_block: int | None = None,
    columns: Sequence[str] | None = None,
    storage: Mapping[str, str] | None = None,
    as_of: AsOf = NOW,
) -> pa.Table:
    """A table of the lake, or its ``current_`` view, as one Arrow table: ``polars.from_arrow`` takes it as it is.

    Heights are block numbers, both ends included. Raises LakeError where there is no lake, no such table or no state as
    old as ``as_of``.
    """
    return scan(
        path, table, from_block=from_block, to_block=to_block, columns=columns, storage=storage, as_of=as_of
    ).read_all()


def scan(
    path: str,
    table: str,
    *,
    from_block: int | None = None,
    to_block: int | None = None,
    columns: Sequence[str] | None = None,
    storage: Mapping[str, str] | None = None,
    as_of: AsOf = NOW,
) -> pa.RecordBatchReader:
    """As :func:`read`, batch by batch, for tables that do not fit into memory; DuckDB queries it by its name."""
    return Snapshot.at(path, storage, as_of).scan(table, NumberRange(from_block, to_block), columns)


@dataclass(frozen=True, slots=True)
class LastCommitted:
    """End of a lake's ledger, after which a stream resumes (``restartFrom=sink``).

    Attributes:
        lineage: the lineage of the ledger.
        app: the application's specification, JSON.
        seq: the ledger's last row; the stream's next row is ``seq + 1``.
        head: the head of the chain at ``seq``.
        first: the first block of the lineage.
        chain: the chain's last blocks, oldest first, the head last, as rows of the ledger (number, hash, parent,
            weight, seq).

    """

    lineage: str
    app: str
    seq: int
    head: BlockRef
    first: BlockRef
    chain: tuple[EventRow, ...]


def last_committed(
    path: str, *, depth: int = DEFAULT_DEPTH, storage: Mapping[str, str] | None = None
) -> LastCommitted | None:
    """The end of the ledger, None for a lake without rows.

    This is the last row that readers see; rows beyond it in ``events`` will be removed. ``depth``: the most blocks of
    the chain that are returned.
    """
    location = LakeLocation.at(path, storage)
    state = find_state(location)
    if state is None:
        return None
    events = location.open(EVENTS)
    with mapped(f"read events of the lake {location.root}"):
        rows, chain = _ledger_end(events, location, state.seq, depth)
        first = event_rows(location.dataset(EVENTS, events).to_table(filter=pads.field("seq") == FIRST_SEQ))
    last = rows[-1]
    return LastCommitted(last.lineage, state.app, last.seq, last.head, first[0].head, tuple(chain))


def _ledger_end(
    events: DeltaTable, location: LakeLocation, last: int, depth: int
) -> tuple[list[EventRow], list[EventRow]]:
    """The ledger's last rows up to a seq, as many as hold the chain's last ``depth`` blocks, and these blocks."""
    ledger = location.dataset(EVENTS, events)
    reach, seq = 2 * depth, pads.field("seq")
    while True:
        rows = event_rows(ledger.to_table(filter=(seq > last - reach) & (seq <= last)))
        chain = chain_before(rows, depth)
        linked = len(chain) >= depth and all(b.parent in (None, a.hash) for a, b in itertools.pairwise(chain))
        if linked or reach >= last:
            return rows, chain
        reach *= 4
