"""Three producers of which one lies: a consumer that asks for two that agree."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.errors import ConfigurationError, CursorMismatchError
from cardinal.protocols.streams import Divergence, Incomplete, Quarantined, Surplus
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cardinal.protocols.streams import Payload

HONEST = ("b", "c")
LIES: dict[str, Callable[[Payload], Payload]] = {
    "value": lambda one: replace(one, updates={**one.updates, "a/1": b"a lie"}),
    "weight": lambda one: replace(one, weight=one.weight + 1000),
    "parent": lambda one: replace(one, parent=hash_of("1a")),
    "number": lambda one: replace(one, number=one.number + 1),
    "inside": lambda one: replace(one, updates={**one.updates, "inside": b"a lie"}),
    "more": lambda one: replace(one, updates={**one.updates, "a/9": b"a lie"}),
    "less": lambda one: replace(one, updates={"a/1": one.updates["a/1"]}),
    "delete": lambda one: replace(one, deletes=frozenset({"b/1"}), updates={"a/1": one.updates["a/1"]}),
}


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


def consumer(broker: MemoryBroker, **options: object) -> Consumer:
    options = {"policy": "quorum:2", "producers": ("a", *HONEST), **options}
    return Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def read_all(reading: Consumer) -> None:
    deadline = time.monotonic() + DEADLINE
    while not reading.caught_up:
        assert time.monotonic() < deadline
        reading._step()
    reading._step()  # what was overdue is told when it is known that nothing of it is left


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("first", [True, False])
def test_no_wrong_block_is_delivered_and_every_lie_is_reported(broker: MemoryBroker, lie: str, *, first: bool) -> None:
    truth = line(1, 40)
    lies = [LIES[lie](one) if one.number in (7, 23) else one for one in truth]
    for producer, blocks in [("a", lies), *((name, truth) for name in HONEST)][:: 1 if first else -1]:
        publish(broker, blocks, producer)
    events: list[object] = []
    with consumer(broker, on_event=events.append) as reading:
        updates = until(reading, "40a")
        read_all(reading)
    assert steps(updates) == [f"+{number}a" for number in range(1, 41)]
    for update in updates:
        for one in update.added:
            told = truth[one.number - 1]
            assert (one.weight, one.parent, dict(one.updates), one.deletes) == (  # type: ignore[union-attr]
                told.weight,
                told.parent,
                dict(told.updates),
                told.deletes,
            )
    blamed = {event.block for event in events if isinstance(event, Divergence | Surplus)}
    blamed |= {event.explanation.block for event in events if isinstance(event, Incomplete)}
    assert blamed >= {hash_of("7a"), hash_of("23a")}


def test_a_block_that_only_one_producer_sent_is_not_delivered_until_another_agrees(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5), "b")
    publish(broker, line(1, 9), "c")
    with consumer(broker) as reading:
        assert steps(until(reading, "5a"))[-1] == "+5a"
        assert "1 of 2" in reading.explain(hash_of("7a")).reason
        publish(broker, line(6, 9), "a")
        assert steps(until(reading, "9a")) == ["+6a", "+7a", "+8a", "+9a"]


def test_it_resumes_from_its_cursor_and_no_other_policy_does(broker: MemoryBroker) -> None:
    for producer in HONEST:
        publish(broker, line(1, 30), producer)
    with consumer(broker) as reading:
        cursor = next(update for update in reading if update.added[-1].number >= 11).cursor
    reached = cursor.head
    assert reached is not None
    for producer in HONEST:
        publish(broker, [*line(30, 33, "b", "29a", weight=2)], producer)
    with consumer(broker, start=str(cursor)) as reading:
        last = until(reading, "33b")[-1]
    assert last.seq - cursor.seq in {33 - reached.number, 35 - reached.number}
    for other in ({"policy": "first"}, {"policy": "quorum:1"}, {"producers": HONEST}):
        with pytest.raises(CursorMismatchError, match="policy"):
            consumer(broker, start=str(cursor), **other)


def test_producers_that_are_not_asked_for_do_not_count(broker: MemoryBroker) -> None:
    publish(broker, [block("1a", "0a")], "stranger")
    publish(broker, [block("1a", "0a")], "b")
    events: list[object] = []
    with consumer(broker, on_event=events.append) as reading:
        read_all(reading)
        assert reading.head is None
        publish(broker, [block("1a", "0a")], "c")
        assert steps(until(reading, "1a")) == ["+1a"]
    assert [type(event).__name__ for event in events].count("Untrusted") == 1


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"policy": "quorum:4"}, "policy"),
        ({"policy": "most"}, "policy"),
        ({"policy": "quorum:0"}, "policy"),
        ({"producers": ("a", "a")}, "producers"),
        ({"on_incomplete": "wait"}, "on_incomplete"),
        ({"on_finality_violation": "ask"}, "on_finality_violation"),
        ({"content": "ranges"}, "content"),
        ({"max_update": 0}, "max_update"),
    ],
)
def test_what_cannot_work_is_named(broker: MemoryBroker, options: dict[str, object], setting: str) -> None:
    publish(broker, line(1, 1))
    with pytest.raises(ConfigurationError) as caught:
        consumer(broker, **options)
    assert caught.value.setting == setting


@contextlib.contextmanager
def lied_about(broker: MemoryBroker, **options: object) -> Iterator[Consumer]:
    """All three sent blocks to 5, which are delivered; of 60 blocks a and b differ at the seventh, and c lags."""
    truth = line(1, 60)
    for producer in ("a", *HONEST):
        publish(broker, truth[:5], producer)
    with consumer(broker, **options) as reading:
        assert steps(until(reading, "5a"))[-1] == "+5a"
        publish(broker, [LIES["value"](one) if one.number == 7 else one for one in truth[5:]], "a")
        publish(broker, truth[5:], "b")
        yield reading


def test_a_block_is_passed_over_when_the_producer_that_would_decide_lags_by_more_than_a_threshold(
    broker: MemoryBroker,
) -> None:
    events: list[object] = []
    with lied_about(broker, on_event=events.append) as reading:
        updates = until(reading, "60a")
        publish(broker, line(6, 60), "c")
        read_all(reading)
    assert steps(updates) == [f"+{'?' if number == 7 else ''}{number}a" for number in range(6, 61)]
    assert hash_of("7a") in {event.block for event in events if isinstance(event, Quarantined)}


def test_told_to_halt_it_waits_for_that_producer_however_far_it_lags(broker: MemoryBroker) -> None:
    with lied_about(broker, on_incomplete="halt") as reading:
        assert steps(until(reading, "6a")) == ["+6a"]
        publish(broker, line(61, 99), "a")
        publish(broker, line(61, 99), "b")
        deadline = time.monotonic() + DEADLINE
        while reading.explain(hash_of("99a")).state == "unknown":
            assert time.monotonic() < deadline
            reading._step()
        assert "'c' supplied nothing" in reading.explain(hash_of("7a")).reason
        publish(broker, line(6, 99), "c")
        updates = until(reading, "99a")
    assert steps(updates) == [f"+{number}a" for number in range(7, 100)]
    assert dict(updates[0].added[0].updates) == dict(block("7a", "6a").updates)  # type: ignore[union-attr]
