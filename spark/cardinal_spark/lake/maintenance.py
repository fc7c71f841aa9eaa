"""Compaction and clean-up of a lake: by its own driver between two batches, or by a command alongside it.

Rules:

1. ``canonical`` is compacted only in partitions below the head minus twice the reorg threshold: MERGEs change those
   above. A MERGE that still collides with a compaction is retried by the driver, and a compaction that loses is left
   for the next run.
2. Appended tables are compacted when they have ``min_files`` small files; one for which an order is requested is
   rewritten completely.
3. Both end with a commit to ``canonical`` that names the new versions, so that readers leave the old files before
   ``clean`` removes them.
4. ``clean`` removes files that no table has named for the retention, orphans of killed tasks included. It stores a
   list of them next to the lake's log, each with the time at which it was first seen without a name, because the
   tables' own logs forget removed files much sooner. The retention must exceed the longest query and the longest batch.

It never changes a row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.exceptions import CommitFailedError

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.errors import ConfigurationError
from cardinal.texts import Count
from cardinal_spark.errors import LakeError
from cardinal_spark.rows import AppSpec

from .location import LakeLocation, mapped
from .parts import TARGET_BYTES
from .state import LakeState, read_state
from .tables import BUCKET_SIZE, CANONICAL, EVENTS, RETENTION_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from .tables import LakeSettings

MIN_FILES: Final = 64
"""Number of small files at which a table is compacted (``spark/cardinal_spark/docs/spark.md``, rule 13)."""

_SORT_BYTES: Final = 1 << 30
"""Memory of a sort before it spills to temporary files. Without a bound it takes twice the size of the table's files
(measured with 200 and 500 MB)."""

_UNNAMED: Final = "_cardinal_unnamed.json"
_CLEAN_EVERY: Final = 16
"""Compactions between two clean-ups."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of one table's compaction: the numbers of files removed and added."""

    table: str
    removed: int
    added: int


def upkeep(location: LakeLocation, settings: LakeSettings, before: int, after: int) -> None:
    """Compact and clean where it is due, after a batch that took ``canonical`` from one version to another.

    An error is logged, and the work retried the next time: a lake that is not compacted is slow, not wrong.
    """
    due = after // settings.compact_every - before // settings.compact_every if settings.compact_every else 0
    if not due:
        return
    try:
        for done in compact(location):
            _LOG.info("%s: %s became %d", done.table, Count(done.removed, "file"), done.added)
        if settings.retention_hours and after // settings.compact_every % _CLEAN_EVERY == 0:
            _LOG.info("%s removed", Count(clean(location, retention_hours=settings.retention_hours), "file"))
    except LakeError as error:
        _LOG.warning("the lake's compaction or clean-up failed and will be retried: %s", error)


def compact(
    location: LakeLocation,
    *,
    min_files: int = MIN_FILES,
    z_order: Mapping[str, Sequence[str]] | None = None,
    target_bytes: int = TARGET_BYTES,
) -> list[Compaction]:
    """Compact the small files of a lake; returns the results, table by table.

    Arguments:
        location: the lake.
        min_files: number of small files at which an appended table is compacted.
        z_order: table to columns by which its rows are sorted, so that a file holds few of their values.
        target_bytes: size of the resulting files.

    Raises:
        ConfigurationError: there is no such table, or no such column to sort it by.
        LakeError: there is no lake, or a table cannot be written.

    """
    state = read_state(location)
    _need_columns(location, state, z_order or {})
    done = []
    for name in state.versions:
        with mapped(f"compact {name} of the lake {location.root}"):
            table = location.open(name)
            columns = (z_order or {}).get(name)
            if not columns and len(_small(table, target_bytes)) < min_files:
                continue
            if columns:
                metrics = table.optimize.z_order(columns, target_size=target_bytes, max_spill_size=_SORT_BYTES)
            else:
                metrics = table.optimize.compact(target_size=target_bytes)
            done.append(_joined(name, metrics))
    threshold = AppSpec.parse(state.app).options.get("reorg_threshold", REORG_THRESHOLD)
    canonical = _compact_canonical(location, state.number - 2 * threshold)
    if canonical is not None:
        found, version = canonical
        done.append(found)
        if version - 1 == state.canonical:
            # No other commit came between. In an idle lake, that commit may have expired the one that carries the
            # state from the log: the state is committed once more.
            publish(location, dataclasses.replace(state, canonical=version))
            return done
    if done:
        publish(location)
    return done


