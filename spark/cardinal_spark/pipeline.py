"""Pipeline job: one query from the stream into the lake, and its reports while it runs.

Rules:

1. One query reads ``table=raw`` and writes every table of the lake.
2. The checkpoint belongs to the lake and is inside of it by default. A lake with rows and without a checkpoint resumes
   from its ledger (``restartFrom=sink``).
3. A failure is one sentence: the error that a task, the planner or the commit raised, without Spark's frames.

On a cluster the same two calls run under ``spark-submit``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError

from .lake.location import LakeLocation
from .lake.options import SINK_OPTIONS
from .lake.query import last_committed
from .lake.state import state_at
from .options import STORAGE
from .rows import AppSpec
from .source.offsets import cursor_at
from .source.options import SourceOptions, StreamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Watch = Callable[[Mapping[str, Any]], None]

LOG: Final = logging.getLogger("cardinal_spark.pipeline")
_CHECKPOINT: Final = "_checkpoint"
_OURS: Final = re.compile(r"^(?:cardinal\.errors\.)(\w+): (.+)$", re.MULTILINE)
_DIED: Final = re.compile(
    # errors of a task or a commit; and of the planner, which Spark's text does not mention
    r"Python worker exited unexpectedly"
    r"|Caused by: java\.\w+\.(?:EOF|IO|Socket)Exception.*(?:\n\tat .*)*?\n\tat .*PythonStreamingSourceRunner"
)
_UNCONNECTED: Final = re.compile(r"Python worker (?:failed )?to connect back")
"""A new process has 10 s in Spark, without a setting; importing PySpark may take longer on a busy machine."""
_ATTEMPTS: Final = 6
"""Starts of a query without a batch in between: it fails like this for good where the Python itself is broken."""
_ANY: Final = re.compile(r"^([\w.]+(?:Error|Exception)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """Definition of a pipeline.

    Attributes:
        source: URL of the stream.
        lake: path or URL of the lake.
        checkpoint: path or URL of the checkpoint; None: in the lake.
        exit_at_end: end when everything that was on the topics at the start is in the lake.
        trigger: pause between batches in Spark's words.
        options: further options of the source and of the lake, by Spark's names.

    """

    source: str
    lake: str
    checkpoint: str | None = None
    exit_at_end: bool = False
    trigger: str = "1 second"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def location(self) -> LakeLocation:
        """The lake."""
        return LakeLocation.of(self.lake, self.options)

    @property
    def checkpoint_path(self) -> str:
        """The path of the checkpoint. ConfigurationError where a lake in an object store names none."""
        if self.checkpoint is not None:
            return self.checkpoint
        if not self.location.is_local:
            raise ConfigurationError(
                "a lake in an object store needs --checkpoint: a path that Spark itself can write", setting="checkpoint"
            )
        return f"{self.location.root}/{_CHECKPOINT}"


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One batch that is in the lake: its number, blocks that joined or left, duration, and the lake's head after it.

    ``unfit``: its blocks with a null for a number in the header that no column holds.
    """

    batch: int
    blocks: int
    seconds: float
    seq: int
    number: int
    hash: str
    unfit: int = 0


def start(spark: SparkSession, job: PipelineJob) -> StreamingQuery:
    """Start the query. ConfigurationError where the job cannot work."""
    source = _of_source(job)
    lake = {name: value for name, value in job.options.items() if name not in source}
    rows = spark.readStream.format("cardinal").options(**{**source, **source_options(job)}).load()
    writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", job.checkpoint_path).options(**lake)
    writer = writer.trigger(availableNow=True) if job.exit_at_end else writer.trigger(processingTime=job.trigger)
    return writer.start(job.location.root)


def check(job: PipelineJob) -> None:
    """Check stream and lake of a job before Spark is started, which takes longer.

    Raises:
        ConfigurationError: an option cannot work.
        UnreachableError, TopicError: the stream cannot be read.
        LakeError: the lake cannot be written.

    """
    checkpoint = job.checkpoint_path
    job.location.need_writable()
    if "://" not in checkpoint:
        LakeLocation.of(checkpoint).need_writable()
    parsed = SourceOptions.of({**_of_source(job), **source_options(job)})
    StreamSpec.find(parsed).open().close()


def _of_source(job: PipelineJob) -> dict[str, str]:
    """The options that are not the lake's own."""
    return {
        name: value for name, value in job.options.items() if not name.startswith(STORAGE) and name not in SINK_OPTIONS
    }


