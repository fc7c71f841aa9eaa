"""The whole job: one query from the stream into the lake, and what it tells while it runs.

Rules:

1. One query reads ``table=raw`` and writes every table of the lake.
2. The checkpoint belongs to the lake and lies in it unless it is named. A lake that has rows and no checkpoint goes
   on from its ledger (``restartFrom=sink``).
3. A failure is one sentence: the error that a task, the planner or the commit raised, without Spark's frames.

On a cluster the same two calls run under ``spark-submit``.
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import ConfigurationError, LakeError

from .lake.options import SINK_OPTIONS
from .lake.place import Place
from .lake.query import last_committed
from .lake.state import find_state
from .options import STORAGE
from .source.options import SourceOptions, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Watch = Callable[[Mapping[str, Any]], None]

_CHECKPOINT: Final = "_checkpoint"
_OURS: Final = re.compile(r"^(?:cardinal\.errors\.)(\w+): (.+)$", re.MULTILINE)
_DIED: Final = re.compile(
    # a task's or a commit's; the planner's, of whose end Spark's text says nothing
    r"Python worker exited unexpectedly"
    r"|Caused by: java\.\w+\.(?:EOF|IO|Socket)Exception.*(?:\n\tat .*)*?\n\tat .*PythonStreamingSourceRunner"
)
_ANY: Final = re.compile(r"^([\w.]+(?:Error|Exception)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run.

    Attributes:
        source: URL of the stream.
        lake: path or URL of the lake.
        checkpoint: path or URL of the checkpoint; None: in the lake.
        until_caught_up: end when everything that was on the topics at the start is in the lake.
        trigger: pause between batches in Spark's words.
        options: further options of the source and of the lake, by Spark's names.

    """

    source: str
    lake: str
    checkpoint: str | None = None
    until_caught_up: bool = False
    trigger: str = "1 second"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> Place:
        """The lake."""
        return Place.of(self.lake, self.options)

    @property
    def checkpoint_path(self) -> str:
        """Where the checkpoint lies. ConfigurationError where a lake in an object store names none."""
        if self.checkpoint is not None:
            return self.checkpoint
        if not self.place.is_local:
            raise ConfigurationError(
                "a lake in an object store needs --checkpoint: a path that Spark itself can write", setting="checkpoint"
            )
        return f"{self.place.root}/{_CHECKPOINT}"


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One batch that is in the lake: its number, blocks that joined or left, duration, and the lake's head after it."""

    batch: int
    blocks: int
    seconds: float
    seq: int
    number: int
    hash: str


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query. ConfigurationError where the job cannot work."""
    source = _of_source(job)
    lake = {name: value for name, value in job.options.items() if name not in source}
    rows = spark.readStream.format("cardinal").options(**{**source, **source_options(job)}).load()
    writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", job.checkpoint_path).options(**lake)
    writer = writer.trigger(availableNow=True) if job.until_caught_up else writer.trigger(processingTime=job.trigger)
    return writer.start(job.place.root)


def check(job: Job) -> None:
    """Look at both ends of a job before Spark is started, which takes longer.

    Raises:
        ConfigurationError: an option cannot work.
        UnreachableError, TopicError: the stream is not there.
        LakeError: the lake cannot be written.

    """
    checkpoint = job.checkpoint_path
    job.place.need_writable()
    if "://" not in checkpoint:
        Place.of(checkpoint).need_writable()
    given = SourceOptions.of({**_of_source(job), **source_options(job)})
    Stream.find(given).open().close()


def _of_source(job: Job) -> dict[str, str]:
    """The options that are not the lake's own."""
    return {
        name: value for name, value in job.options.items() if not name.startswith(STORAGE) and name not in SINK_OPTIONS
    }


def source_options(job: Job) -> dict[str, str]:
    """The source's options that follow from the job."""
    options = {"url": job.source, "table": "raw"}
    if _has_rows(job):  # what a checkpoint says comes before it
        storage = {f"{STORAGE}{name}": value for name, value in job.place.storage.items()}
        options |= {"restartFrom": "sink", "sinkPath": job.place.root, **storage}
    return options


def _has_rows(job: Job) -> bool:
    return last_committed(job.place.root, depth=1, storage=job.place.storage) is not None


def run(spark: SparkSession, job: Job, stopping: threading.Event, watch: Watch | None = None) -> Iterator[BatchStatus]:
    """Run the job to its end and give every batch as it is done; stops Spark in the end.

    Arguments:
        spark: the session.
        job: what to run.
        stopping: once it is set, ends the query within the second; what is under way is done again by the next run.
        watch: is given Spark's progress of the query several times a second.

    Raises:
        LakeError: the query or Spark itself fails.

    """
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional dependency
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the same

    try:
        query = start(spark, job)
        for status in batches(query, job, watch):
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
        # who sends a signal to the whole group ends Java before us
        if not stopping.is_set():
            raise LakeError(
                "Spark's Java process ended; started again, the query goes on from its checkpoint"
            ) from error
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()


def batches(
    query: StreamingQuery, job: Job, watch: Watch | None = None, *, wait_seconds: float = 0.2
) -> Iterator[BatchStatus | None]:
    """Every batch as it is done, None when nothing happened for a while; ends with the query."""
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


def _status(progress: Any, job: Job) -> BatchStatus | None:  # noqa: ANN401 - Spark's progress is a dict or a class
    state = find_state(job.place) if progress["numInputRows"] else None
    if state is None:
        return None
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    return BatchStatus(
        progress["batchId"], progress["numInputRows"], seconds, state.seq, state.number, f"0x{state.hash.hex()}"
    )


def failure(text: str, stack: str = "") -> LakeError:
    """The sentence that a failed query's text is about. ``stack``: Java's, for where Spark's text says nothing."""
    found = _OURS.findall(text)
    if not found and _DIED.search(text + stack):
        return LakeError(
            "a Python worker died: something killed it, or memory ran out; started again, the query goes on from its "
            "checkpoint"
        )
    found = found or _ANY.findall(text)
    if found:
        return LakeError(found[-1][1])
    return LakeError(f"the Spark query failed: {text.splitlines()[0] if text else 'no reason given'}")
