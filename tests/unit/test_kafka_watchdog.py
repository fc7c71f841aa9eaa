"""When a partition counts as one that the Kafka client no longer fetches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from blocks import DEADLINE
from cardinal.errors import UnreachableError
from cardinal.transports.kafka.watchdog import PATIENCE_SECONDS, Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition

A, B = ("block", 0), ("block", 1)
LOOK = 10.0
POLL = 0.5


class Reading:
    """A reader that polls twice a second, of a broker with these ends; None: it is away."""

    def __init__(self, ends: Mapping[Partition, int]) -> None:
        self.now = 100.0
        self.positions = {A: 0, B: 0}
        self.paused: frozenset[Partition] = frozenset()
        self.ends: Mapping[Partition, int] | None = ends
        self.queries = 0
        self.watchdog = Watchdog(self._query)

    def _query(self) -> Mapping[Partition, int]:
        self.queries += 1
        if self.ends is None:
            raise UnreachableError("away", address="broker")
        return self.ends

    def poll(self, seconds: float, *, step: float = POLL, drained: bool = True) -> list[Partition]:
        """The partitions that are named within so many seconds of polls."""
        named: list[Partition] = []
        for _ in range(round(seconds / step)):
            self.now += step
            found = self.watchdog.look(self.now, self.positions, self.paused, drained=drained)
            self._wait_for_the_answer()
            self.watchdog.forget(found)
            named += found
        return named

    def _wait_for_the_answer(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while (request := self.watchdog._request) is not None and not request.done():
            assert time.monotonic() < deadline


def test_a_partition_that_the_broker_has_more_of_and_nothing_comes_of_is_named() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(PATIENCE_SECONDS + LOOK - 2 * POLL) == []
    assert reading.poll(LOOK) == [A]


def test_a_reader_that_has_read_everything_queries_now_and_then() -> None:
    reading = Reading({A: 0, B: 0})
    assert reading.poll(500) == []
    assert reading.queries <= 500 / LOOK


def test_time_without_polls_does_not_count() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(3_600, step=100) == []
    assert reading.poll(PATIENCE_SECONDS) == [A]


def test_while_polls_leave_fetched_records_their_partitions_may_wait_for_their_turn() -> None:
    reading = Reading({A: 5, B: 0})
    assert reading.poll(10 * PATIENCE_SECONDS, step=1.0, drained=False) == []
    assert reading.poll(PATIENCE_SECONDS + 2 * LOOK - 1, step=1.0) == [A]


def test_a_partition_that_is_paused_or_read_from_elsewhere_is_not_named() -> None:
    reading = Reading({A: 5, B: 5})
    reading.paused = frozenset({A})
    assert reading.poll(PATIENCE_SECONDS) == []
    reading.watchdog.forget([B])
    reading.paused = frozenset()
    assert reading.poll(PATIENCE_SECONDS) == []
    assert sorted(reading.poll(2 * LOOK)) == [A, B]


def test_while_no_broker_answers_nothing_is_named() -> None:
    reading = Reading({A: 5})
    assert reading.poll(PATIENCE_SECONDS) == []
    reading.ends = None
    assert reading.poll(LOOK + 1) == []
    reading.ends = {A: 5}
    assert reading.poll(PATIENCE_SECONDS) == []
    assert reading.poll(2 * LOOK) == [A]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, round(PATIENCE_SECONDS) - 1), min_size=2, max_size=8))
def test_a_partition_that_moves_within_the_time_is_never_named(steps: list[int]) -> None:
    reading = Reading({A: 1_000_000, B: 1_000_000})
    for seconds in steps:
        reading.positions = {tp: at + 1 for tp, at in reading.positions.items()}
        assert reading.poll(float(seconds)) == []
