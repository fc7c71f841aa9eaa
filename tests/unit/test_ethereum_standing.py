"""Which of several nodes is followed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cardinal_connectors.ethereum.nodes.health import PoolHealth


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def standings(heads: Sequence[int | None], clock: Clock | None = None) -> PoolHealth:
    made = PoolHealth(len(heads), behind=3, rest=30.0, clock=clock or Clock())
    for place, head in enumerate(heads):
        made.of[place].head = head
    return made


def test_who_is_followed_stays_while_it_is_not_far_behind() -> None:
    assert standings([100, 103, 101]).best(active=0) == 0
    assert standings([100, 103, 101]).best(active=2) == 2


def test_node_that_is_far_behind_is_left_for_one_that_is_not() -> None:
    assert standings([100, 104, 90]).best(active=0) == 1
    assert standings([104, 100, 90]).best(active=2) == 0


def test_node_that_failed_rests_and_its_head_counts_for_nothing() -> None:
    clock = Clock()
    nodes = standings([100, 10_000_000, 99], clock)
    nodes.failed(1)
    assert nodes.best(active=0) == 0
    assert nodes.lag(0) == 0
    clock.now += 30.0
    assert nodes.best(active=0) == 1


def test_where_all_failed_the_one_whose_failure_is_longest_ago_is_tried() -> None:
    clock = Clock()
    nodes = standings([5, 5, 5], clock)
    for place in (1, 2, 0):
        nodes.failed(place)
        clock.now += 1
    assert nodes.best(active=0) == 1


def test_node_of_another_chain_is_never_followed() -> None:
    nodes = standings([5, 500])
    nodes.of[1].wrong = True
    assert nodes.best(active=0) == 0
    assert nodes.lag(0) == 0
    nodes.of[0].wrong = True
    assert nodes.best(active=0) is None


@given(heads=st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=5), data=st.data())
def test_followed_node_is_in_order_and_close_where_any_is_and_choosing_twice_changes_nothing(
    heads: list[int | None], data: st.DataObject
) -> None:
    nodes = standings(heads)
    failed = data.draw(st.sets(st.integers(0, len(heads) - 1)))
    for place in failed:
        nodes.failed(place)
    best = nodes.best(data.draw(st.integers(0, len(heads) - 1)))
    assert best is not None
    assert nodes.best(best) == best
    if len(failed) < len(heads):
        assert best not in failed
        known = [head for place, head in enumerate(heads) if place not in failed and head is not None]
        head = heads[best]
        assert head is None or head >= max(known) - 3
