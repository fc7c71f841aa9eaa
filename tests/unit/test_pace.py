from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams.types import Record
from cardinal.transports.pace import Pace

A, B, C = ("t", 0), ("t", 1), ("t", 2)


def _pace(**times: int) -> Pace:
    pace = Pace(window_ms=1000)
    pace.seen([Record("t", "ABC".index(name), 0, b"", b"", time) for name, time in times.items()] * 16)
    return pace


def test_who_is_more_than_a_window_ahead_of_the_slowest_is_paused() -> None:
    assert _pace(A=0, B=1000, C=1001).ahead({A, B, C}) == {C}


def test_who_is_at_its_end_holds_nobody_up() -> None:
    assert _pace(A=0, B=5000, C=5000).ahead({B, C}) == frozenset()


def test_a_paused_partition_goes_on_only_when_it_is_near() -> None:
    pace = _pace(A=0, B=1500, C=0)
    pace.paused = pace.ahead({A, B, C})
    assert pace.paused == {B}
    pace.seen([Record("t", 0, 0, b"", b"", 800), Record("t", 2, 0, b"", b"", 800)] * 16)
    assert pace.ahead({A, B, C}) == {B}
    pace.seen([Record("t", 0, 0, b"", b"", 1000), Record("t", 2, 0, b"", b"", 1000)] * 16)
    assert pace.ahead({A, B, C}) == frozenset()


def test_a_partition_that_has_said_nothing_yet_counts_as_the_slowest() -> None:
    assert _pace(A=5000, B=5000).ahead({A, B, C}) == {A, B}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10_000)), max_size=60),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_whatever_the_times_somebody_who_has_something_is_read(times: list[tuple[int, int]], left: list[int]) -> None:
    pace = Pace(window_ms=1000)
    behind = {("t", number) for number, rest in enumerate(left) if rest}
    for partition, time in times:
        pace.seen([Record("t", partition, 0, b"", b"", time)])
        pace.paused = pace.ahead(behind)
        assert pace.paused < behind or not behind
