"""New partitions of topics that are being read."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE
from cardinal.consuming.new_partitions import NewPartitions
from cardinal.errors import TopicError, UnreachableError
from cardinal.testing.memory import MemoryBroker, MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cardinal.protocols.streams.types import Partition


class Slow(MemorySource):
    """Answers queries for partitions when the test allows it, or fails them."""

    def __init__(self, broker: MemoryBroker) -> None:
        broker.create("t", partitions=1)
        super().__init__(broker, ["t"])
        self.broker = broker
        self.answers = threading.Event()
        self.queries = 0
        self.errors: list[Exception] = []

    def partitions(self) -> tuple[Partition, ...]:
        if threading.current_thread() is not threading.main_thread():
            self.queries += 1
            assert self.answers.wait(DEADLINE)
            if self.errors:
                raise self.errors.pop(0)
        return super().partitions()

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        return self.broker.marks(super().partitions())


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


@pytest.fixture
def source(broker: MemoryBroker) -> Slow:
    source = Slow(broker)
    source.assign({("t", 0): 1})
    return source


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline


def test_a_new_partition_is_read_from_its_start_and_the_rest_where_it_is(broker: MemoryBroker, source: Slow) -> None:
    added: list[dict[Partition, int]] = []
    new = NewPartitions(source, 0.0, lambda: added.append(source.positions()))
    new.look(4.9)
    assert source.queries == 0
    broker.widen("t", 3)
    for now in (5.0, 11.0):
        new.look(now)
    _until(lambda: source.queries)
    assert source.positions() == {("t", 0): 1}, "nobody waits for the answer"
    source.answers.set()

    def taken() -> bool:
        new.look(12.0)
        return len(source.positions()) > 1

    _until(taken)
    assert source.queries == 1, "one query at a time"
    assert source.positions() == {("t", 0): 1, ("t", 1): 0, ("t", 2): 0}
    assert added == [source.positions()], "the caller pauses again what it had paused"


def test_nothing_is_assigned_where_there_is_no_new_partition(source: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "assign", lambda _: pytest.fail("it was assigned again"))
    new = NewPartitions(source, 0.0, lambda: pytest.fail("it was called"))
    source.answers.set()

    def asked_twice() -> bool:
        new.look_now()
        return source.queries > 1

    _until(asked_twice)
    new.add({("t", 0): 0})


def test_a_server_that_is_away_is_queried_again_and_a_deleted_topic_is_reported(source: Slow) -> None:
    new = NewPartitions(source, 0.0)
    source.errors = [UnreachableError("nobody answers", address="a:1"), TopicError("it is gone", topic="t")]
    source.answers.set()

    def look() -> bool:
        new.look_now()
        return False

    with pytest.raises(TopicError):
        _until(look)
    assert source.queries == 2
    assert source.positions() == {("t", 0): 1}
