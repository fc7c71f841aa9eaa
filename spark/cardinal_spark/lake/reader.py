"""The batch reader of ``cardinal_lake``: ``spark.read.format("cardinal_lake").option("table", "current_logs")``.

Rules:

1. The driver takes one snapshot; its files and canonical's seqs are sent to the tasks, so that all tasks of a query
   read one state.
2. Ranges are options (``fromBlock``, ``toBlock``, ``columns``): Spark raises for a reader that offers filter
   push-down while it is switched off, which is the default.
3. Every batch is cast to the exact Arrow schema that Spark derives from the declared one.
4. Files are grouped by size, so that a day of small files does not become a day of small tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.options import number, parse_options, parts

from .as_of import NOW, AsOf
from .location import LakeLocation, mapped
from .options import READ_OPTIONS
from .query import NumberRange, Snapshot
from .tables import CANONICAL, CURRENT, EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.fs as pafs
    from pyspark.sql.types import StructType

    from .seqs import SeqRuns
    from .state import LakeState

_GROUP_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 1 << 14
_SMALL: Final = (EVENTS, CANONICAL)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The reader's options, checked. Names are Spark's, in any case."""

    table: str
    heights: NumberRange
    columns: tuple[str, ...]
    as_of: AsOf = NOW

    @classmethod
    def of(cls, options: Mapping[str, str], *further: str) -> ReadOptions:
        """Parse them. ConfigurationError names the invalid one. ``further``: names that are ignored."""
        parsed = parse_options(options, (*READ_OPTIONS, *further), "cardinal_lake")
        table = parsed.get("table")
        if not table:
            raise ConfigurationError(
                "cardinal_lake needs the option table, for example current_logs or events", setting="table"
            )
        heights = NumberRange(number(parsed, "fromBlock"), number(parsed, "toBlock"))
        return cls(table, heights, tuple(parts(parsed, "columns")), AsOf.of(parsed))


def read_schema(options: Mapping[str, str]) -> StructType:
    """The Spark schema of the table that the options name, of a stream too."""
    chosen = ReadOptions.of(options, "startingOffsets")
    schema = Snapshot.of(LakeLocation.of(options.get("path", ""), options)).schema(chosen.table)
    unknown = [name for name in chosen.columns if name not in schema.names]
    if unknown:
        raise ConfigurationError(f"{chosen.table} has no column {unknown[0]!r}", setting="columns")
    names = chosen.columns or tuple(schema.names)
    return from_arrow_schema(pa.schema([_nullable(schema.field(name)) for name in names]))


def _nullable(column: pa.Field) -> pa.Field:
    return column.with_nullable(True)  # noqa: FBT003 - pyarrow's name for its only argument


class TablePartition(InputPartition):
    """A small table that one task reads through the snapshot."""

    def __init__(self, state: LakeState, until: int | None) -> None:
        super().__init__(None)
        self.state = state
        self.until = until


class FilePartition(InputPartition):
    """Some files of a table, whose columns older ones of them may lack.

    ``visible``: the last visible seq; ``seqs``: for a ``current_`` table the seqs of the chain.
    """

    def __init__(self, paths: Sequence[str], columns: pa.Schema, visible: int, seqs: SeqRuns | None) -> None:
        super().__init__(None)
        self.paths = tuple(paths)
        self.columns = columns
        self.visible = visible
        self.seqs = seqs


class LakeReader(DataSourceReader):
    """Reads one table at one state. ``schema`` is the one that Spark declared."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.of(options)
        self._location = LakeLocation.of(options.get("path", ""), options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per group of files; the ledger and canonical are one partition each."""
        table, heights = self._options.table, self._options.heights
        snapshot = Snapshot.of(self._location, self._options.as_of)
        stored = snapshot.stored(table)
        if table in _SMALL:
            return [TablePartition(snapshot.state, snapshot.until)]
        seqs = snapshot.current(heights) if table.startswith(CURRENT) else None
        dataset, files = snapshot.files(stored), self._location.files(stored)
        fragments = dataset.get_fragments(filter=heights.on("_block_number"))
        return [FilePartition(paths, dataset.schema, snapshot.seq, seqs) for paths in grouped(fragments, files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition in Spark's exact Arrow schema."""
        due = to_arrow_schema(self._schema, timezone="UTC")
        batches = self._whole(partition) if isinstance(partition, TablePartition) else self._files(partition)
        for batch in batches:
            if batch.num_rows:
                yield from pa.Table.from_batches([batch]).select(due.names).cast(due).to_batches()

    def _whole(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        snapshot = Snapshot(self._location, partition.state, partition.until)
        if self._options.table == CANONICAL and partition.until is None:
            try:
                snapshot.files(CANONICAL)
            except LakeError:  # the log has forgotten this version: it is computed from the ledger
                snapshot = Snapshot(self._location, partition.state, partition.state.seq)
        yield from snapshot.scan(self._options.table, self._options.heights, self._schema.names)

    def _files(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition) or not partition.paths:
            return
        columns = list(dict.fromkeys((*self._schema.names, "_seq")))
        within = pads.field("_seq") <= partition.visible
        heights = self._options.heights.on("_block_number")
        stored = self._options.table.removeprefix(CURRENT)
        with mapped(f"read {stored} of the lake {self._location.root}; was it vacuumed while it was read?"):
            files = pads.dataset(
                list(partition.paths), partition.columns, format="parquet", filesystem=self._location.files(stored)
            )
            batches = files.to_batches(
                columns=columns, filter=within if heights is None else within & heights, batch_size=_BATCH_ROWS
            )
            yield from batches if partition.seqs is None else partition.seqs.only(batches)


def grouped(fragments: Iterable[pads.Fragment], files: pafs.FileSystem) -> list[list[str]]:
    """The files of fragments in groups of about ``_GROUP_BYTES``."""
    paths = [fragment.path for fragment in fragments]
    groups: list[list[str]] = []
    filled = _GROUP_BYTES
    for info in files.get_file_info(paths):
        if filled + info.size > _GROUP_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(info.path)
        filled += info.size
    return groups
