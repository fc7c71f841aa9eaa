"""Health of a consumer's source: is the server there, and how far is the reading behind it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from cardinal.consuming import health, watermarks
from cardinal.consuming.health import Health
from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import Partition

A: Partition = ("topic", 0)
Marks = dict[Partition, tuple[int, int]]


class Server:
    """Answers requests for watermarks when the test says so, by a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.requests: list[Future[Marks]] = []
        monkeypatch.setattr(watermarks, "run_in_thread", self.request)
        for module in (health, watermarks):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._watermarks = Watermarks(self)  # type: ignore[arg-type] # all that is asked of a source here
        self._watermarks.query()
        self.health = Health(self._watermarks, {A: 0})

    def partitions(self) -> tuple[Partition, ...]:
        return (A,)

    def watermarks(self) -> Marks:
        """Those of the opening; of later ones the future is the test's."""
        return {A: (0, 0)}

    def positions(self) -> Mapping[Partition, int]:
        return {A: 0}

    def request(self, *_: object) -> Future[Marks]:
        self.requests.append(Future())
        return self.requests[-1]

    def after(self, seconds: float, positions: Mapping[Partition, int] | None = None) -> None:
        self.now += seconds
        self._watermarks.read_new_partitions()
        self.health.look(positions or {A: 0})

    def answers(self, end: int) -> None:
        self.requests[-1].set_result({A: (0, end)})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_a_server_that_does_not_answer_in_time_is_away_until_it_does(server: Server) -> None:
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


def test_records_prove_that_the_server_is_there(server: Server) -> None:
    server.after(2.0)
    server.after(3.5, {A: 1})
    assert server.health.connected
    assert server.health.last_read_at == server.now


def test_nobody_is_away_because_nobody_reads(server: Server) -> None:
    server.after(2.0)
    server.answers(0)
    server.after(0.1)
    server.now += 3600
    assert server.health.connected
    assert not server.health.lags


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
