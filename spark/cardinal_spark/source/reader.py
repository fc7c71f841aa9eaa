"""Spark's interfaces around the driver, the tasks and the tables.

Rules (spark facts, section 1):

1. A reader is pickled and made anew in several processes: making one asks nobody and opens nothing.
2. After a restart ``partitions`` may be the first call. ``commit`` comes late or never, ``stop`` never: nothing depends
   on them.
3. What is read is decided by options and offsets alone; nothing is pushed down.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

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

from cardinal_spark.lake import last_committed

from .driver import Driver, Limit
from .final import final_chain
from .options import SourceOptions, Stream
from .starting import Starting
from .tables import EVENTS, TableSettings, arrow_schema, block_batches, event_batch
from .tasks import Wanted, grouped, read_blocks, wanted
from .window import MARKS_SECONDS, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from .offsets import PlanOffset
    from .state import PlannedBlock


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of the table that the options name."""
    chosen = SourceOptions.of(options)
    return from_arrow_schema(arrow_schema(chosen.table, chosen.integers))


class Blocks(InputPartition):
    """Some rows for one task."""

    def __init__(self, stream: Stream, settings: TableSettings, rows: Sequence[Wanted]) -> None:
        super().__init__(None)
        self.stream = stream
        self.settings = settings
        self.rows = tuple(rows)


def input_partitions(stream: Stream, options: SourceOptions, rows: Sequence[PlannedBlock]) -> list[Blocks]:
    """Rows as Spark's partitions."""
    settings = TableSettings(options.table, stream.spec, options.integers, options.senders)
    # events carry no content: one task writes what it was told
    groups = [list(rows)] if options.table == EVENTS else grouped(rows)
    return [Blocks(stream, settings, [wanted(row) for row in group]) for group in groups if group]


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one partition in Spark's exact Arrow schema."""
    if not isinstance(partition, Blocks):
        raise TypeError(partition)
    due = to_arrow_schema(schema, timezone="UTC")
    if partition.settings.table == EVENTS:
        batches: Iterator[pa.RecordBatch] = iter([event_batch([row.row for row in partition.rows])])
    else:
        batches = block_batches(read_blocks(partition.stream, partition.rows), partition.settings)
    for batch in batches:
        yield from pa.Table.from_batches([batch]).select(due.names).cast(due).to_batches()


class _Opened(NamedTuple):
    stream: Stream
    window: Window
    driver: Driver


def first_offset(stream: Stream, options: SourceOptions, window: Window) -> PlanOffset:
    """Where a new checkpoint, or a batch read, begins."""
    starting = Starting(stream.settings, window, stream.app.default_topic)
    if options.sink is not None:
        last = last_committed(options.sink, depth=stream.app.reorg_threshold + 1, storage=options.sink_storage)
        if last is not None:
            return starting.behind(last)
    match options.starting:
        case int(number):
            return starting.block(number)
        case "latest":
            return starting.latest()
        case _:
            return starting.earliest()


class CardinalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming source. ``schema`` is what Spark was told."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.of(options)
        self._schema = schema
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A reader travels without its connections."""
        return {**self.__dict__, "_opened": None}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing that comes from now on is read."""
        self._driver.freeze()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit that the options name; Spark takes one, so bytes beside blocks are applied by ourselves."""
        if self._options.max_blocks is not None:
            return ReadMaxRows(self._options.max_blocks)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new checkpoint begins."""
        return first_offset(self._stream, self._options, self._open().window).json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next batch ends; ``start`` where there is nothing to deliver."""
        blocks = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return self._driver.next_offset(start, Limit(blocks, size))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between two offsets."""
        rows = self._driver.plan(start, end).rows
        return input_partitions(self._stream, self._options, rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows; runs on executors."""
        return read_partition(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what lies before ``end``."""
        self._driver.commit(end)

    def stop(self) -> None:
        """Release the connection, should Spark ever call this."""
        if self._opened is not None:
            self._opened.driver.close()
            self._opened = None

    def _open(self) -> _Opened:
        if self._opened is None:
            stream = Stream.find(self._options)
            window = Window(stream.open, stream.digester())
            self._opened = _Opened(stream, window, Driver(stream.settings, window))
        return self._opened

    @property
    def _driver(self) -> Driver:
        return self._open().driver

    @property
    def _stream(self) -> Stream:
        return self._open().stream


class CardinalReader(DataSourceReader):
    """The batch source: the chain as it stands when the read is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.of(options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks that read the chain."""
        stream = Stream.find(self._options)
        window = Window(stream.open, stream.digester())
        try:
            # A Batch is the last message of its block: where the Batches end is looked up before all else.
            batches = window.marks()
            time.sleep(MARKS_SECONDS)
            ends = {
                where: batches[where][1] if where[0] == stream.app.default_topic else high
                for where, (_, high) in window.marks().items()
            }
            start = first_offset(stream, self._options, window)
            rows = final_chain(stream.settings, window, start, ends)
        finally:
            window.close()
        return input_partitions(stream, self._options, rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows; runs on executors."""
        return read_partition(partition, self._schema)
