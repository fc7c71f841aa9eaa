"""Compaction and clean-up of a lake: by its own driver between two batches, or by a command beside it.

Rules:

1. ``canonical`` is compacted only in partitions below the head minus twice the reorg threshold: above, MERGEs work. A
   MERGE that still collides with a compaction is tried again by the driver, and a compaction that loses is left
   for the next run.
2. Appended tables are compacted when they have ``min_files`` small files; one for which an order is asked for is
   written again as a whole.
3. Both end with a commit to ``canonical`` that names the new versions, so that readers leave the old files before
   ``clean`` removes them.
4. ``clean`` removes files that no table has named for the retention, orphans of killed tasks included. It keeps a list
   of them beside the lake's log, each with the time at which it was first seen without a name, because the tables' own
   logs forget removed files much sooner. The retention must exceed the longest query and the longest batch.

No row is ever changed here.
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
from cardinal.errors import ConfigurationError, LakeError
from cardinal_spark.rows import AppSpec

from .parts import TARGET_BYTES
from .place import Place, mapped
from .state import LakeState, read_state
from .tables import BUCKET_SIZE, CANONICAL, EVENTS, RETENTION_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from .tables import LakeSettings

MIN_FILES: Final = 64
"""Small files of a table from which on it is compacted (spark facts, rule 13)."""

_SORT_BYTES: Final = 1 << 30
"""Memory that a sort takes before it goes to temporary files. Without a bound it takes twice the size of the table's
files (measured with 200 and 500 MB)."""

_UNNAMED: Final = "_cardinal_unnamed.json"
_CLEAN_EVERY: Final = 16
"""Compactions between two clean-ups."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of one table: how many files went and how many came."""

    table: str
    removed: int
    added: int


def upkeep(place: Place, settings: LakeSettings, before: int, after: int) -> None:
    """What is due after a batch that took ``canonical`` from one version to another.

    What goes wrong is logged, and tried again the next time: a lake that is not compacted is slow, not wrong.
    """
    due = after // settings.compact_every - before // settings.compact_every if settings.compact_every else 0
    if not due:
        return
    try:
        for done in compact(place):
            _LOG.info("%s: %d files became %d", done.table, done.removed, done.added)
        if settings.retention_hours and after // settings.compact_every % _CLEAN_EVERY == 0:
            _LOG.info("%d files removed", clean(place, retention_hours=settings.retention_hours))
    except LakeError as error:
        _LOG.warning("the lake's upkeep failed and is tried again: %s", error)


def compact(
    place: Place,
    *,
    min_files: int = MIN_FILES,
    z_order: Mapping[str, Sequence[str]] | None = None,
    target_bytes: int = TARGET_BYTES,
) -> list[Compaction]:
    """Join the small files of a lake; what was done, table by table.

    Arguments:
        place: the lake.
        min_files: small files of an appended table from which on something is done.
        z_order: table to columns by which its rows are sorted, so that a file holds few of their values.
        target_bytes: size of the files that come of it.

    Raises:
        ConfigurationError: there is no such table, or no such column to sort it by.
        LakeError: there is no lake, or a table cannot be written.

    """
    state = read_state(place)
    _need_columns(place, state, z_order or {})
    done = []
    for name in state.versions:
        with mapped(f"compact {name} of the lake {place.root}"):
            table = place.open(name)
            columns = (z_order or {}).get(name)
            if not columns and len(_small(table, target_bytes)) < min_files:
                continue
            if columns:
                metrics = table.optimize.z_order(columns, target_size=target_bytes, max_spill_size=_SORT_BYTES)
            else:
                metrics = table.optimize.compact(target_size=target_bytes)
            done.append(_joined(name, metrics))
    threshold = AppSpec.parse(state.app).options.get("reorg_threshold", REORG_THRESHOLD)
    canonical = _compact_canonical(place, state.number - 2 * threshold)
    if canonical is not None:
        found, version = canonical
        done.append(found)
        if version - 1 == state.canonical:
            # Nobody came between. Of a lake that stood still, that commit may have taken from the log the one that says
            # what is shown: it is said again from here.
            publish(place, dataclasses.replace(state, canonical=version))
            return done
    if done:
        publish(place)
    return done


