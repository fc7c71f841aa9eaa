"""Reorgs deeper than the threshold, which come through channels of their own."""

from __future__ import annotations

import pytest

from blocks import added, consumer, deep, hash_of, line, publish, send_channel, steps, updates_until
from cardinal.protocols.streams import ReorgBegan, ReorgEnded
from cardinal_devkit.testing.memory import MemoryBroker

BRANCH = line(21, 62, "b", "20a", weight=5)


def test_a_deep_reorg_comes_as_one_update(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    events: list[object] = []
    with consumer(broker, on_event=events.append) as reading:
        before = updates_until(reading, "60a")
        deep(broker, "20a", BRANCH)
        (switch,) = updates_until(reading, "62b")
        publish(broker, line(63, 64, "b", weight=5))
        assert steps(updates_until(reading, "64b")) == ["+63b", "+64b"]
    assert steps(before) == added(1, 60)
    removed = [f"-{'?' if number <= 43 else ''}{number}a" for number in range(60, 20, -1)]
    assert steps([switch]) == [*removed, *added(21, 62, "b")]
    assert {type(event) for event in events} >= {ReorgBegan, ReorgEnded}


def test_the_end_of_a_stream_lies_behind_a_channel_that_was_there(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    with consumer(broker, until="end") as reading:
        *_, last = reading
    deep(broker, "20a", BRANCH)
    with consumer(broker, until="end", start=last.cursor) as reading:
        assert [update.added[-1].hash for update in reading] == [hash_of("62b")]


@pytest.mark.parametrize("cut", [5, 60, 120])
def test_a_consumer_killed_in_the_middle_of_a_channel_resumes_it(broker: MemoryBroker, cut: int) -> None:
    publish(broker, line(1, 60))
    with consumer(broker) as reading:
        updates_until(reading, "60a")
        rest = deep(broker, "20a", BRANCH, cut=cut)
        publish(broker, line(61, 61))
        (update,) = updates_until(reading, "61a")
    with consumer(broker, start=str(update.cursor)) as reading:
        send_channel(broker, rest)
        (switch,) = updates_until(reading, "62b")
    assert switch.first_seq == update.seq + 1
    assert steps([switch])[:2] == ["-61a", "-60a"]
    assert steps([switch])[41:] == added(21, 62, "b")