def source_options(job: PipelineJob) -> dict[str, str]:
    """The source's options that follow from the job. ConfigurationError: the lake holds another chain than asked."""
    options = {"url": job.source, "table": "raw"}
    last = last_committed(job.location.root, depth=1, storage=job.location.storage)
    if last is not None:
        # a checkpoint has precedence
        options |= {"restartFrom": "sink", "sinkPath": job.location.root, **job.location.options}
        held = AppSpec.parse(last.app).options.get("chain_id")
        named = {name.lower(): value for name, value in job.options.items()}
        asked = named.get("chainid")
        if held is not None and asked is None:
            # the lake decides: another chain may have appeared on the server
            options["chainId"] = str(held)
        elif held is not None and asked != str(held):
            raise ConfigurationError(
                f"the lake {job.lake} holds chain {held}, not {asked}: name another folder", setting="chainId"
            )
    return options


def run(
    spark: SparkSession, job: PipelineJob, stopping: threading.Event, watch: Watch | None = None
) -> Iterator[BatchStatus]:
    """Run the job to its end and yield every batch when it is done; stops Spark at the end.

    Arguments:
        spark: the session.
        job: the job to run.
        stopping: setting it ends the query within a second; the next run repeats the batch in flight.
        watch: called with Spark's progress of the query several times a second.

    Raises:
        LakeError: the query or Spark itself fails.

    """
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional dependency
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the same

    try:
        for query, status in _started_again(spark, job, stopping, watch):
            if status is not None:
                yield status
            if stopping.is_set():
                query.stop()
                return
    except PySparkException as error:
        if not stopping.is_set():
            raise failure(str(error), getattr(error, "_stackTrace", "")) from None
    except Py4JJavaError as error:
        if not stopping.is_set():
            raise failure(str(error.java_exception)) from None
    except (Py4JError, ConnectionError) as error:
        # a signal to the complete process group ends Java before us
        if not stopping.is_set():
            raise LakeError("Spark's Java process ended: restart the query, it resumes from its checkpoint") from error
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()


def _started_again(
    spark: SparkSession, job: PipelineJob, stopping: threading.Event, watch: Watch | None
) -> Iterator[tuple[StreamingQuery, BatchStatus | None]]:
    """The query with each of its batches and ticks; the next query where a Python process started too slowly."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    attempts = 0
    while True:
        try:
            query = start(spark, job)
            for status in batches(query, job, watch):
                attempts = attempts if status is None else 0
                yield query, status
        except PySparkException as error:
            attempts += 1
            if stopping.is_set() or attempts == _ATTEMPTS or not _UNCONNECTED.search(str(error)):
                raise
            LOG.warning("Spark gave up a Python process that needed more than 10 s to start: the query starts again")
        else:
            return


def batches(
    query: StreamingQuery, job: PipelineJob, watch: Watch | None = None, *, wait_seconds: float = 0.2
) -> Iterator[BatchStatus | None]:
    """Every batch when it is done, None as a regular tick; ends with the query."""
    shown = -1
    active = True
    while active:
        active = not query.awaitTermination(wait_seconds)  # type: ignore[arg-type] # takes fractions, says int
        done = [_status(progress, job) for progress in query.recentProgress if progress["batchId"] > shown]
        for status in filter(None, done):
            shown = status.batch
            yield status
        if watch is not None and (last := query.lastProgress) is not None:
            watch(last)
        yield None


def _status(progress: Any, job: PipelineJob) -> BatchStatus | None:  # noqa: ANN401 - Spark's progress is a dict or a class
    """The batch's own end, not the lake's: the next batch may be in the lake by now."""
    if not progress["numInputRows"]:
        return None
    text = progress["sources"][0]["endOffset"]
    end = json.loads(text) if isinstance(text, str) else text
    cursor = cursor_at(end)
    if cursor is None or cursor.head is None:
        return None
    state = state_at(job.location, cursor.seq)
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    return BatchStatus(
        progress["batchId"],
        progress["numInputRows"],
        seconds,
        cursor.seq,
        cursor.head.number,
        f"0x{cursor.head.hash.hex()}",
        0 if state is None else state.unfit,
    )


def failure(text: str, stack: str = "") -> LakeError:
    """The error of a failed query, by its text. ``stack``: Java's, for failures that Spark's text does not mention."""
    found = _OURS.findall(text)
    if not found and _DIED.search(text + stack):
        return LakeError(
            "a Python worker died, killed or out of memory: restart the query, it resumes from its checkpoint"
        )
    found = found or _ANY.findall(text)
    if found:
        return LakeError(found[-1][1])
    return LakeError(f"the Spark query failed: {text.splitlines()[0] if text else 'no reason given'}")
