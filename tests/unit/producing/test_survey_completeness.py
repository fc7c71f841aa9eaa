"""Blocks of producers that do not seal: complete when all of it is there, however long that was under way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from blocks import DEADLINE, Blocks, line, messages
from cardinal.producing.survey import completeness
from cardinal.producing.survey.batch_index import BatchCopy, batch_of
from cardinal.producing.survey.frontier import survey
from cardinal.protocols.streams.types import Partition, Record
from cardinal.protocols.streams.wire.messages import Batch
from cardinal_devkit.testing.memory import MemoryBroker
from clocks import Clock

CHAIN = line(1, 6)


@pytest.fixture
def clock() -> Clock:
    return Clock(10_000.0)


@pytest.fixture
def broker(clock: Clock) -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, clock=clock) as broker:
        yield broker


def _send_slowly(broker: MemoryBroker, clock: Clock, seconds: float) -> None:
    """Every block's Batch so long after the rest of it."""
    sink = broker.sink(Blocks(), producer_id="other")
    for payload in CHAIN:
        *content, batch = messages(payload)
        sink.send(content, None).result(DEADLINE)
        clock.now += seconds
        sink.send([batch], None).result(DEADLINE)


@pytest.mark.parametrize("seconds", [0, 4, 50, 300, 590])
def test_a_block_whose_batch_came_minutes_later_counts(broker: MemoryBroker, clock: Clock, seconds: float) -> None:
    """As long as for consumers, who begin to read it so much earlier than its Batch."""
    _send_slowly(broker, clock, seconds)
    chain = survey(broker.source(Blocks().all_topics), Blocks()).chain
    assert chain == [payload.ref for payload in CHAIN]


def test_only_records_near_a_batch_are_read(
    broker: MemoryBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send_slowly(broker, clock, 1)
    asked: list[int] = []
    source = broker.source(Blocks().all_topics)
    look = source.offsets_for_time

    def asks(timestamp_ms: int) -> dict[Partition, int]:
        asked.append(timestamp_ms)
        return look(timestamp_ms)

    monkeypatch.setattr(source, "offsets_for_time", asks)
    copies = [
        BatchCopy(batch, record.timestamp_ms)
        for record in broker.records("block")
        if (batch := batch_of(record)) is not None
    ]
    assert completeness.complete_among(source, Blocks(), copies) == {payload.hash for payload in CHAIN}
    assert asked
    assert min(asked) >= 9_990_000


def test_records_read_around_a_batch_are_bounded(
    broker: MemoryBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completeness, "_RECORDS", 100)
    sink = broker.sink(Blocks(), producer_id="other")
    _send_slowly(broker, clock, 0)
    *content, batch = messages(line(1, 7)[-1])
    sink.send(content[1:], None).result(DEADLINE)  # it will never be whole
    for number in range(1_000):
        clock.now += 0.5
        sink.send(messages(line(1_000 + number, 1_000 + number, "z")[0])[:-1], None).result(DEADLINE)
    sink.send([batch], None).result(DEADLINE)
    source = broker.source(Blocks().all_topics)
    read: list[int] = []
    poll = source.poll

    def polls(limit: int, timeout: float) -> list[Record]:
        records = poll(limit, timeout)
        read.append(len([record for record in records if record.topic != "block"]))
        return records

    monkeypatch.setattr(source, "poll", polls)
    found = BatchCopy(Batch(line(1, 7)[-1].hash, 7, 7, line(1, 7)[-1].parent), int(clock.now * 1000))
    assert completeness.complete_among(source, Blocks(), [found]) == set()
    others = [where for where in source.partitions() if where[0] != "block"]
    assert 0 < sum(read) <= 3 * 100 * len(others)
