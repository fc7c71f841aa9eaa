"""Three producers of which one lies: a consumer that requires two that agree."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import waiting
from blocks import Blocks, added, block, consumer, hash_of, line, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal.errors import CursorMismatchError
from cardinal.protocols.streams import Divergence, Quarantined
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Payload


HONEST = ("b", "c")


def lie(payload: Payload) -> Payload:
    return replace(payload, updates={**payload.updates, "a/1": b"a lie"})


def agreed(broker: MemoryBroker, **options: object) -> Consumer:
    return consumer(broker, **{"policy": "quorum:2", "producers": ("a", *HONEST)} | options)


def read_all(reading: Consumer) -> None:
    waiting.until(lambda: reading.caught_up, step=reading._step)
    reading._step()  # overdue blocks are reported once nothing of them is unread


@pytest.mark.parametrize("first", [True, False])
def test_no_wrong_block_is_delivered_and_every_lie_is_reported(broker: MemoryBroker, *, first: bool) -> None:
    truth = line(1, 40)
    lies = [lie(one) if one.number in (7, 23) else one for one in truth]
    for producer, blocks in [("a", lies), *((name, truth) for name in HONEST)][:: 1 if first else -1]:
        publish(broker, blocks, producer)
    events: list[object] = []
    with agreed(broker, on_event=events.append) as reading:
        updates = updates_until(reading, "40a")
        read_all(reading)
    assert steps(updates) == added(1, 40)
    delivered = [dict(one.updates) for update in updates for one in update.added]  # type: ignore[union-attr] # it is whole
    assert delivered == [dict(one.updates) for one in truth]
    assert {event.block for event in events if isinstance(event, Divergence)} == {hash_of("7a"), hash_of("23a")}


def test_producers_that_stay_behind_for_long_are_no_health(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second of them has stopped: nothing has a quorum any more."""
    monkeypatch.setattr("cardinal.consumer._END_SECONDS", 0.5)
    end = Blocks().reorg_threshold + 4
    publish(broker, line(1, 3), "b")
    publish(broker, line(1, end), "c")
    with agreed(broker, until="end") as reading:
        assert steps(reading) == added(1, 3)
        assert not reading.ready
        assert ConsumerMetrics(reading).waits_for().startswith(f"{end - 3} blocks of one producer have no quorum")
    assert f"ends before everything that was there is delivered: {end - 3} blocks have no quorum" in caplog.text
    publish(broker, line(1, end)[3:], "b")
    with agreed(broker, until="end") as reading:
        assert steps(reading) == added(1, end)
        assert reading.without_quorum == 0
        assert reading.ready


def test_before_the_first_quorum_a_consumer_is_not_ready(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.consumer._END_SECONDS", 0.5)
    publish(broker, line(1, 3), "b")
    with agreed(broker, until="end") as reading:
        assert not [*reading]
        assert (reading.without_quorum, reading.ready) == (3, False)


def test_a_block_that_only_one_producer_sent_is_not_delivered_until_another_agrees(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5), "b")
    publish(broker, line(1, 9), "c")
    with agreed(broker) as reading:
        assert steps(updates_until(reading, "5a"))[-1] == "+5a"
        assert "1 of 2" in reading.explain(hash_of("7a")).reason
        publish(broker, line(6, 9), "a")
        assert steps(updates_until(reading, "9a")) == ["+6a", "+7a", "+8a", "+9a"]


def test_it_resumes_from_its_cursor_and_no_other_policy_does(broker: MemoryBroker) -> None:
    for producer in HONEST:
        publish(broker, line(1, 30), producer)
    with agreed(broker) as reading:
        cursor = next(update for update in reading if update.added[-1].number >= 11).cursor
    reached = cursor.head
    assert reached is not None
    for producer in HONEST:
        publish(broker, [*line(30, 33, "b", "29a", weight=2)], producer)
    with agreed(broker, start=str(cursor)) as reading:
        last = updates_until(reading, "33b")[-1]
    assert last.seq - cursor.seq in {33 - reached.number, 35 - reached.number}
    for other in ({"policy": "first"}, {"policy": "quorum:1"}, {"producers": HONEST}):
        with pytest.raises(CursorMismatchError, match="policy"):
            agreed(broker, start=str(cursor), **other)


def test_producers_that_are_not_selected_do_not_count(broker: MemoryBroker) -> None:
    publish(broker, [block("1a", "0a")], "stranger")
    publish(broker, [block("1a", "0a")], "b")
    events: list[object] = []
    with agreed(broker, on_event=events.append) as reading:
        read_all(reading)
        assert reading.head is None
        publish(broker, [block("1a", "0a")], "c")
        assert steps(updates_until(reading, "1a")) == ["+1a"]
    assert [type(event).__name__ for event in events].count("Untrusted") == 1


@contextlib.contextmanager
def lied_about(broker: MemoryBroker, **options: object) -> Iterator[Consumer]:
    """All three sent blocks to 5, which are delivered; of 60 blocks a and b differ at the seventh, and c lags."""
    truth = line(1, 60)
    for producer in ("a", *HONEST):
        publish(broker, truth[:5], producer)
    with agreed(broker, **options) as reading:
        assert steps(updates_until(reading, "5a"))[-1] == "+5a"
        publish(broker, [lie(one) if one.number == 7 else one for one in truth[5:]], "a")
        publish(broker, truth[5:], "b")
        yield reading


def test_a_block_is_skipped_when_the_producer_that_would_decide_lags_by_more_than_a_threshold(
    broker: MemoryBroker,
) -> None:
    events: list[object] = []
    with lied_about(broker, on_event=events.append) as reading:
        updates = updates_until(reading, "60a")
        publish(broker, line(6, 60), "c")
        read_all(reading)
    assert steps(updates) == [f"+{'?' if number == 7 else ''}{number}a" for number in range(6, 61)]
    assert hash_of("7a") in {event.block for event in events if isinstance(event, Quarantined)}


def test_with_halt_it_waits_for_that_producer_however_far_it_lags(broker: MemoryBroker) -> None:
    with lied_about(broker, on_incomplete="halt") as reading:
        assert steps(updates_until(reading, "6a")) == ["+6a"]
        publish(broker, line(61, 99), "a")
        publish(broker, line(61, 99), "b")
        waiting.until(lambda: reading.explain(hash_of("99a")).state != "unknown", step=reading._step)
        assert "'c' supplied nothing" in reading.explain(hash_of("7a")).reason
        publish(broker, line(6, 99), "c")
        updates = updates_until(reading, "99a")
    assert steps(updates) == added(7, 99)
    assert dict(updates[0].added[0].updates) == dict(block("7a", "6a").updates)  # type: ignore[union-attr]
