"""Partitions that are added while somebody reads, found by a source that asks beside the reading."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import TopicError, UnreachableError
from cardinal.testing.memory import MemoryBroker
from cardinal.transports.added import Added
from cardinal.transports.later import now as answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Record

Marks = dict[tuple[str, int], tuple[int, int]]


class Asking:
    """One topic, whose answers come when the test gives them."""

    def __init__(self, broker: MemoryBroker) -> None:
        broker.create("t", partitions=1)
        self._source = broker.source(["t"])
        self.asked: list[Future[tuple[Partition, ...]]] = []

    def at_end(self) -> frozenset[Partition]:
        raise NotImplementedError

    def look_later(self) -> Future[tuple[Partition, ...]]:
        self.asked.append(Future())
        return self.asked[-1]

    def watermarks_later(self, *, look: bool) -> Future[Marks]:
        assert not look, "of several places one that is away would fail it"
        return answered(self._source.watermarks)

    def partitions(self) -> tuple[Partition, ...]:
        return self._source.partitions()

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self._source.assign(positions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        raise NotImplementedError

    def poll(self, limit: int, timeout: float) -> list[Record]:
        return self._source.poll(limit, timeout)

    def positions(self) -> dict[Partition, int]:
        return self._source.positions()

    def watermarks(self) -> Marks:
        raise NotImplementedError

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def test_what_is_added_is_read_from_its_start_and_the_rest_goes_on_where_it_is(broker: MemoryBroker) -> None:
    source = Asking(broker)
    source.assign({("t", 0): 1})
    told: list[dict[Partition, int]] = []
    added = Added(source, 0.0, lambda: told.append(source.positions()))
    added.look(4.9)
    assert source.asked == []
    broker.widen("t", 3)
    for now in (5.0, 11.0):
        added.look(now)
    assert len(source.asked) == 1, "one question at a time, and nobody waits for the answer"
    source.asked[0].set_result(source.partitions())
    added.look(12.0)
    assert source.positions() == {("t", 0): 1, ("t", 1): 0, ("t", 2): 0}
    assert told == [source.positions()], "whoever had paused some pauses them again"


def test_where_nothing_was_added_what_is_read_stays_as_it_is(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Asking(broker)
    source.assign({("t", 0): 1})
    monkeypatch.setattr(source, "assign", lambda _: pytest.fail("it was assigned anew"))
    added = Added(source, 0.0, lambda: pytest.fail("it was told"))
    added.look_now()
    source.asked[0].set_result(source.partitions())
    added.look_now()
    assert not added.read()


def test_a_source_that_cannot_ask_beside_the_reading_is_asked_when_a_look_is_due(broker: MemoryBroker) -> None:
    broker.create("t", partitions=1)
    source = broker.source(["t"])
    source.assign({("t", 0): 1})
    added = Added(source, 0.0)
    broker.widen("t", 2)
    added.look(4.9)
    assert source.positions() == {("t", 0): 1}
    added.look(5.0)
    assert source.positions() == {("t", 0): 1, ("t", 1): 0}


def test_where_nobody_answers_it_asks_again_and_a_topic_that_is_gone_is_said(broker: MemoryBroker) -> None:
    source = Asking(broker)
    source.assign({("t", 0): 1})
    added = Added(source, 0.0)
    added.look(5.0)
    source.asked[0].set_exception(UnreachableError("nobody answers", address="a:1"))
    added.look(6.0)
    added.look(10.0)
    source.asked[1].set_exception(TopicError("it is gone", topic="t"))
    with pytest.raises(TopicError):
        added.look(11.0)
    assert source.positions() == {("t", 0): 1}
