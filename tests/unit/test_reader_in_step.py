"""Partitions kept in step by a reader: nobody waits for one that has ended, and nobody gets away by a new partition."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from blocks import DEADLINE, Blocks
from cardinal.consuming import pacing as in_step
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams.types import Partition, Record, Routed
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import added
from cardinal.transports.partitioner import fnv1a_partition
from clocks import Clock

POLLED = 10
HOUR = 3_600.0
HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(clock: Clock) -> Iterator[MemoryBroker]:
    """Three partitions, each with its heartbeat of hour 0."""
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=clock) as broker:
        broker.create("block")
        yield broker


@pytest.fixture
def reader(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Of small polls, that looks at the pace at each of them."""
    monkeypatch.setattr(in_step, "POLL_RECORDS", POLLED)
    monkeypatch.setattr(in_step, "_PACE_SECONDS", 0.0)
    reader = Reader(broker.url, Blocks(), wait=0.0, topics=["block"])
    yield reader
    reader.close()


def _fill(broker: MemoryBroker, clock: Clock, partition: int, hours: range) -> None:
    """A record an hour in this partition."""
    for hour in hours:
        keys = (b"\x03%d/%d" % (hour, attempt) for attempt in range(1_000))
        key = next(key for key in keys if fnv1a_partition(key, 3) == partition)
        clock.now = hour * HOUR
        assert broker.take(Routed("block", key, b""), ())


def _read(reader: Reader, records: int) -> list[Record]:
    """So many records with a key, or what came until nothing more does."""
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < records and time.monotonic() < deadline:
        found += [record for record in reader.poll() if record.key]
    return found


def _begin(reader: Reader) -> None:
    reader.main.assign({where: low for where, (low, _) in reader.main.watermarks().items()})


def test_a_partition_that_ended_long_ago_holds_nobody_up(broker: MemoryBroker, clock: Clock, reader: Reader) -> None:
    """Partition 0 has its heartbeat and nothing else: it is at its end, hours behind the two that are read."""
    for partition in (1, 2):
        _fill(broker, clock, partition, range(10, 110))
    _begin(reader)
    found = _read(reader, 200)
    assert len(found) == 200, f"it stood still with {[len(_of(found, number)) for number in (1, 2)]} of 100 each"


def test_a_partition_that_is_ahead_stays_paused_when_another_one_is_added(
    broker: MemoryBroker, clock: Clock, reader: Reader
) -> None:
    """Partition 0 is days ahead of partition 1; a fourth partition comes while it is paused."""
    _fill(broker, clock, 1, range(1, 101))
    _fill(broker, clock, 0, range(200, 300))
    _begin(reader)
    while ("block", 0) not in reader.in_step.pace.paused:
        assert reader.poll(), "partition 0 was never paused"
    ahead = reader.positions()["block", 0]
    clock.now = 150 * HOUR
    broker.widen("block", 4)
    assert ("block", 3) in reader.ends()
    while reader.positions()["block", 1] <= 90:
        reader.poll()
        assert reader.positions()["block", 0] == ahead, "it went on while the slowest was far behind"
    rest = _of(_read(reader, 202 - sum(reader.positions()["block", number] for number in (0, 1))), 0)
    assert [record.timestamp_ms // HOUR_MS for record in rest] == list(range(300 - len(rest), 300))


@pytest.mark.parametrize("found", ["by looking", "when it is asked"])
def test_who_is_paused_is_paused_again_at_once_when_a_partition_is_added(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The source is assigned anew for it, which resumes all."""
    monkeypatch.setattr(added, "_SECONDS", 0.0)
    _begin(reader)
    reader.in_step.pace.paused = paused = frozenset({("block", 0)})
    broker.widen("block", 4)
    asked: list[frozenset[Partition]] = []
    monkeypatch.setattr(reader.main, "pause", lambda partitions: asked.append(frozenset(partitions)))
    if found == "by looking":
        reader._added.look(time.monotonic())
    else:
        reader.ends()
    assert ("block", 3) in reader.positions()
    assert asked == [paused]


class Silent:
    """A source whose server is away: whoever asks where partitions end has no answer, whoever waits for one fails."""

    def __init__(self) -> None:
        self.asked = 0

    def at_end(self) -> frozenset[Partition]:
        return frozenset()

    def look_later(self) -> Future[tuple[Partition, ...]]:
        return Future()

    def watermarks_later(self, *, look: bool) -> Future[dict[Partition, tuple[int, int]]]:
        assert not look, "a look each quarter of a second would take a topic without leaders for one that is gone"
        self.asked += 1
        return Future()

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        raise AssertionError("it waited for a server that is away")


def test_what_is_there_is_read_in_step_while_nobody_says_where_partitions_end(
    broker: MemoryBroker, clock: Clock, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is days ahead of partition 1, and both have ended where they ended at the opening."""
    _fill(broker, clock, 1, range(1, 101))
    _fill(broker, clock, 0, range(200, 300))
    reader.ends()
    _begin(reader)
    silent = Silent()
    monkeypatch.setattr(reader.in_step, "_unasked", silent)
    monkeypatch.setattr(reader.main, "watermarks", silent.watermarks)
    paused = False
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < 200 and time.monotonic() < deadline:
        found += [record for record in reader.poll() if record[3]]
        paused = paused or ("block", 0) in reader.in_step.pace.paused
    assert len(found) == 200
    assert paused, "nobody was ever ahead: this test shows nothing"
    assert silent.asked == 1, "one question at a time"


def _of(records: list[Record], partition: int) -> list[Record]:
    return [record for record in records if record.partition == partition]
