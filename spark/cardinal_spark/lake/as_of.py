"""Earlier state of a lake: the last row of its ledger, and the blocks of its chain then.

Rules:

1. As of a seq or a time: the state after the last complete update up to there. As of a block: when the block that the
   chain has at this height now had just joined.
2. A time is compared with the times at which blocks were published, in the order of the ledger: the first block that
   was published later ends it.
3. The chain is computed from the ledger: of every block the last change counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.options import number
from cardinal_spark.rows import ADDED, TIMESTAMP

from .tables import BUCKET_SIZE, CANONICAL, CANONICAL_SCHEMA, EVENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .location import LakeLocation
    from .state import LakeState


class Ledger(Protocol):
    """The tables of a lake at one commit."""

    @property
    def location(self) -> LakeLocation:
        """The place of the lake."""

    @property
    def state(self) -> LakeState:
        """Its state at that commit."""

    def dataset(self, table: str) -> pads.Dataset:
        """A table, limited to the state's seq."""

    def files(self, table: str) -> pads.FileSystemDataset:
        """A table with all rows of its files."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """Earlier state by a seq, a block number, or a time with its zone; at most one of them.

    Raises:
        ConfigurationError: there are several, or the time has no zone.

    """

    seq: int | None = None
    block: int | None = None
    time: datetime | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if sum(each is not None for each in (self.seq, self.block, self.time)) > 1:
            raise ConfigurationError("choose one of asOfSeq, asOfBlock and asOfTime", setting="asOf")
        if self.time is not None and self.time.tzinfo is None:
            raise ConfigurationError("a time needs its zone: 2026-01-31T12:00:00Z", setting="asOfTime")

    def __bool__(self) -> bool:
        """True for an earlier state, False for the current one."""
        return self != NOW

    @classmethod
    def of(cls, parsed: Mapping[str, str]) -> AsOf:
        """Parse the options by their lower-case names. ConfigurationError names the invalid one."""
        seq, block = number(parsed, "asOfSeq"), number(parsed, "asOfBlock")
        text = parsed.get("asoftime")
        try:
            moment = None if text is None else datetime.fromisoformat(text)
        except ValueError:
            raise ConfigurationError(
                f"write the time as of which to read as 2026-01-31T12:00:00Z, with its zone, not {text!r}",
                setting="asOfTime",
            ) from None
        return cls(seq, block, moment)


NOW: Final = AsOf()


def last_seq(snapshot: Ledger, as_of: AsOf) -> int:
    """The ledger's last row in that state.

    Raises:
        LakeError: the lake has no such block or no state so old.

    """
    if as_of.block is not None:
        within = pads.field("number") == as_of.block
        found = snapshot.dataset(CANONICAL).to_table(columns=["seq"], filter=within).column("seq").to_pylist()
        if not found:
            raise LakeError(f"the chain of the lake {snapshot.location.root} has no block {as_of.block}")
        return int(found[0])
    seq = snapshot.state.seq
    if as_of.seq is not None:
        seq = min(seq, as_of.seq)
    ledger = snapshot.dataset(EVENTS)
    if as_of.time is not None:
        rows = ledger.to_table(columns=["seq", "published_at"])
        published = rows.column("published_at").cast(TIMESTAMP)
        late = rows.filter(pc.greater(published, pa.scalar(as_of.time, TIMESTAMP)))
        seq = min(seq, pc.min(late.column("seq")).as_py() - 1) if late.num_rows else seq
    ends = ledger.to_table(
        columns=["seq", "update_id"], filter=(pads.field("seq") == seq) | (pads.field("seq") == seq + 1)
    ).sort_by("seq")
    updates = ends.column("update_id").to_pylist()
    if len(updates) > 1 and updates[0] == updates[1]:
        seq = updates[0] - 1
    if seq < 1:
        what = (
            "state so old: choose a later one" if as_of.time is None else "block published by then: choose a later time"
        )
        raise LakeError(f"the lake {snapshot.location.root} has no {what}")
    return int(seq)


def chain_at(snapshot: Ledger, seq: int) -> pa.Table:
    """The chain after a row of the ledger, with the columns of ``canonical``."""
    within = pads.field("seq") <= seq
    rows = snapshot.files(EVENTS).to_table(columns=["seq", "change", "number", "hash"], filter=within)
    last = rows.group_by("hash").aggregate([("seq", "max")]).column("seq_max")
    stands = pc.and_(pc.is_in(rows.column("seq"), value_set=last), pc.equal(rows.column("change"), ADDED))
    chain = rows.filter(stands)
    bucket = pc.divide(chain.column("number"), BUCKET_SIZE)
    columns = [bucket, *(chain.column(name) for name in ("number", "hash", "seq"))]
    return pa.table(columns, names=CANONICAL_SCHEMA.names).cast(CANONICAL_SCHEMA)
