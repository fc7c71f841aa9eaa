"""When a partition counts as one that the Kafka client does not read any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import Partition
from cardinal.transports.kafka.stalled import Stalled

A, B = ("block", 0), ("block", 1)
PATIENCE = 10.0
ANSWER = 30.0
LONG = ANSWER + PATIENCE
"""From the look that finds a partition behind on."""
POLL = 0.2


class Reading:
    """Somebody who polls every fifth of a second; the broker answers at once what ``ends`` says."""

    def __init__(self, ends: Callable[[], Mapping[Partition, int]]) -> None:
        self.now = 100.0
        self.positions = {A: 0, B: 0}
        self.paused: frozenset[Partition] = frozenset()
        self.asked = 0

        def ask() -> Future[Mapping[Partition, int]]:
            self.asked += 1
            future: Future[Mapping[Partition, int]] = Future()
            try:
                future.set_result(ends())
            except UnreachableError as error:
                future.set_exception(error)
            return future

        self.stalled = Stalled(ask, ANSWER)

    def poll(self, seconds: float, *, drained: bool = True, step: float = POLL) -> list[Partition]:
        """What is told within so many seconds of polls."""
        told: list[Partition] = []
        for _ in range(round(seconds / step)):
            self.now += step
            found = self.stalled.look(self.now, self.positions, self.paused, drained=drained)
            self.stalled.moved(found)
            told += found
        return told


def test_partition_of_which_the_broker_has_more_and_nothing_comes_is_told_after_two_looks() -> None:
    reading = Reading(lambda: {A: 5, B: 0})
    assert reading.poll(PATIENCE + LONG - 1) == []
    assert reading.poll(3) == [A]


def test_answer_that_is_long_on_its_way_is_waited_for() -> None:
    """Over a slow line: every half minute one that holds something of all partitions, and nothing between."""
    reading = Reading(lambda: {A: 1_000_000, B: 1_000_000})
    for _ in range(20):
        assert reading.poll(ANSWER - 1) == []
        reading.positions = {where: at + 1_000 for where, at in reading.positions.items()}


def test_who_has_read_everything_is_never_told_of_and_asked_about_now_and_then() -> None:
    reading = Reading(lambda: {A: 0, B: 0})
    assert reading.poll(1_000) == []
    assert reading.asked <= 1_000 / PATIENCE


def test_where_polls_bring_records_of_others_all_the_time_it_takes_three_times_as_long() -> None:
    reading = Reading(lambda: {A: 5, B: 0})
    assert reading.poll(3 * LONG, drained=False) == []
    assert reading.poll(2 * PATIENCE, drained=False) == [A]


def test_time_in_which_nobody_polls_does_not_count() -> None:
    reading = Reading(lambda: {A: 5, B: 0})
    assert reading.poll(3_600, step=100) == []
    assert reading.poll(2 * PATIENCE) == [A]


def test_what_is_paused_or_read_from_elsewhere_is_not_told_of() -> None:
    reading = Reading(lambda: {A: 5, B: 5})
    reading.paused = frozenset({A})
    assert reading.poll(LONG) == []
    reading.stalled.moved([B])
    assert reading.poll(PATIENCE + 1) == []
    reading.paused = frozenset()
    assert reading.poll(LONG - PATIENCE) == []
    assert reading.poll(PATIENCE) == [B]
    assert reading.poll(PATIENCE) == [A]


def test_where_no_broker_answers_all_begins_anew() -> None:
    away = [False]

    def ends() -> Mapping[Partition, int]:
        if away[0]:
            raise UnreachableError("away", address="broker")
        return {A: 5}

    reading = Reading(ends)
    assert reading.poll(LONG) == []
    away[0] = True
    assert reading.poll(PATIENCE) == []
    away[0] = False
    assert reading.poll(LONG) == []
    assert reading.poll(PATIENCE + 1) == [A]


@given(st.lists(st.tuples(st.integers(1, round(LONG) - 1), st.booleans()), min_size=5, max_size=40))
def test_partition_that_moves_before_it_is_too_long_is_never_told_of(steps: list[tuple[int, bool]]) -> None:
    reading = Reading(lambda: {A: 1_000_000, B: 1_000_000})
    for seconds, drained in steps:
        reading.positions = {where: at + 1 for where, at in reading.positions.items()}
        assert reading.poll(float(seconds), drained=drained) == []
