"""Stream of a lake's ledger: ``spark.readStream.format("cardinal_lake").option("table", "events")``.

For jobs downstream of the lake: every block that joined or left, in order, from any time, without Kafka.

Rules:

1. A batch is the rows of ``events`` that were committed since the one before; it ends where an update ends.
2. Rows are never rewritten: the rows that a checkpoint names are re-read unchanged.
3. A lake that was recreated, with another lineage, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.options import parse_options

from .location import LakeLocation, mapped
from .options import STREAM_OPTIONS
from .query import Snapshot
from .state import LakeState, find_state, read_state
from .tables import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType


class LedgerPartition(InputPartition):
    """The rows of the ledger after one seq, up to another."""

    def __init__(self, state: LakeState, after: int, last: int) -> None:
        super().__init__(None)
        self.state = state
        self.after = after
        self.last = last


class LedgerReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of the ledger. ``schema`` is the one that Spark declared."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        parsed = parse_options(options, STREAM_OPTIONS, "cardinal_lake")
        if parsed.get("table") != EVENTS:
            raise ConfigurationError(
                f"a stream of a lake has the table events, not {parsed.get('table')!r}: join other tables by _seq, or "
                "stream format('cardinal')",
                setting="table",
            )
        start = parsed.get("startingoffsets", "earliest")
        if start not in ("earliest", "latest") and not start.isdecimal():
            raise ConfigurationError(
                f"startingOffsets must be earliest, latest or a seq of events, not {start!r}", setting="startingOffsets"
            )
        self._start = start
        self._location = LakeLocation.of(options.get("path", ""), options)
        self._schema = schema
        self._frozen: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The first offset of a new checkpoint."""
        if self._start == "latest":
            state = find_state(self._location)
            return {"seq": 0, "lineage": ""} if state is None else {"seq": state.seq, "lineage": state.lineage}
        first = 1 if self._start == "earliest" else int(self._start)
        state = find_state(self._location)
        return {"seq": max(0, min(first - 1, 0 if state is None else state.seq)), "lineage": ""}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """No limit: a row of the ledger is small."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End at the current end of the ledger."""
        state = find_state(self._location)
        self._frozen = 0 if state is None else state.seq

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the ledger; ``start`` where it has no new rows."""
        del limit
        state = find_state(self._location)
        if state is None:
            return start
        self._need(state, start)
        last = state.seq if self._frozen is None else min(self._frozen, state.seq)
        return {"seq": last, "lineage": state.lineage} if last > start["seq"] else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The one task of a batch."""
        if end["seq"] <= start["seq"]:
            return []
        state = read_state(self._location)
        self._need(state, end)
        return [LedgerPartition(state, start["seq"], end["seq"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's exact Arrow schema."""
        if not isinstance(partition, LedgerPartition):
            return
        due = to_arrow_schema(self._schema, timezone="UTC")
        seq = pads.field("seq")
        within = (seq > partition.after) & (seq <= partition.last)
        with mapped(f"read events of the lake {self._location.root}"):
            rows = Snapshot(self._location, partition.state).files(EVENTS).to_table(columns=due.names, filter=within)
        yield from rows.cast(due).to_batches()

    def _need(self, state: LakeState, offset: Mapping[str, Any]) -> None:
        """Raise LakeError where the lake is not the one that a checkpoint was made with."""
        if offset["lineage"] not in ("", state.lineage) or state.seq < offset["seq"]:
            raise LakeError(
                f"the lake {self._location.root} was recreated after this checkpoint: start with a new checkpoint"
            )
