"""Seqs as runs hold exactly the seqs that they were made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cardinal_spark.lake.seqs import SeqRuns


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(-5, 70)))
def test_runs_hold_what_they_were_made_of(seqs: set[int], asked: list[int]) -> None:
    runs = SeqRuns.of(np.array(sorted(seqs, key=lambda seq: -seq), np.int64))
    assert runs.holds(np.array(asked, np.int64)).tolist() == [seq in seqs for seq in asked]
    assert len(runs.firsts) == len({seq for seq in seqs if seq - 1 not in seqs})
