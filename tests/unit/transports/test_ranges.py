"""Reading between two offsets: an unreachable broker is waited for, as long as one may take to start again."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, line, publish
from cardinal.errors import UnreachableError
from cardinal.producing.survey.mux import range_in_members, survey_members
from cardinal.transports import read_range as ranges
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Record

RESTART = 45
"""Seconds, and polls."""


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, 20))
        yield broker


class Away:
    """So many polls take a second each and bring nothing, then everything is there; one partition alone, or all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, polls: int, partition: int | None = None) -> None:
        self.left = polls
        self.seconds = 0.0
        self._partition = partition
        self._poll = MemorySource.poll
        monkeypatch.setattr(ranges, "time", SimpleNamespace(monotonic=lambda: self.seconds))

        def poll(source: MemorySource, limit: int, timeout: float) -> list[Record]:
            return self.poll(source, limit, timeout)

        monkeypatch.setattr(MemorySource, "poll", poll)

    def poll(self, source: MemorySource, limit: int, timeout: float) -> list[Record]:
        if self.left == 0:
            return self._poll(source, limit, timeout)
        self.left -= 1
        self.seconds += 1.0
        if self._partition is None:
            return []
        source.pause([where for where in source.positions() if where[1] == self._partition])
        records = self._poll(source, limit, 0.0)
        source.pause(())
        return records


def test_a_broker_that_starts_again_meanwhile_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(monkeypatch, RESTART)
    assert survey_members(broker.url, Blocks()).chain[-1].number == 20
    assert away.left == 0
    away.left = RESTART
    assert len(range_in_members(broker.url, Blocks(), 1, 20).complete) == 20
    assert away.left == 0


def test_one_that_stays_away_is_reported_as_retriable(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(monkeypatch, 10**6)
    with pytest.raises(UnreachableError, match="did not arrive within 60 s") as failed:
        survey_members(broker.url, Blocks())
    assert failed.value.retriable
    assert failed.value.address == "block"
    assert away.seconds < 2 * 60


def test_what_comes_beyond_the_end_of_other_partitions_does_not_hide_one_that_is_silent(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others produce all the while, a record of every other partition a second."""
    away = Away(monkeypatch, 10**6, partition=1)
    source = broker.source(["block"])
    marks = source.watermarks()
    taken: list[Record] = []

    def poll(reading: MemorySource, limit: int, timeout: float) -> list[Record]:
        for number in (0, 2):
            broker._append("block", number, b"\x06beyond", b"", ())
        return away.poll(reading, limit, timeout)

    monkeypatch.setattr(MemorySource, "poll", poll)
    starts = {where: low for where, (low, _) in marks.items()}
    ends = {where: high for where, (_, high) in marks.items()}
    with pytest.raises(UnreachableError, match="block:1 did not arrive"):
        ranges.read_range(source, starts, ends, taken.append)
    assert away.seconds < 2 * 60
    assert len(taken) == sum(marks["block", number][1] for number in (0, 2))


def test_the_newest_records_of_every_partition_are_read_in_order(broker: MemoryBroker) -> None:
    found = ranges.read_recent(broker.source(["block"]), 3)
    assert [record.partition for record in found] == [0] * 3 + [1] * 3 + [2] * 3
