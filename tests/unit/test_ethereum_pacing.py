"""What a node bears, learned; and calls a second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal_connectors.ethereum.rpc.rate import FORGETS, STEPS, BatchSize, RateLimit


def drive(bearing: BatchSize, bears: int, requests: int) -> list[int]:
    """The sizes of requests to a node that bears so many calls; which of them were refused shows in the size."""
    sizes = []
    for _ in range(requests):
        sizes.append(bearing.size)
        if bearing.size > bears:
            bearing.refused(bearing.size)
        else:
            bearing.succeeded(bearing.size)
    return sizes


@given(most=st.integers(1, 1000), bears=st.integers(1, 1200))
def test_size_settles_near_what_is_borne_and_is_rarely_refused(most: int, bears: int) -> None:
    bearing = BatchSize(most)
    sizes = drive(bearing, bears, 3000)
    assert all(1 <= size <= most for size in sizes)
    settled = sizes[1500:]
    refused = sum(size > bears for size in settled)
    assert refused <= 1500 // STEPS // 4
    assert sum(settled) >= len(settled) * min(most, bears) * 0.45


def test_size_that_was_refused_in_a_busy_hour_is_reached_again_after_it() -> None:
    bearing = BatchSize(500)
    drive(bearing, 20, 200)
    assert bearing.size <= 20
    drive(bearing, 500, 20 * STEPS + FORGETS * 2)
    assert bearing.size == 500


def test_several_requests_under_way_that_are_refused_do_not_cut_twice() -> None:
    bearing = BatchSize(100)
    for _ in range(4):
        bearing.refused(100)
    assert bearing.size == 50


@given(rate=st.integers(1, 200), calls=st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_calls_keep_to_the_rate_but_for_one_seconds_worth(rate: int, calls: list[int]) -> None:
    now = [100.0]
    throttle = RateLimit(rate, lambda: now[0])
    made = 0
    for count in calls:
        now[0] += throttle.wait(count)
        made += count
        assert made <= rate * (now[0] - 100.0) + rate + 1e-6 * made
    assert now[0] - 100.0 <= made / rate


def test_no_rate_never_waits() -> None:
    assert RateLimit(None, lambda: 0.0).wait(10_000) == 0.0
