"""An unreachable server while a rewind, older Batches or a reorg channel are requested: the request is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from blocks import Blocks, added, consumer, deep, line, messages, publish, send, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming import channels, lookup
from cardinal.consuming import reader as reading
from cardinal.consuming.reader import Reader
from cardinal.errors import UnreachableError
from cardinal.protocols.streams import Record
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource
from examples import few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.transports import Source


PARTITIONS = 1


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)


class Away:
    """Sources opened for one thing (the stream, its history, a channel) fail so many times at a call, or before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, call: str, failures: int) -> None:
        self.asked, self.left = 0, failures
        self.sources: list[Closing] = []
        self._kind, self._call, self._open = kind, call, reading.open_source
        monkeypatch.setattr(reading, "open_source", self.open)

    def open(self, *args: Any, **options: Any) -> Source:  # noqa: ANN401 - as it is called
        if kind_of(options["topics"]) != self._kind:
            return self._open(*args, **options)
        self.asked += 1
        self.ask("open_source")
        source = Closing(self._open(*args, **options), self)
        self.sources.append(source)
        return source  # type: ignore[return-value] # it has what it was made of

    def ask(self, call: str) -> None:
        if call == self._call and self.left:
            self.left -= 1
            raise UnreachableError("the broker is unreachable for a moment", address="broker")


def kind_of(topics: Sequence[str] | None) -> str:
    if topics is None or len(topics) > 1:
        return "stream"
    return "history" if topics == ("block",) else "channel"


class Closing:
    """A source that may be unreachable, and knows whether it was closed."""

    def __init__(self, source: Source, away: Away) -> None:
        self._source, self._away = source, away
        self.closed = False

    def __getattr__(self, name: str) -> object:
        self._away.ask(name)
        return getattr(self._source, name)

    def close(self) -> None:
        self.closed = True
        self._source.close()


AWAY = pytest.mark.parametrize(
    ("call", "failures"), [("open_source", 1), ("open_source", 7), ("watermarks", 3), ("assign", 3), ("poll", 3)]
)


def evict(broker: MemoryBroker) -> None:
    """The content of 5a to 20a, more than the capacity for open blocks, and then their Batches."""
    apart = [messages(payload) for payload in line(5, 20)]
    send(broker, [one for routed in apart for one in routed[:-1]])
    send(broker, [routed[-1] for routed in apart])


@pytest.mark.parametrize(("call", "failures"), few(1, [("watermarks", 3), ("assign", 1), ("assign", 7)]))
def test_evicted_blocks_are_re_read_when_the_server_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, call: str, failures: int
) -> None:
    monkeypatch.setattr("cardinal.consuming.options._BOUNDS", Bounds(open_blocks=4))
    away = Away(monkeypatch, "stream", call, 0)
    publish(broker, line(1, 4))
    with consumer(broker) as reading_:
        updates_until(reading_, "4a")
        away.left = failures
        evict(broker)
        assert steps(updates_until(reading_, "20a")) == added(5, 20)
    assert not away.left
    assert all(source.closed for source in away.sources)


@pytest.mark.slow
@AWAY
def test_older_batches_are_looked_up_when_the_server_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, call: str, failures: int
) -> None:
    """A channel's ancestor lies deeper than a resumed consumer remembers."""
    publish(broker, line(1, 60))
    with consumer(broker) as first:
        update = updates_until(first, "60a")[-1]
    with consumer(broker, start=str(update.cursor)) as resumed:
        deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
        away = Away(monkeypatch, "history", call, failures)
        (switch,) = updates_until(resumed, "62b")
    assert [one.number for one in switch.removed] == list(range(60, 20, -1))
    assert not away.left
    assert all(source.closed for source in away.sources)


