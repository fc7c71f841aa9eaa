"""Seqs that ``canonical`` names, as runs.

A chain's seqs are dense except at reorgs, so millions of them are a few runs, small enough to be sent to every task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as pads

if TYPE_CHECKING:
    from collections.abc import Iterator

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SeqRuns:
    """Sorted, disjoint runs of seqs; run i is ``firsts[i]`` to ``lasts[i]``, both included."""

    firsts: Int64s
    lasts: Int64s

    @classmethod
    def of(cls, seqs: Int64s) -> SeqRuns:
        """The runs of distinct seqs in any order."""
        if not len(seqs):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        ordered = np.sort(seqs)
        breaks = np.flatnonzero(np.diff(ordered) != 1)
        firsts = ordered[np.concatenate(([0], breaks + 1))]
        lasts = ordered[np.concatenate((breaks, [len(ordered) - 1]))]
        return cls(firsts, lasts)

    def holds(self, seqs: Int64s) -> npt.NDArray[np.bool_]:
        """A mask of the seqs that are in a run."""
        if not len(self.firsts):
            return np.zeros(len(seqs), np.bool_)
        run = np.searchsorted(self.firsts, seqs, side="right") - 1
        return (run >= 0) & (seqs <= self.lasts[run])

    def on(self, column: str) -> pads.Expression:
        """The runs as a filter on a column: between the ends, and not in a gap, since gaps are few and short."""
        seq = pads.field(column)
        if not len(self.firsts):
            return pads.scalar(False)  # noqa: FBT003 - pyarrow's filter without rows
        ends = (seq >= int(self.firsts[0])) & (seq <= int(self.lasts[-1]))
        gaps = [np.arange(last + 1, first) for last, first in zip(self.lasts[:-1], self.firsts[1:], strict=True)]
        return ends & ~seq.isin(pa.array(np.concatenate(gaps))) if gaps else ends

    def only(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of batches whose ``_seq`` is in a run; empty batches are left out."""
        for batch in batches:
            held = self.holds(batch.column("_seq").to_numpy())
            if held.all():  # almost always: reorgs are rare, and a filter copies
                if batch.num_rows:
                    yield batch
            elif held.any():
                yield batch.filter(pa.array(held))
