"""Older Batches for a reorg through a channel, looked up alongside the stream: what is read, kept and repeated."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from blocks import DEADLINE, Blocks, block, deep, hash_of, line, messages, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming import lookup
from cardinal.consuming.lookup import AncestorLookup, batch_of
from cardinal.consuming.reader import Reader
from cardinal.consuming.skiplist import Skipping
from cardinal.errors import UnreachableError
from cardinal.protocols.streams import BlockRef, Payload, Record, Rejected
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Position


PARTITIONS = 1


POLLED: Final = 5


THRESHOLD: Final = 4


FAR: Final = 60
"""Blocks above the lowest remembered one, or below the wanted one, of which none is read at first."""


@pytest.fixture(autouse=True)
def _small_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_POLL_RECORDS", POLLED)


def write(broker: MemoryBroker, *runs: list[Payload]) -> None:
    """Batches alone, in this order."""
    sink = broker.sink(Blocks(), producer_id="one")
    for run in runs:
        for payload in run:
            sink.send([], messages(payload)[-1]).result(DEADLINE)


def chain(first: int, last: int) -> dict[bytes, bytes]:
    return {hash_of(f"{number}a"): hash_of(f"{number - 1}a") for number in range(first, last + 1)}


def away(*_asked: object) -> None:
    raise UnreachableError("the broker is unreachable for a moment", address="broker")


class Watched(MemorySource):
    """Notes what was read, and whether it was closed."""

    def __init__(self, broker: MemoryBroker, looking: Looking) -> None:
        super().__init__(broker, ("block",))
        self.closed = False
        self._looking = looking

    def poll(self, limit: int, timeout: float) -> list[Record]:
        self._looking.polls += 1
        if self._looking.away:
            away()
        records = super().poll(limit, timeout)
        self._looking.read |= {batch.number for batch in map(batch_of, records) if batch is not None}
        return records

    def close(self) -> None:
        self.closed = True


class Looking:
    """Look-ups in a broker's Batches; the numbers of those that were read."""

    def __init__(self, broker: MemoryBroker, skip: Collection[Position] = ()) -> None:
        self.sources: list[Watched] = []
        self.read: set[int] = set()
        self.polls = 0
        self.away = False
        self.opens: Callable[[], object] = lambda: None
        self.skipping = Skipping(skip)
        self.older = AncestorLookup(self._open, Blocks(), THRESHOLD, self.skipping)
        self._broker = broker

    def _open(self) -> Watched:
        self.opens()
        self.sources.append(Watched(self._broker, self))
        return self.sources[-1]

    def poll(self, number: int, lowest: int) -> Mapping[bytes, bytes] | None:
        before = self.polls
        found = self.older.poll(number, BlockRef(lowest, hash_of(f"{lowest}a")), DEADLINE)
        assert self.polls - before <= 1, "a step polls once"
        return found

    def find(self, number: int, lowest: int) -> Mapping[bytes, bytes]:
        deadline = time.monotonic() + DEADLINE
        while (found := self.poll(number, lowest)) is None:
            assert time.monotonic() < deadline
        assert all(source.closed for source in self.sources)
        return found


@pytest.mark.parametrize("broker", [1, 2], indirect=True)
def test_batches_about_the_chain_are_read_and_no_others(broker: MemoryBroker) -> None:
    write(broker, line(1, 600))
    looking = Looking(broker)
    assert looking.find(250, 300) == chain(251, 300)
    near = [number for number in looking.read if 250 - FAR <= number <= 300 + FAR]
    assert len(looking.read) - len(near) < 100, "of what is far away only what halving looks at"
    assert len(looking.sources) == 1


@pytest.mark.parametrize("broker", [1, 2], indirect=True)
def test_batches_that_a_repair_wrote_far_above_are_found(broker: MemoryBroker) -> None:
    write(broker, line(1, 29), line(41, 400), line(30, 40))
    looking = Looking(broker)
    assert looking.find(20, 60) == chain(21, 60)
    assert 400 in looking.read


def test_batches_below_the_place_that_is_found_by_halving_are_found(broker: MemoryBroker) -> None:
    """A repair has written so many old ones that the number seems to lie above them."""
    write(broker, line(1, 100), *[line(1, 5)] * 50)
    assert Looking(broker).find(60, 90) == chain(61, 90)


def test_what_is_not_there_is_looked_for_once(broker: MemoryBroker) -> None:
    write(broker, line(1, 50), line(52, 100))
    looking = Looking(broker)
    assert looking.find(40, 60) == {**chain(41, 50), **chain(52, 60)}
    assert looking.read == {*range(1, 51), *range(52, 101)}
    assert looking.polls < 3 * 100 / POLLED, "nothing is read twice but what halving looks at"