def test_older_batches_that_do_not_arrive_hold_up_nothing(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a broker that dies while it is read from, a client says nothing: no record comes.

    A step asks once, whatever it brings, and the stream's blocks come meanwhile.
    """
    publish(broker, line(1, 60))
    with consumer(broker) as first:
        update = updates_until(first, "60a")[-1]
    with consumer(broker, start=str(update.cursor)) as resumed:
        deep(broker, "20a", line(21, 100, "b", "20a", weight=5))
        away = Away(monkeypatch, "history", "", 0)
        silent = silence(monkeypatch, 10**6)
        for number in range(61, 100):
            left = len(silent)
            resumed._loop.step()
            assert left - len(silent) <= 1
            publish(broker, line(number, number))
        assert steps(updates_until(resumed, "99a"))[-3:] == ["+97a", "+98a", "+99a"]
        assert len(silent) < 10**6, "it was in flight"
        silent.clear()
        (switch,) = updates_until(resumed, "100b")
    assert [one.number for one in switch.removed] == list(range(99, 20, -1))
    assert [source.closed for source in away.sources] == [True], "it goes on where it was"


def silence(monkeypatch: pytest.MonkeyPatch, polls: int) -> list[None]:
    """So many polls of the Batches alone bring nothing; returns those left."""
    left: list[None] = [None] * polls
    poll = MemorySource.poll

    def silent(source: MemorySource, limit: int, timeout: float) -> list[Record]:
        if left and {topic for topic, _ in source.positions()} == {"block"}:
            left.pop()
            return []
        return poll(source, limit, timeout)

    monkeypatch.setattr(MemorySource, "poll", silent)
    return left


@pytest.mark.slow
def test_idle_time_counts_while_a_rewind_is_not_answered(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.consuming.options._BOUNDS", Bounds(open_blocks=4))
    away = Away(monkeypatch, "stream", "assign", 0)
    publish(broker, line(1, 4))
    with Consumer(broker.url, Blocks(), idle_timeout=0.5) as reading_:
        updates_until(reading_, "4a")
        away.left = 10**6
        evict(broker)
        assert steps(list(reading_)) == []
        assert away.left < 10**6
        assert not reading_.caught_up
        assert not reading_.ready
        away.left = 0
        assert steps(updates_until(reading_, "20a")) == added(5, 20)
        assert steps(list(reading_)) == []
        assert reading_.ready


def test_nothing_is_read_before_a_rewind_is_answered(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(monkeypatch, "stream", "assign", 0)
    publish(broker, line(1, 4))
    reader = Reader(broker.url, Blocks(), wait=0.0)
    reader.main.assign({tp: end for tp, (_, end) in reader.watermarks.query().items()})
    away.left = 3
    reader.rewind({("a", 0): 2})
    for _ in range(3):
        publish(broker, line(5, 5))
        assert reader.poll() == []
        assert reader._rewind
    assert reader.poll()[0][:3] == ("a", 0, 2)
    assert not reader._rewind
    reader.close()


CHANNEL_AWAY = pytest.mark.parametrize("call", ["open_source", "offsets_for_time", "assign"])


@CHANNEL_AWAY
def test_a_channel_is_read_when_the_server_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    publish(broker, line(1, 60))
    with consumer(broker) as reading_:
        updates_until(reading_, "60a")
        away = Away(monkeypatch, "channel", call, 2)
        deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
        (switch,) = updates_until(reading_, "62b")
        assert switch.removed
        *failed, opened = away.sources
        assert all(source.closed for source in failed)
        assert not opened.closed
    assert opened.closed
    assert not away.left


@CHANNEL_AWAY
def test_a_cursor_is_not_resumed_without_its_channel_because_the_server_is_unreachable(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The newest blocks came through the channel, and are removed again: their content is had from there only."""
    publish(broker, line(1, 60))
    with consumer(broker) as first:
        updates_until(first, "60a")
        deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
        (update,) = updates_until(first, "62b")
    away = Away(monkeypatch, "channel", call, 1)
    with pytest.raises(UnreachableError):
        consumer(broker, start=str(update.cursor))
    assert all(source.closed for source in away.sources)
    with consumer(broker, start=str(update.cursor)) as resumed:
        publish(broker, line(61, 64, "c", "60b", weight=5))
        switched = steps(updates_until(resumed, "64c"))
    assert switched == ["-62b", "-61b", "+61c", "+62c", "+63c", "+64c"]
