"""A handler of events may supply messages and may raise: what is told and delivered, and in which order."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, line, messages, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.protocols.streams import Payload, Rejected, Routed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """One partition a topic, and the blocks to 4."""
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 4))
        yield broker


def consumer(broker: MemoryBroker, told: Callable[[object], None], **options: object) -> Consumer:
    return Consumer(broker.url, Blocks(), on_event=told, idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def spoilt(payload: Payload) -> list[Routed]:
    """A block whose Batch does not decode."""
    *content, batch = messages(payload)
    return [*content, Routed(batch.topic, batch.key, b"\xff")]


def send(broker: MemoryBroker, *routed: Routed) -> None:
    broker.sink(Blocks(), producer_id="one").send(routed, None).result(DEADLINE)


class Alerting:
    """A handler whose service is away for the first rejected records; notes them."""

    def __init__(self, failures: int = 1) -> None:
        self.told: list[Rejected] = []
        self._failures = failures

    def __call__(self, event: object) -> None:
        if isinstance(event, Rejected):
            self.told.append(event)
            if len(self.told) <= self._failures:
                raise ConnectionError("alerting is away")


def chain(first: int, last: int) -> list[str]:
    return [f"+{number}a" for number in range(first, last + 1)]


# --- order -------------------------------------------------------------------------------------------------


def test_what_a_handler_supplies_comes_after_what_came_before(broker: MemoryBroker) -> None:
    """The Batch of 6 does not decode, and that of 5 comes after it in the same read: the handler supplies 6."""
    six = block("6a", "5a")

    def told(event: object) -> None:
        if isinstance(event, Rejected):
            reading.supply(messages(six))

    with consumer(broker, told) as reading:
        until(reading, "4a")
        send(broker, *spoilt(six), *messages(block("5a", "4a")))
        updates = until(reading, "6a")
    assert steps(updates) == ["+5a", "+6a"]
    assert [update.seq for update in updates] == [5, 6]


def test_a_handler_is_not_called_inside_itself(broker: MemoryBroker) -> None:
    """What it supplies is rejected in its turn, and told when it has returned."""
    bad = [Routed("a", b"\x2a" + bytes([number]) * 32, b"") for number in range(3)]
    inside = 0
    depths: list[int] = []

    def told(event: object) -> None:
        nonlocal inside
        if isinstance(event, Rejected):
            inside += 1
            depths.append(inside)
            if len(depths) < len(bad):
                reading.supply([bad[len(depths)]])
            inside -= 1

    with consumer(broker, told) as reading:
        until(reading, "4a")
        reading.supply([bad[0]])
        assert depths == [1, 1, 1], "what is supplied between two steps is told at once"


# --- a handler that raises ---------------------------------------------------------------------------------


def test_a_handler_that_raises_loses_nothing(broker: MemoryBroker) -> None:
    told = Alerting()
    with consumer(broker, told) as reading:
        until(reading, "4a")
        send(broker, *spoilt(block("5x", "4a")), *(one for payload in line(5, 7) for one in messages(payload)))
        with pytest.raises(ConnectionError):
            next(iter(reading))
        assert not reading.ready, "5a to 7a are read, and not delivered"
        updates = until(reading, "7a")
        assert [update.seq for update in updates] == [5, 6, 7]
        assert steps(updates) == chain(5, 7)
    assert len(told.told) == 1


def test_every_event_is_told_once_and_before_the_updates_that_follow_it(broker: MemoryBroker) -> None:
    """Two records of one read are no messages, and the handler raises at both."""
    told = Alerting(failures=2)
    with consumer(broker, told) as reading:
        until(reading, "4a")
        bad = [Routed("block", b"\x2a" + bytes([number]) * 32, b"") for number in (1, 2)]
        send(broker, *bad, *(one for payload in line(5, 6) for one in messages(payload)))
        for _ in bad:
            with pytest.raises(ConnectionError):
                next(iter(reading))
        assert [event.key for event in told.told] == [one.key for one in bad]
        assert steps(until(reading, "6a")) == chain(5, 6)
    assert len(told.told) == 2


def test_a_record_that_is_passed_over_may_be_told_to_a_handler_that_raises(broker: MemoryBroker) -> None:
    told = Alerting()
    place = ("block", 0, broker.source(["block"]).watermarks()["block", 0][1])
    with consumer(broker, told, skip=[place]) as reading:
        until(reading, "4a")
        send(broker, messages(block("5x", "4a"))[-1], *(one for payload in line(5, 7) for one in messages(payload)))
        with pytest.raises(ConnectionError):
            next(iter(reading))
        assert steps(until(reading, "7a")) == chain(5, 7)
    assert [event.position for event in told.told] == [place]