def _need_columns(location: LakeLocation, state: LakeState, z_order: Mapping[str, Sequence[str]]) -> None:
    for name, columns in z_order.items():
        if name not in state.versions or name == EVENTS:
            tables = ", ".join(sorted(state.versions.keys() - {EVENTS}))
            raise ConfigurationError(f"the lake has no table {name!r} to sort; it has {tables}", setting="z-order")
        held = {field.name: field.type for field in pa.schema(location.open(name).schema())}
        for column in columns:
            if column not in held or pa.types.is_nested(held[column]):
                raise ConfigurationError(f"{name} has no column {column!r} to sort it by", setting="z-order")


def clean(location: LakeLocation, *, retention_hours: int = RETENTION_HOURS) -> int:
    """Remove the files that no table has named for the retention, as seen by earlier calls; returns their number.

    Raises ConfigurationError for a negative retention, LakeError where there is no lake.
    """
    if retention_hours < 0:
        raise ConfigurationError(f"the retention must be 0 hours or more, not {retention_hours}", setting="retention")
    state = publish(location)
    removed = 0
    for name in (*state.versions, CANONICAL):
        with mapped(f"clean {name} of the lake {location.root}"):
            removed += _clean(location, name, retention_hours * 3600)
            location.open(name).cleanup_metadata()
    return removed


def _clean(location: LakeLocation, name: str, seconds: int) -> int:
    """Remove a table's files that have had no name for ``seconds``."""
    files = location.files(name)
    here = {
        info.path
        for info in files.get_file_info(pafs.FileSelector("", recursive=True))
        if info.path.endswith(".parquet") and not info.path.startswith("_delta_log/")
    }
    named = set(pa.table(location.open(name).get_add_actions(flatten=True)).column("path").to_pylist())
    earlier, now = _seen(files), time.time()
    seen = {path: earlier.get(path, now) for path in here if path not in named}
    expired = {path for path, first in seen.items() if now - first >= seconds}
    for path in expired:
        files.delete_file(path)
    # Buffered, because delta-rs' files take bytes and nothing else.
    with files.open_output_stream(_UNNAMED, buffer_size=1 << 16) as stream:
        stream.write(json.dumps({path: first for path, first in seen.items() if path not in expired}).encode())
    return len(expired)


def _seen(files: pafs.FileSystem) -> dict[str, float]:
    """The time at which each file was first seen without a name."""
    try:
        with files.open_input_stream(_UNNAMED) as stream:
            return dict(json.loads(stream.read()))
    except (FileNotFoundError, ValueError):
        return {}


def publish(location: LakeLocation, state: LakeState | None = None) -> LakeState:
    """Commit the newest version of every table to ``canonical``, without changing a row; returns the state afterwards.

    A driver that commits at the same time wins: its own commit names versions as new as ours. ``state``: the state at a
    version of ``canonical``; None reads it.
    """
    state = state or read_state(location)
    newest = {name: location.open(name).version() for name in state.versions}
    table = location.open(CANONICAL, state.canonical)
    # no retry: delta-rs would put the old state behind a commit that came in between
    properties = dataclasses.replace(state, versions=newest).properties(retries=0)
    with (
        contextlib.suppress(CommitFailedError),
        mapped(f"publish the tables of the lake {location.root}", (CommitFailedError,)),
    ):
        table.create_write_transaction([], "append", table.schema(), ["bucket"], commit_properties=properties)
    return read_state(location)


def _small(table: DeltaTable, target_bytes: int) -> list[int]:
    sizes: list[int] = pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return [size for size in sizes if size < target_bytes // 2]


def _compact_canonical(location: LakeLocation, below: int) -> tuple[Compaction, int] | None:
    """Compact the partitions of ``canonical`` with all heights below ``below``; returns the result and version."""
    with mapped(f"compact canonical of the lake {location.root}", (CommitFailedError,)):
        table = location.open(CANONICAL)
        files = Counter(pa.table(table.get_add_actions(flatten=True)).column("partition.bucket").to_pylist())
        old = [str(number) for number, count in files.items() if count > 1 and (number + 1) * BUCKET_SIZE <= below]
        if not old:
            return None
        try:
            metrics = table.optimize.compact(partition_filters=[("bucket", "in", old)])
        except CommitFailedError:  # a MERGE came first; the next run finds the same files
            return None
        return _joined(CANONICAL, metrics), table.version()


def _joined(name: str, metrics: dict[str, Any]) -> Compaction:
    return Compaction(name, metrics["numFilesRemoved"], metrics["numFilesAdded"])
