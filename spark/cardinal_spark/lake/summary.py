"""Size of a lake: rows, files and bytes of each table, and both ends of its chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from cardinal_spark.errors import LakeError

from .location import mapped
from .tables import CANONICAL, CURRENT, EVENTS

if TYPE_CHECKING:
    from datetime import datetime

    from .query import Snapshot


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of a stored table, with the rows of blocks that left the chain.

    ``rows`` is None where another engine wrote a file without its count.
    """

    name: str
    rows: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """A block at an end of the chain. ``time``: the block's own, None without its header."""

    number: int
    hash: bytes
    time: datetime | None
    published: datetime | None


def table_sizes(snapshot: Snapshot) -> list[TableSize]:
    """The size of every stored table at its newest version."""
    return [_size(snapshot, name) for name in snapshot.tables if not name.startswith(CURRENT)]


def chain_ends(snapshot: Snapshot) -> tuple[ChainEnd, ChainEnd]:
    """The oldest block of the chain, and its head."""
    chain = snapshot.dataset(CANONICAL)
    with mapped(f"read canonical of the lake {snapshot.location.root}"):
        lowest = min(
            (
                pc.min(batch.column("number")).as_py()
                for batch in chain.to_batches(columns=["number"])
                if batch.num_rows
            ),
            default=snapshot.state.number,
        )
        first = chain.to_table(columns=["seq"], filter=pads.field("number") == lowest).column("seq")
        last = chain.to_table(columns=["seq"], filter=pads.field("number") == snapshot.state.number).column("seq")
    return _end(snapshot, first), _end(snapshot, last)


def _end(snapshot: Snapshot, seqs: pa.ChunkedArray) -> ChainEnd:
    columns = ["number", "hash", "block_time", "published_at"]
    with mapped(f"read events of the lake {snapshot.location.root}"):
        rows = snapshot.dataset(EVENTS).to_table(columns=columns, filter=pads.field("seq").isin(seqs)).to_pylist()
    if not rows:
        raise LakeError(f"the lake {snapshot.location.root} lacks rows of its chain: run `cardinal lake check` on it")
    return ChainEnd(*rows[0].values())


def _size(snapshot: Snapshot, name: str) -> TableSize:
    with mapped(f"open {name} of the lake {snapshot.location.root}"):
        actions = pa.table(snapshot.location.open(name).get_add_actions(flatten=True))
        counts = actions.column("num_records").to_pylist()
        rows = None if None in counts else sum(counts)
        return TableSize(name, rows, actions.num_rows, sum(actions.column("size_bytes").to_pylist()))
