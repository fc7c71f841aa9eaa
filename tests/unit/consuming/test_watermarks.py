"""Watermarks of a source: how new an answer is, errors, and partitions that are added."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE
from cardinal.consuming import watermarks as module
from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import TopicError, UnreachableError
from cardinal.protocols.streams.types import Routed
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


@pytest.fixture
def watermarks(source: Slow, monkeypatch: pytest.MonkeyPatch) -> Watermarks:
    """A retry follows a failure at once."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    return Watermarks(source)


def test_an_answer_was_requested_after_the_moment_that_the_caller_names(
    source: Slow, broker: MemoryBroker, watermarks: Watermarks
) -> None:
    """A request that is in flight already proves nothing about what was written since."""
    assert watermarks.after(0.0) is None
    _until(lambda: source.queries)
    moment = time.monotonic()
    assert watermarks.after(moment) is None
    assert source.queries == 1, "one request at a time"
    broker.take(Routed("t", b"key", b""), ())
    source.answers.set()
    _until(lambda: watermarks.after(0.0))
    assert watermarks.newest_at < moment
    _until(lambda: watermarks.after(moment))
    assert watermarks.newest_at > moment
    assert watermarks.newest == source.watermarks()
    assert source.queries == 2
    assert watermarks.after(moment) is watermarks.newest
    assert source.queries == 2, "nobody needed a newer one"


def test_topics_that_are_not_read_are_left_out_of_answers(source: Slow, watermarks: Watermarks) -> None:
    watermarks.hidden = frozenset({"t"})
    assert watermarks.query() == {}
    assert watermarks.starts == {("t", 0): 0}
    assert not watermarks.read_new_partitions()
    assert source.positions() == {("t", 0): 1}


def test_a_server_that_is_away_is_queried_again_and_any_other_error_is_raised_once(
    source: Slow, watermarks: Watermarks
) -> None:
    source.errors = [UnreachableError("nobody answers", address="a:1"), TopicError("it is gone", topic="t")]
    source.answers.set()
    before = time.monotonic()
    assert watermarks.away_since is None
    with pytest.raises(TopicError):
        _until(lambda: watermarks.after(before))
    assert source.queries == 2
    assert watermarks.away_since is not None
    _until(lambda: watermarks.after(before))
    assert watermarks.away_since is None
    assert source.queries == 3


def test_a_server_that_is_away_is_not_queried_again_at_once(source: Slow) -> None:
    watermarks = Watermarks(source)
    source.errors = [UnreachableError("nobody answers", address="a:1")]
    source.answers.set()
    watermarks.after(0.0)
    _until(lambda: watermarks.away_since)
    for _ in range(100):
        assert watermarks.after(0.0) is None
    assert source.queries == 1


def test_a_new_partition_is_read_from_its_start_and_the_rest_where_it_is(
    source: Slow, broker: MemoryBroker, watermarks: Watermarks
) -> None:
    broker.widen("t", 3)
    assert not watermarks.read_new_partitions()
    _until(lambda: source.queries)
    assert source.positions() == {("t", 0): 1}, "nobody waits for the answer"
    source.answers.set()
    _until(watermarks.read_new_partitions)
    assert source.queries == 1
    assert source.positions() == {("t", 0): 1, ("t", 1): 0, ("t", 2): 0}


def test_nothing_is_assigned_where_there_is_no_new_partition(
    source: Slow, watermarks: Watermarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "assign", lambda _: pytest.fail("it was assigned again"))
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    source.answers.set()

    def looked_twice() -> bool:
        assert not watermarks.read_new_partitions()
        return source.queries > 1

    _until(looked_twice)
