"""Ledger of the lake: the rows of ``events``, which are the chain's changes in order, and checks on them.

Rules:

1. A batch's rows are one lineage, one application and dense in seq.
2. A row that the lake already holds may be repeated only with the same (seq, change, hash).
3. Per height only the last change counts for ``canonical``.

This file is pure: rows in, rows or errors out.
"""

from __future__ import annotations

import itertools
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from cardinal.protocols.streams.types import BlockRef
from cardinal_spark.errors import LakeDivergedError, LakeError
from cardinal_spark.rows import ADDED, TIMESTAMP

from .tables import CANONICAL_SCHEMA, EVENTS_SCHEMA, bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal_spark.rows import RawRow

FIRST_SEQ: Final = 1
"""The seq of a lineage's first row."""

MERGE_SCHEMA: Final = pa.schema([*CANONICAL_SCHEMA, ("change", pa.int8())])
"""Schema of the source of a MERGE into ``canonical``: its columns and the change."""


class EventRow(NamedTuple):
    """One row of ``events``, in the order of its columns. Times are microseconds since 1970 in UTC."""

    lineage: str
    seq: int
    change: int
    update_id: int
    number: int
    hash: bytes
    parent: bytes | None
    weight: bytes
    block_time: int | None
    published_at: int | None

    @classmethod
    def of(cls, row: RawRow) -> EventRow:
        """The ledger's part of a raw row."""
        return cls._make(_ledgers_part(row))

    @property
    def head(self) -> BlockRef:
        """The chain's head after this row: its block, or the parent of one that was removed."""
        return (
            BlockRef(self.number, self.hash) if self.change == ADDED else BlockRef(self.number - 1, self.parent or b"")
        )


_ledgers_part = attrgetter(*EventRow._fields)


def in_order(rows: Iterable[EventRow]) -> list[EventRow]:
    """The rows of a batch sorted by seq. LakeError where they are not dense or not of one lineage."""
    ledger = sorted(rows, key=lambda row: row.seq)
    for before, after in itertools.pairwise(ledger):
        if after.seq != before.seq + 1:
            raise LakeError(
                f"a batch jumps from seq {before.seq} to {after.seq}: write the rows of table=raw to cardinal_lake "
                "unfiltered"
            )
        if after.lineage != before.lineage:
            raise LakeError(
                f"a batch mixes the lineages {before.lineage!r} and {after.lineage!r}: use one query per stream"
            )
    return ledger


def need_lineage(location: str, held: str | None, ledger: Sequence[EventRow]) -> None:
    """LakeDivergedError where the lake holds another lineage than the batch."""
    if held is not None and ledger and ledger[0].lineage != held:
        raise LakeDivergedError(
            f"the lake {location} holds the lineage {held!r} and the stream is {ledger[0].lineage!r}: "
            "write to another folder, or start the source with the chain, start and options of the lake",
            seq=ledger[0].seq,
            expected=held.encode(),
            found=ledger[0].lineage.encode(),
        )


def need_same(held: Iterable[EventRow], repeated: Sequence[EventRow]) -> None:
    """LakeDivergedError where a repeated row differs from the lake's; LakeError where the lake lost it."""
    stored = {row.seq: row for row in held}
    for row in repeated:
        old = stored.get(row.seq)
        if old is None:
            raise LakeError(
                f"events has no row for seq {row.seq}, though it was committed: another program changed the table; "
                "write a new lake"
            )
        if (old.change, old.hash) != (row.change, row.hash):
            raise LakeDivergedError(
                f"at seq {row.seq} the lake holds block {old.number} 0x{old.hash.hex()} ({old.change:+d}) "
                f"and the stream has block {row.number} 0x{row.hash.hex()} ({row.change:+d}): "
                "start with restartFrom=sink and a new checkpoint, or write to another folder",
                seq=row.seq,
                expected=old.hash,
                found=row.hash,
            )


def need_next(location: str, last: int, new: Sequence[EventRow]) -> None:
    """LakeError where the first new row is not the one after the lake's last."""
    if new and new[0].seq > last + 1:
        raise LakeError(
            f"the lake {location} ends at seq {last} and the stream continues at {new[0].seq}: rows "
            "would be missing; start with a new checkpoint and restartFrom=sink"
        )


def events_table(rows: Sequence[EventRow]) -> pa.Table:
    """Rows as an Arrow table of the schema of ``events``."""
    return pa.table(list(_columns(rows, len(EVENTS_SCHEMA))), schema=EVENTS_SCHEMA)


def event_rows(table: pa.Table) -> list[EventRow]:
    """The rows of an Arrow table with the columns of ``events``, sorted by seq."""
    columns = []
    for field in EVENTS_SCHEMA:
        column = table.column(field.name).cast(field.type)
        columns.append((column.cast(pa.int64()) if field.type == TIMESTAMP else column).to_pylist())
    return sorted((EventRow(*values) for values in zip(*columns, strict=True)), key=lambda row: row.seq)


def last_changes(rows: Iterable[EventRow]) -> pa.Table:
    """The last change at each height, as ``canonical`` is merged with it. ``rows`` are sorted by seq.

    A MERGE refuses two source rows for one target row, and a height may change several times in a batch.
    """
    last = {row.number: row for row in rows}
    values = [(bucket(row.number), row.number, row.hash, row.seq, row.change) for row in last.values()]
    return pa.table(list(_columns(values, len(MERGE_SCHEMA))), schema=MERGE_SCHEMA)


def chain_before(rows: Sequence[EventRow], depth: int) -> list[EventRow]:
    """The last ``depth`` blocks of the ledger's final chain, oldest first.

    ``rows`` are the ledger's last rows; where they do not reach far enough back, fewer blocks are returned.
    """
    chain: dict[int, EventRow] = {}
    for row in rows:
        if row.change == ADDED:
            chain[row.number] = row
        elif row.number in chain and chain[row.number].hash == row.hash:
            del chain[row.number]
    return [chain[number] for number in sorted(chain)][-depth:]


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> Iterable[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