def _need_columns(place: Place, state: LakeState, z_order: Mapping[str, Sequence[str]]) -> None:
    for name, columns in z_order.items():
        if name not in state.versions or name == EVENTS:
            tables = ", ".join(sorted(state.versions.keys() - {EVENTS}))
            raise ConfigurationError(f"the lake has no table {name!r} to sort; it has {tables}", setting="z-order")
        held = {field.name: field.type for field in pa.schema(place.open(name).schema())}
        for column in columns:
            if column not in held or pa.types.is_nested(held[column]):
                raise ConfigurationError(f"{name} has no column {column!r} to sort it by", setting="z-order")


def clean(place: Place, *, retention_hours: int = RETENTION_HOURS) -> int:
    """Remove the files that no table has named for so many hours, as far as earlier calls saw; how many they were.

    Raises ConfigurationError for a negative retention, LakeError where there is no lake.
    """
    if retention_hours < 0:
        raise ConfigurationError(f"the retention must be 0 hours or more, not {retention_hours}", setting="retention")
    state = publish(place)
    removed = 0
    for name in (*state.versions, CANONICAL):
        with mapped(f"clean {name} of the lake {place.root}"):
            removed += _clean(place, name, retention_hours * 3600)
            place.open(name).cleanup_metadata()
    return removed


def _clean(place: Place, name: str, seconds: int) -> int:
    """Remove a table's files that have had no name for so many seconds."""
    files = place.files(name)
    here = {
        info.path
        for info in files.get_file_info(pafs.FileSelector("", recursive=True))
        if info.path.endswith(".parquet") and not info.path.startswith("_delta_log/")
    }
    named = set(pa.table(place.open(name).get_add_actions(flatten=True)).column("path").to_pylist())
    known, now = _seen(files), time.time()
    seen = {path: known.get(path, now) for path in here if path not in named}
    gone = {path for path, first in seen.items() if now - first >= seconds}
    for path in gone:
        files.delete_file(path)
    # Buffered, because delta-rs' files take bytes and nothing else.
    with files.open_output_stream(_UNNAMED, buffer_size=1 << 16) as stream:
        stream.write(json.dumps({path: first for path, first in seen.items() if path not in gone}).encode())
    return len(gone)


def _seen(files: pafs.FileSystem) -> dict[str, float]:
    """When each file was first seen without a name."""
    try:
        with files.open_input_stream(_UNNAMED) as stream:
            return dict(json.loads(stream.read()))
    except (FileNotFoundError, ValueError):
        return {}


def publish(place: Place, known: LakeState | None = None) -> LakeState:
    """Let ``canonical`` name the newest version of every table, without changing a row; the state afterwards.

    A driver that commits at the same time wins: its own commit names versions as new as ours. ``known``: the state at a
    version of ``canonical``, where it is known.
    """
    state = known or read_state(place)
    newest = {name: place.open(name).version() for name in state.versions}
    table = place.open(CANONICAL, state.canonical)
    # no retry: delta-rs would put the old state behind a commit that came in between
    properties = dataclasses.replace(state, versions=newest).properties(retries=0)
    with (
        contextlib.suppress(CommitFailedError),
        mapped(f"publish the tables of the lake {place.root}", (CommitFailedError,)),
    ):
        table.create_write_transaction([], "append", table.schema(), ["bucket"], commit_properties=properties)
    return read_state(place)


def _small(table: DeltaTable, target_bytes: int) -> list[int]:
    sizes: list[int] = pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return [size for size in sizes if size < target_bytes // 2]


def _compact_canonical(place: Place, below: int) -> tuple[Compaction, int] | None:
    """Compact the partitions of ``canonical`` whose heights all lie below ``below``; what was done, and its version."""
    with mapped(f"compact canonical of the lake {place.root}", (CommitFailedError,)):
        table = place.open(CANONICAL)
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
