"""Streaming sink ``cardinal_lake``: Spark's interface around a task's decoding and the driver's commit.

Rules:

1. ``write`` runs on executors and commits nothing; ``commit`` runs on the driver and may be repeated for the same
   batch.
2. Spark recreates the writer for every batch, on the driver, and sends it to tasks. The Python process that commits
   outlives the batch (seen with 4.2): it keeps the tables open, which saves requests and changes no result.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.options import parse_options
from cardinal_spark.rows import RAW_ARROW

from .commit import LakeCommitter
from .decode import TaskResult, write_task
from .location import LakeLocation
from .opened import OpenTables
from .options import SINK_OPTIONS
from .tables import LakeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """Message from a task's ``write`` to ``commit``."""

    result: TaskResult


class LakeWriter(DataSourceStreamArrowWriter):
    """Writes ``table=raw`` rows into the lake at option ``path``; further options as in ``LakeSettings``."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        parsed = parse_options(options, SINK_OPTIONS, "cardinal_lake")
        self._location = LakeLocation.of(options.get("path", ""), options)
        self._settings = LakeSettings.of(parsed)
        missing = [name for name in RAW_ARROW.names if name not in schema.names]
        if missing:
            raise ConfigurationError(
                f"the rows lack {', '.join(missing)}: write those of format('cardinal') with table=raw",
                setting="table",
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Decode one task's blocks into Parquet files."""
        context = TaskContext.get()
        if context is None or context.getLocalProperty(_BATCH_ID) is None:
            raise LakeError("cardinal_lake is a streaming sink: use writeStream")
        return TaskMessage(write_task(iterator, self._location, self._settings))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Commit the batch to every table."""
        results = [message.result for message in messages if isinstance(message, TaskMessage)]
        opened = _opened(self._location.root, tuple(sorted(self._location.storage.items())))
        LakeCommitter(self._location, self._settings, opened=opened).commit(results)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the written files: they are in no table, and ``clean`` removes them."""


@functools.lru_cache(maxsize=1)
def _opened(root: str, storage: tuple[tuple[str, str], ...]) -> OpenTables:
    """The tables of one lake that this process keeps open."""
    del root, storage
    return OpenTables()
