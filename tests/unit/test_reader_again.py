"""A block that is read again: from where it begins to where the reading stood, or until it is whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish
from cardinal.consuming import in_step
from cardinal.consuming.reading import Reader
from cardinal.protocols.streams.types import Record
from cardinal.testing.memory import MemoryBroker

POLLED = 5


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """It has read 2a, forty blocks, 2a once more, and forty blocks, in small polls."""
    monkeypatch.setattr(in_step, "POLL_RECORDS", POLLED)
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, [*line(2, 2), *line(3, 42), *line(2, 2), *line(43, 82)])
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


def test_nothing_more_is_read_when_it_is_whole(reader: Reader) -> None:
    asked: list[bytes] = []
    found, last = _again(reader, lambda block: not asked.append(block))  # type: ignore[func-returns-value]
    copies = [record.key for record in found]
    assert len(copies) == len(set(copies)) > 0
    assert last == 1
    assert asked == [hash_of("2a")]
