"""Commit of one batch by the driver: typed tables, payload, events, canonical, each one Delta transaction.

Rules that make a batch arrive exactly once, with a kill at any point:

1. Every transaction carries (lineage, last seq).
2. ``canonical`` comes last, and its commit names the version of every other table. Readers start from it: rows that
   were committed before a kill and are not yet named are invisible, and never needed.
3. So a batch is appended to tables that end where ``canonical`` does. Further rows, of a killed driver or of a lost
   checkpoint, are removed first, with any content.
4. A driver that removes rows increments the number of fences in ``canonical`` before. Another driver that is still
   running sees that, or its transaction is refused: delta-rs refuses a second one of one application id from the same
   version. If ``canonical`` changed since a task began, a second driver is running: nothing is committed.

``spark/cardinal_spark/docs/spark.md``, rules 8, 9, 10 and 12. It never deletes a row that ``canonical`` has named.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow.dataset as pads
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError

from cardinal_spark.errors import LakeError
from cardinal_spark.rows import AppSpec

from .decode import NONE, TaskResult
from .ledger import (
    EventRow,
    event_rows,
    events_table,
    in_order,
    last_changes,
    need_lineage,
    need_next,
    need_same,
)
from .location import LakeLocation, mapped
from .maintenance import upkeep
from .opened import OpenTables
from .parts import DataFile, DataFileWriter
from .state import LakeState, read_state
from .tables import (
    CANONICAL,
    CANONICAL_SCHEMA,
    CHECKPOINT_EVERY,
    EVENTS,
    EVENTS_SCHEMA,
    LOG_SETTINGS,
    LakeSettings,
    app_id,
    bucket,
)
from .typed import append_schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa
    from deltalake import DeltaTable

_LOG: Final = logging.getLogger(__name__)

_COLLISIONS: Final = 10
"""Retries of a MERGE that collided with a compaction."""

_TIDY_EVERY: Final = 64
"""Commits of ``canonical`` after which the driver joins the newest partition's small files."""


@dataclass(frozen=True, slots=True)
class LakeCommitter:
    """Commits batches into the lake at ``location``.

    Attributes:
        location: the lake.
        settings: the sink's.
        on_commit: called with a table's name after each of its transactions.
        opened: the tables that stay open between its batches.

    """

    location: LakeLocation
    settings: LakeSettings = field(default_factory=LakeSettings)
    on_commit: Callable[[str], None] = lambda _: None
    opened: OpenTables = field(default_factory=OpenTables)

    def commit(self, results: Iterable[TaskResult]) -> LakeState | None:
        """Commit the task results of one batch; returns the lake's state afterwards, None for a batch without rows.

        Raises LakeDivergedError where the lake holds other blocks or another lineage, LakeError where rows are missing
        or a second driver writes.
        """
        done = [result for result in results if result.ledger]
        ledger = in_order(row for result in done for row in result.ledger)
        if not ledger:
            return None
        apps = {result.app for result in done}
        if len(apps) > 1:
            raise LakeError(f"a batch mixes the applications {' and '.join(sorted(apps))}: use one query per stream")
        batch = _Batch(self, apps.pop(), ledger, done)
        try:
            with mapped(f"commit to the lake {self.location.root}"):
                return batch.run()
        except BaseException:
            self.opened.clear()
            raise


