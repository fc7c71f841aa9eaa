"""A block that lacks messages: whoever may have them is asked before it is passed over."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, messages, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams import Incomplete, Routed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cardinal.protocols.streams.events import Explanation
    from cardinal.protocols.streams.types import Partition


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """One partition a topic, and the blocks to 4."""
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 4))
        yield broker


def consumer(broker: MemoryBroker, told: Callable[[object], None], **options: object) -> Consumer:
    return Consumer(broker.url, Blocks(), on_event=told, idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def send(broker: MemoryBroker, *routed: Routed) -> None:
    broker.sink(Blocks(), producer_id="one").send(routed, None).result(DEADLINE)


def chain(first: int, last: int) -> list[str]:
    return [f"+{number}a" for number in range(first, last + 1)]


class Late:
    """Watermarks for overdue blocks that come some steps after they were asked for, as a broker's do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
        self._late = self._left = late
        monkeypatch.setattr(Reader, "answered_ends", lambda _reader: self.answered())

    def answered(self) -> dict[Partition, int] | None:
        if self._left:
            self._left -= 1
            return None
        self._left = self._late
        return {tp: end for tp, (_, end) in self._reader.watermarks.query().items()}

    def of(self, reading: Consumer) -> None:
        self._reader = reading._reader


def lossy(broker: MemoryBroker) -> list[Routed]:
    """A chain from 5 to 60, all of it there at once, whose block 5 lacks a message; returns what is lost."""
    *rest, lost, batch = messages(block("5a", "4a"))
    send(broker, *rest, batch, *(one for payload in line(6, 60) for one in messages(payload)))
    return [lost]


@pytest.mark.parametrize("late", [0, 1, 5])
def test_a_hook_is_asked_before_a_block_is_given_up(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    lost: list[Routed] = []

    def heal(lacking: Explanation) -> list[Routed]:
        return lost if lacking.block == hash_of("5a") else []

    watermarks = Late(monkeypatch, late)
    with consumer(broker, lambda _event: None, heal=heal) as reading:
        watermarks.of(reading)
        until(reading, "4a")
        lost += lossy(broker)
        assert steps(until(reading, "60a")) == chain(5, 60)


@pytest.mark.parametrize("late", [0, 1, 5])
def test_a_handler_may_supply_what_a_block_lacks_before_it_is_given_up(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    lost: list[Routed] = []

    def told(event: object) -> None:
        if isinstance(event, Incomplete) and event.explanation.block == hash_of("5a"):
            reading.supply(lost)

    watermarks = Late(monkeypatch, late)
    with consumer(broker, told) as reading:
        watermarks.of(reading)
        until(reading, "4a")
        lost += lossy(broker)
        assert steps(until(reading, "60a")) == chain(5, 60)
