"""Spark's interfaces around the driver, the tasks and the tables.

Rules (``spark/cardinal_spark/docs/spark.md``, section 1):

1. A reader is pickled and recreated in several processes: its constructor opens no connection.
2. After a restart ``partitions`` may be the first call. ``commit`` comes late or never, ``stop`` never: nothing depends
   on them.
3. Options and offsets alone decide what is read; nothing is pushed down.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cardinal.config.options import nearest
from cardinal.errors import ConfigurationError

from .columns import payload_batches
from .final import final_chain
from .offsets import packed, unpacked
from .options import SourceOptions, StreamSpec
from .planner import Limit, Planner
from .tables import EVENTS, PAYLOAD, TableSettings, arrow_schema, block_batches, event_batch
from .tasks import grouped, only_of, read_blocks
from .withheld import LATEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from .offsets import PlannedRow


_PIECE_BYTES: Final = 1 << 20
"""Bytes passed to Spark at once: with 6 MB the transfer of each row took seven times as long."""

_OF_SENDERS: Final = frozenset({"from_address", "authorization_list"})
"""The columns for which signatures are recovered."""


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of the table that the options name."""
    chosen = SourceOptions.of(options)
    columns = arrow_schema(chosen.table, chosen.integers)
    for name in chosen.columns:
        if name not in columns.names:
            raise ConfigurationError(
                f"{chosen.table} has no column {name!r}; {nearest(name, columns.names)}", setting="columns"
            )
    wanted = chosen.columns or columns.names
    return from_arrow_schema(pa.schema([columns.field(name) for name in dict.fromkeys(wanted)]))


class BlockPartition(InputPartition):
    """Some rows for one task."""

    def __init__(self, stream: StreamSpec, settings: TableSettings, rows: Sequence[PlannedRow]) -> None:
        super().__init__(None)
        self.stream = stream
        self.settings = settings
        self._packed = packed(rows)

    @property
    def rows(self) -> Sequence[PlannedRow]:
        """The rows; they travel in few bytes."""
        return unpacked(self._packed)


def input_partitions(stream: StreamSpec, options: SourceOptions, rows: Sequence[PlannedRow]) -> list[BlockPartition]:
    """Rows as Spark's partitions."""
    senders = options.senders and not (options.columns and _OF_SENDERS.isdisjoint(options.columns))
    settings = TableSettings(options.table, stream.spec, options.integers, senders, options.abi)
    if options.table == EVENTS:  # they carry no content: one task writes the planner's rows
        return [BlockPartition(stream, settings, rows)] if rows else []
    stream = stream.parts_of(options.table)
    return [BlockPartition(stream, settings, group) for group in grouped(only_of(rows, stream))]


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one partition in Spark's exact Arrow schema."""
    if not isinstance(partition, BlockPartition):
        return  # Spark's own, of a read without rows
    if not gc.get_freeze_count():
        gc.freeze()  # Spark's worker collects garbage after every task: 50 ms, nearly all for imported modules
    due = to_arrow_schema(schema, timezone="UTC")
    if partition.settings.table == EVENTS:
        batches: Iterator[pa.RecordBatch] = iter([event_batch([row.row for row in partition.rows])])
    elif partition.settings.table == PAYLOAD:
        batches = payload_batches(partition.stream, partition.rows, partition.settings)
    else:
        batches = block_batches(read_blocks(partition.stream, partition.rows), partition.settings)
    for batch in batches:
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
        yield from pa.Table.from_batches([batch]).select(due.names).cast(due).to_batches(rows)


class CardinalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming source. ``schema`` is the one that Spark declared."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.of(options)
        self._schema = schema
        if self._options.ending != LATEST:
            raise ConfigurationError("endingOffsets is of a batch read: a stream does not end", setting="endingOffsets")
        self._made: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without connections."""
        return {**self.__dict__, "_made": None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End at the current end of the topics."""
        self._planner.freeze()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit that the options name; Spark takes only one, so a second one is applied by the planner."""
        if self._options.max_blocks is not None:
            return ReadMaxRows(self._options.max_blocks)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The first offset of a new checkpoint."""
        return self._planner.first()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch; ``start`` where there is nothing to deliver."""
        blocks = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return self._planner.next_offset(start, Limit(blocks, size))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The planner's report for the query's progress: newest block read, lag, blocks that the chain waits for."""
        return self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch that ends at an offset."""
        planner = self._planner
        return input_partitions(planner.stream, self._options, planner.plan(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows; runs on executors."""
        return read_partition(partition, self._schema)

    def stop(self) -> None:
        """Release the connection, should Spark ever call this."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _planner(self) -> Planner:
        if self._made is None:
            self._made = Planner(StreamSpec.find(self._options), self._options)
        return self._made


class CardinalReader(DataSourceReader):
    """The batch source: the chain when the read is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.of(options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks that read the chain."""
        stream = StreamSpec.find(self._options)
        runs = final_chain(stream, self._options.starting, self._options.ending, self._options.finality)
        return [partition for rows in runs for partition in input_partitions(stream, self._options, rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows; runs on executors."""
        return read_partition(partition, self._schema)