class _Batch:
    """One batch under commit."""

    def __init__(self, committer: LakeCommitter, app: str, ledger: list[EventRow], results: list[TaskResult]) -> None:
        self._location = committer.location
        self._settings = committer.settings
        self._on_commit = committer.on_commit
        self._opened = committer.opened
        self._app = app
        self._lineage = ledger[0].lineage
        self._id = app_id(self._lineage)
        self._ledger = ledger
        self._last = ledger[-1].seq
        self._results = results
        self._versions: dict[str, int] = {}

    def run(self) -> LakeState:
        schemas = append_schemas(AppSpec.parse(self._app), self._settings)
        self._opened.keep_for(self._lineage, {result.base for result in self._results})
        canonical = self._table(CANONICAL, CANONICAL_SCHEMA, ["bucket"])
        shown, before = self._opened.seq(CANONICAL, canonical, self._lineage), canonical.version()
        events = self._table(EVENTS, EVENTS_SCHEMA)
        self._need_same(events, shown)
        if self._last <= shown:
            return read_state(self._location)
        if any(result.base != shown for result in self._results):
            raise _second_driver(CANONICAL)
        new = [row for row in self._ledger if row.seq > shown]
        need_next(self._location.root, shown, new)
        tables = {EVENTS: events, **{name: self._table(name, schema) for name, schema in schemas.items()}}
        beyond = [name for name, table in tables.items() if self._reaches(name, table, shown)]
        if beyond:
            canonical = self._fence(canonical, shown)
        for name in beyond:
            tables[name] = self._cut(name, tables[name], shown)
        for name in schemas:
            self._add(name, tables[name], [p for result in self._results for p in result.parts if p.table == name])
        self._append_events(tables[EVENTS], new)
        state = self._merge_canonical(canonical, shown, new)
        upkeep(self._location, self._settings, before, before + 1)
        return state

    def _need_same(self, events: DeltaTable, shown: int) -> None:
        """Raise where a repeated row differs from the lake's."""
        if not shown:  # empty, or another lineage's
            need_lineage(self._location.root, any_lineage(self._location, events), self._ledger)
        repeated = [row for row in self._ledger if row.seq <= shown]
        if repeated:
            seq = pads.field("seq")
            within = (seq >= repeated[0].seq) & (seq <= repeated[-1].seq)
            need_same(event_rows(self._location.dataset(EVENTS, events).to_table(filter=within)), repeated)

    def _reaches(self, name: str, table: DeltaTable, shown: int) -> bool:
        """True when a table has rows beyond ``shown``; LakeError where it ends before that."""
        end = self._opened.seq(name, table, self._lineage)
        if end < shown:
            raise LakeError(
                f"{name} ends at seq {end}, before {shown} where the batch begins: another program changed the table; "
                "write a new lake"
            )
        return end > shown

    # --- fences ----------------------------------------------------------------------------------------------

    def _fence(self, canonical: DeltaTable, shown: int) -> DeltaTable:
        """Fence off every driver that began before this: it can no longer commit to ``canonical``."""
        raised = Transaction(f"{self._id}/fences", self._fences(canonical) + 1)
        self._transact(CANONICAL, canonical, [], [Transaction(self._id, shown), raised], ["bucket"])
        return self._location.open(CANONICAL)

    def _fences(self, canonical: DeltaTable) -> int:
        return int(canonical.transaction_version(f"{self._id}/fences") or 0)

    # --- appending -------------------------------------------------------------------------------------------

    def _append_events(self, events: DeltaTable, new: Sequence[EventRow]) -> None:
        writer = DataFileWriter(self._location, EVENTS, EVENTS_SCHEMA)
        writer.write(events_table(new))
        self._add(EVENTS, events, writer.close())

    def _cut(self, name: str, table: DeltaTable, shown: int) -> DeltaTable:
        """Remove the rows beyond ``shown`` and set the table's transaction back to it."""
        reset = CommitProperties(app_transactions=[Transaction(self._id, shown)])
        table.delete(f"{'seq' if name == EVENTS else '_seq'} > {shown}", commit_properties=reset)
        table = self._location.open(name)
        if int(table.transaction_version(self._id) or NONE) != shown:  # a delete without a match commits nothing
            table.create_write_transaction([], "append", table.schema(), commit_properties=reset)
            table = self._location.open(name)
        self._on_commit(name)
        return table

    def _add(self, name: str, table: DeltaTable, parts: Sequence[DataFile]) -> None:
        self._transact(name, table, parts, [Transaction(self._id, self._last)])
        table.update_incremental()
        self._versions[name] = table.version()
        self._opened.reached(name, table, self._lineage, self._last)

    def _transact(
        self,
        name: str,
        table: DeltaTable,
        parts: Sequence[DataFile],
        transactions: list[Transaction],
        partition_by: list[str] | None = None,
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        try:
            table.create_write_transaction(
                [part.action(now_ms) for part in parts],
                "append",
                table.schema(),
                partition_by,
                commit_properties=CommitProperties(app_transactions=transactions),
                post_commithook_properties=_after(table),
            )
        except CommitFailedError as error:
            raise _second_driver(name) from error
        self._on_commit(name)

    # --- canonical -------------------------------------------------------------------------------------------

    def _merge_canonical(self, canonical: DeltaTable, shown: int, rows: Sequence[EventRow]) -> LakeState:
        head = rows[-1].head
        unfit = [number for result in self._results for number in result.unfit]
        state = LakeState(
            self._lineage, self._app, self._last, head.number, head.hash, dict(self._versions), unfit=len(unfit)
        )
        table = canonical
        for _ in range(_COLLISIONS):
            try:
                merge(table, last_changes(rows), state)
                break
            except CommitFailedError as error:
                table = self._location.open(CANONICAL)
                moved = self._opened.seq(CANONICAL, table, self._lineage) != shown
                if moved or self._fences(table) != self._fences(canonical):
                    raise _second_driver(CANONICAL) from error
        else:
            raise LakeError(
                f"another program changed canonical {_COLLISIONS} times in a row: stop compactions that run in a loop"
            )
        self._on_commit(CANONICAL)
        if unfit and not self._opened.warned:
            self._opened.warned = True
            _LOG.warning(
                "block %d has a time or an amount of gas that no column holds: it is null in the tables, and whole in "
                "payload; such blocks of this batch: %d; further ones are counted only",
                min(unfit),
                len(unfit),
            )
        self._tidy(table, head.number)
        self._opened.reached(CANONICAL, table, self._lineage, self._last)
        return state

    def _tidy(self, table: DeltaTable, number: int) -> None:
        """Join the small files of the partition that grows. The driver is its only writer, so nothing collides."""
        if table.version() % _TIDY_EVERY == 0:
            with contextlib.suppress(CommitFailedError):  # the batch is committed; compaction can wait
                table.optimize.compact(partition_filters=[("bucket", "=", str(bucket(number)))])

    # --- helpers ---------------------------------------------------------------------------------------------

    def _table(
        self,
        name: str,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
    ) -> DeltaTable:
        table = self._opened.find(self._location, name)
        if table is None:
            table = self._location.create(name, schema, list(partition_by), LOG_SETTINGS)
        need_schema(name, table, schema)
        return table


def merge(table: DeltaTable, changes: pa.Table, state: LakeState) -> None:
    """Bring ``canonical`` to ``state``: removed heights are deleted, added ones are set.

    The predicate names the range of heights and partitions, so that files outside are neither read nor rewritten.
    """
    numbers = changes.column("number").to_pylist()
    low, high = min(numbers), max(numbers)
    within = (
        f"t.bucket = s.bucket AND t.number = s.number AND t.bucket >= {bucket(low)} AND t.bucket <= {bucket(high)} "
        f"AND t.number >= {low} AND t.number <= {high}"
    )
    before = table.version()
    (
        table.merge(
            changes,
            within,
            source_alias="s",
            target_alias="t",
            commit_properties=state.properties(with_seq=True),
            post_commithook_properties=_after(table),
        )
        .when_matched_delete("s.change = -1")
        .when_matched_update({"hash": "s.hash", "seq": "s.seq"}, predicate="s.change = 1")
        .when_not_matched_insert(
            {name: f"s.{name}" for name in CANONICAL_SCHEMA.names},
            predicate="s.change = 1",
        )
        .execute()
    )
    if table.version() == before:  # a merge that changes no row commits nothing, and the seq would be lost
        table.create_write_transaction(
            [], "append", table.schema(), ["bucket"], commit_properties=state.properties(with_seq=True)
        )


def any_lineage(location: LakeLocation, events: DeltaTable) -> str | None:
    """The lineage of the ledger, None while it is empty."""
    for batch in location.dataset(EVENTS, events).to_batches(columns=["lineage"]):
        if batch.num_rows:
            return str(batch.column(0)[0].as_py())
    return None


def need_schema(name: str, table: DeltaTable, schema: pa.Schema) -> None:
    """Add columns that the table does not have yet; LakeError where a column has another type."""
    held = {column.name: column for column in table.schema().fields}
    due = {column.name: column for column in type(table.schema()).from_arrow(schema).fields}
    for column, wanted in due.items():
        if column in held and held[column].type != wanted.type:
            raise LakeError(
                f"column {column} of {name} is {held[column].type} and not {wanted.type}: "
                "the type of 256-bit values (integers) is fixed when a lake is created, use that one or a new lake"
            )
    missing = [wanted for column, wanted in due.items() if column not in held]
    if missing:
        table.alter.add_columns(missing)


def _after(table: DeltaTable) -> PostCommitHookProperties:
    """Remove expired commits after every checkpoint. By default delta-rs reads the complete log at every commit."""
    return PostCommitHookProperties(cleanup_expired_logs=table.version() % CHECKPOINT_EVERY == 0)


def _second_driver(name: str) -> LakeError:
    return LakeError(f"another query committed to {name} at the same time: stop one of them, a lake has one writer")
