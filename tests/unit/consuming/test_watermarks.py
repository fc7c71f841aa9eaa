"""Watermarks of a source, and the health that they show: how new an answer is, errors, new partitions, lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from blocks import DEADLINE
from cardinal.consuming import health
from cardinal.consuming import watermarks as module
from cardinal.consuming.health import Health
from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import TopicError, UnreachableError
from cardinal.protocols.streams.types import Partition, Routed
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource
from waiting import until


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
def source(broker: MemoryBroker) -> Slow:
    source = Slow(broker)
    source.assign({("t", 0): 1})
    return source


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
    until(lambda: source.queries)
    moment = time.monotonic()
    assert watermarks.after(moment) is None
    assert source.queries == 1, "one request at a time"
    broker.take(Routed("t", b"key", b""), ())
    source.answers.set()
    until(lambda: watermarks.after(0.0))
    assert watermarks.newest_at < moment
    until(lambda: watermarks.after(moment))
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


def test_a_server_that_is_unreachable_is_queried_again_and_any_other_error_is_raised_once(
    source: Slow, watermarks: Watermarks
) -> None:
    source.errors = [UnreachableError("nobody answers", address="a:1"), TopicError("it is gone", topic="t")]
    source.answers.set()
    before = time.monotonic()
    assert watermarks.unreachable_since is None
    with pytest.raises(TopicError):
        until(lambda: watermarks.after(before))
    assert source.queries == 2
    assert watermarks.unreachable_since is not None
    until(lambda: watermarks.after(before))
    assert watermarks.unreachable_since is None
    assert source.queries == 3


def test_a_new_partition_is_read_from_its_start_and_the_rest_where_it_is(
    source: Slow, broker: MemoryBroker, watermarks: Watermarks
) -> None:
    broker.widen("t", 3)
    assert not watermarks.read_new_partitions()
    until(lambda: source.queries)
    assert source.positions() == {("t", 0): 1}, "nobody waits for the answer"
    source.answers.set()
    until(watermarks.read_new_partitions)
    assert source.queries == 1
    assert source.positions() == {("t", 0): 1, ("t", 1): 0, ("t", 2): 0}


# --- health ------------------------------------------------------------------------------------------------


A: Partition = ("topic", 0)


Marks = dict[Partition, tuple[int, int]]


class Server:
    """Answers requests for watermarks when the test says so, by a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.requests: list[Future[tuple[Marks, Mapping[Partition, int]]]] = []
        monkeypatch.setattr(module, "run_in_thread", self.request)
        for each in (health, module):
            monkeypatch.setattr(each, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._watermarks = Watermarks(self)  # type: ignore[arg-type] # all that is used of a source here
        self._watermarks.query()
        self.health = Health(self._watermarks, {A: 0})

    def partitions(self) -> tuple[Partition, ...]:
        return (A,)

    def watermarks(self) -> Marks:
        """Those of the opening; of later ones the future is the test's."""
        return {A: (0, 0)}

    def uncommitted_ends(self) -> Mapping[Partition, int]:
        return {}

    def positions(self) -> Mapping[Partition, int]:
        return {A: 0}

    def request(self, *_: object) -> Future[tuple[Marks, Mapping[Partition, int]]]:
        self.requests.append(Future())
        return self.requests[-1]

    def after(self, seconds: float, positions: Mapping[Partition, int] | None = None) -> None:
        self.now += seconds
        self._watermarks.read_new_partitions()
        self.health.look(positions or {A: 0})
        self.health.delivered()

    def hiding(self) -> set[Partition]:
        return {*self._watermarks.hiding.for_long()}

    def answers(self, end: int, hidden: int = 0) -> None:
        self.requests[-1].set_result(({A: (0, end)}, {A: end + hidden}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_a_server_that_does_not_answer_in_time_is_unreachable_until_it_does(server: Server) -> None:
    server.after(2.0)
    assert server.health.connected
    assert server.health.last_read_at == 1000.0
    server.now += 2.9
    assert server.health.connected
    server.now += 0.2
    assert not server.health.connected
    server.requests[-1].set_exception(UnreachableError("nobody", address="a"))
    server.after(0.1)
    assert not server.health.connected
    assert len(server.requests) == 1, "not yet again"
    server.after(0.3)
    assert not server.health.connected
    assert len(server.requests) == 2
    server.answers(5)
    assert server.health.connected, "nobody has to read for that"
    assert server.health.last_read_at == server.now, "of the request"
    server.after(0.1)
    assert server.health.connected
    assert server.health.lag == 5


def test_a_reader_lags_that_does_not_reach_the_ends_of_some_seconds_ago(server: Server) -> None:
    server.after(2.0)
    server.answers(100)
    server.after(0.0)
    for second in range(1, 11):
        server.after(1.0, {A: 5 * second})
        assert not server.health.lags
    server.after(0.5, {A: 50})
    assert server.health.lags
    assert server.health.lag == 50
    server.after(1.0, {A: 100})
    assert not server.health.lags
    assert server.health.lag == 0


def test_one_that_is_always_a_little_behind_a_busy_stream_does_not_lag(server: Server) -> None:
    for end in range(100, 3000, 100):
        server.after(2.0, {A: end - 100})
        server.answers(end)
        server.after(0.0, {A: end - 100})
        assert server.health.connected
        assert not server.health.lags
        assert server.health.lag == 100


def test_what_was_read_lags_until_it_is_delivered(server: Server) -> None:
    server.health.look({A: 5})
    assert server.health.lag == 5, "the answer with their ends is still to come"
    server.now += 30.0
    assert (server.health.lag_seconds, server.health.lags) == (30.0, True), "an update of it is handled"
    server.health.delivered()
    assert (server.health.lag_seconds, server.health.lags) == (0.0, False)


def test_a_lag_of_hours_is_as_old_as_its_oldest_ends(server: Server) -> None:
    for end in range(1, 2000):
        server.after(2.0)
        server.answers(end)
        assert server.health.lag_seconds == 2.0 * (end - 1)
    server.after(2.0, {A: 1000})
    assert server.health.lag == 999
    assert 1900 <= server.health.lag_seconds <= 2002 + 100


def test_the_ends_are_refreshed_while_nobody_reads(server: Server) -> None:
    server.health.refresh(0.0)
    assert not server.requests, "those of the opening are new"
    server.now += 3.0
    server.health.refresh(0.0)
    server.answers(7)
    server.health.refresh(0.0)
    assert (len(server.requests), server.health.lag, server.health.lag_seconds) == (1, 7, 0.0)
    server.now += 60.0
    assert server.health.lag_seconds == 60.0


def test_records_behind_an_open_transaction_lag_until_it_ends(server: Server) -> None:
    server.after(2.0)
    server.answers(5, hidden=3)
    server.after(0.1, {A: 5})
    assert (server.health.lag, server.health.lags) == (3, False)
    assert server.hiding() == set(), "of a producer of ours, until it takes too long"
    for _ in range(6):
        server.after(2.0, {A: 5})
        server.answers(5, hidden=7)
    assert (server.health.lag, server.health.lags) == (7, True)
    assert server.hiding() == {A}
    server.after(2.0, {A: 5})
    server.answers(12)
    server.after(0.1, {A: 12})
    assert (server.health.lag, server.health.lags, server.hiding()) == (0, False, set())


def test_transactions_that_follow_each_other_are_not_one_that_hangs(server: Server) -> None:
    for end in range(0, 40, 2):
        server.after(2.0, {A: end})
        server.answers(end + 1, hidden=1)
        assert server.hiding() == set()
        assert not server.health.lags
