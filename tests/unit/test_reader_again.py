"""A block that is read again: from where it begins to where the reading stood, or until it is whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish
from cardinal.consuming import pacing as in_step
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams.types import Record
from cardinal.testing.memory import MemoryBroker, MemorySource

POLLED = 5


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, [*line(2, 2), *line(3, 42), *line(2, 2), *line(43, 82)])
        yield broker


@pytest.fixture
def reader(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """It has read 2a, forty blocks, 2a once more, and forty blocks, in small polls."""
    monkeypatch.setattr(in_step, "POLL_RECORDS", POLLED)
    reader = Reader(broker.url, Blocks(), wait=0.0, topics=["block"])
    ends = {where: high for where, (_, high) in reader.marks().items()}
    reader.main.assign(dict.fromkeys(ends, 0))
    deadline = time.monotonic() + DEADLINE
    while reader.positions() != ends:
        assert time.monotonic() < deadline
        reader.poll_now()
    yield reader
    reader.close()


def _again(reader: Reader, is_whole: Callable[[bytes], bool]) -> tuple[list[Record], int]:
    """What came of a block in so many polls, of which the last one brought nothing for long."""
    found: list[Record] = []
    last = polls = 0
    reader.read_again(hash_of("2a"), dict.fromkeys(reader.positions(), 0))
    for polls in range(1, 60):
        if records := reader.poll_again():
            last = polls
            found += records
            reader.end_again(is_whole)
    return found, last


def test_all_of_its_messages_up_to_where_the_reading_stood_are_given(reader: Reader) -> None:
    found, last = _again(reader, lambda _block: False)
    copies = [record.key for record in found]
    assert len(copies) == 2 * len(set(copies)) > 0
    assert {key[1:33] for key in copies} == {hash_of("2a")}
    assert last > 1


@pytest.mark.parametrize("call", ["poll", "assign"])
def test_what_retention_leaves_is_given_where_it_overtakes_the_reading(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It cuts off a third after the beginning was found, while it is read or before; one copy of 2a is left."""
    real = getattr(MemorySource, call)

    def cut(source: MemorySource, *args: object) -> object:
        if call == "assign" or not source.positions()["block", 0]:
            broker.trim("block", 0, 30)
        if call == "poll":
            return real(source, *args)
        real(source, *args)
        monkeypatch.undo()
        return source.poll(1, 0.0)  # as a server says it at once

    with monkeypatch.context() as patch:
        patch.setattr(MemorySource, call, cut)
        reader.read_again(hash_of("2a"), dict.fromkeys(reader.positions(), 0))
        assert reader.poll_again() == []
    found, _ = _again(reader, lambda _block: False)
    assert {record.key[1:33] for record in found} == {hash_of("2a")}
    assert min(record.offset for record in found) > 30
    assert not reader.reads_again


def test_nothing_more_is_read_when_it_is_whole(reader: Reader) -> None:
    asked: list[bytes] = []
    found, last = _again(reader, lambda block: not asked.append(block))  # type: ignore[func-returns-value]
    copies = [record.key for record in found]
    assert len(copies) == len(set(copies)) > 0
    assert last == 1
    assert asked == [hash_of("2a")]