def test_a_hash_whose_batches_disagree_counts_for_nothing(broker: MemoryBroker) -> None:
    write(broker, line(1, 55), [block("50a", "49z")], line(50, 50), line(54, 54), line(56, 100))
    found = Looking(broker).find(40, 60)
    assert found == {**chain(41, 49), **chain(51, 60)}


def test_a_record_that_is_to_be_skipped_is_none(broker: MemoryBroker) -> None:
    write(broker, line(1, 55), [block("50a", "49z")], line(56, 100))
    (lie,) = [one[:3] for one in broker.records("block") if (found := batch_of(one)) and found.parent == hash_of("49z")]
    looking = Looking(broker, skip=[lie])
    assert looking.find(40, 60) == chain(41, 60)
    assert {type(report) for report in looking.skipping.found()} == {Rejected}


def test_a_topic_without_batches_has_none(broker: MemoryBroker) -> None:
    broker.create("block")
    assert Looking(broker).find(40, 60) == {}


def test_a_server_that_is_unreachable_while_it_is_polled_is_polled_again(broker: MemoryBroker) -> None:
    write(broker, line(1, 100))
    looking = Looking(broker)
    while not looking.read & {45}:
        assert looking.poll(40, 60) is None
    looking.away = True
    for _ in range(10):
        assert looking.poll(40, 60) is None
    looking.away = False
    assert looking.find(40, 60) == chain(41, 60)
    assert len(looking.sources) == 1


def test_another_number_or_a_higher_chain_is_looked_up_anew(broker: MemoryBroker) -> None:
    write(broker, line(1, 100))
    looking = Looking(broker)
    for number, lowest, opened in ((40, 60, 1), (40, 50, 1), (40, 61, 2), (30, 61, 3), (45, 61, 4)):
        assert looking.poll(number, lowest) is None
        assert len(looking.sources) == opened
        assert [source.closed for source in looking.sources] == [True] * (opened - 1) + [False]
    assert looking.find(45, 61) == chain(46, 61)
    looking.older.close()


def test_a_folder_is_looked_up_in_as_a_broker_is(tmp_path: Path) -> None:
    """It has all partitions in one order, and pauses none."""
    url = f"file://{tmp_path}?cardinal.partitions=2"
    publish(url, line(1, 200))
    reader = Reader(url, Blocks(), wait=0.0)
    lowest, deadline = BlockRef(120, hash_of("120a")), time.monotonic() + DEADLINE
    while (found := reader.lookup.poll(100, lowest, DEADLINE)) is None:
        assert time.monotonic() < deadline
    assert found == chain(101, 120)
    reader.close()


@pytest.mark.slow
def test_the_stream_s_blocks_are_delivered_while_a_long_look_up_is_in_flight(broker: MemoryBroker) -> None:
    """Each of its steps looks up a few Batches and delivers a block."""
    publish(broker, line(1, 300))
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as first:
        update = updates_until(first, "300a")[-1]
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, start=str(update.cursor)) as resumed:
        deep(broker, "100a", line(101, 330, "b", "100a", weight=50))
        for number in range(301, 331):
            publish(broker, line(number, number))
            assert steps([next(iter(resumed))]) == [f"+{number}a"]
        switch = updates_until(resumed, "330b")[-1]
    assert [one.number for one in switch.removed] == list(range(330, 100, -1))


def test_what_retention_leaves_is_looked_up_where_it_overtakes(broker: MemoryBroker) -> None:
    write(broker, line(1, 100))
    looking = Looking(broker)
    while not looking.read & {15}:
        assert looking.poll(40, 60) is None
    broker.trim("block", 0, 50)
    assert looking.find(40, 60) == chain(50, 60)
    assert len(looking.sources) == 2


@pytest.mark.parametrize("call", ["open", "watermarks", "assign"])
def test_a_server_that_is_unreachable_when_the_topic_is_opened_is_queried_again_a_while_later(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: now[0]))
    write(broker, line(1, 100))
    looking = Looking(broker)
    with monkeypatch.context() as patched:
        patched.setattr(*(looking, "opens") if call == "open" else (MemorySource, call), away)
        assert looking.poll(40, 60) is None
    opened = len(looking.sources)
    assert all(source.closed for source in looking.sources)
    for _ in range(3):
        assert looking.poll(40, 60) is None
    assert len(looking.sources) == opened, "not at once"
    now[0] += 2.0
    assert looking.find(40, 60) == chain(41, 60)


def test_a_look_up_ends_with_the_channel_that_needed_it(broker: MemoryBroker) -> None:
    write(broker, line(1, 300))
    looking = Looking(broker)
    assert looking.poll(100, 300) is None
    looking.older.close()
    looking.older.close()
    assert [source.closed for source in looking.sources] == [True]
    assert looking.find(100, 300) == chain(101, 300)
