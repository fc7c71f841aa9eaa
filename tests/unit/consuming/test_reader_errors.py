"""An error beside records: what was read is given, and the error is told by the next call."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from blocks import Blocks, line, publish
from cardinal.consuming import watermarks
from cardinal.consuming.reader import Reader
from cardinal.errors import TopicError, UnreachableError
from cardinal.protocols.streams import Record
from cardinal.testing.memory import MemoryBroker, MemorySource
from cardinal.transports import Source


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 3))
        yield broker


@pytest.fixture
def reader(broker: MemoryBroker) -> Iterator[Reader]:
    reader = Reader(broker.url, Blocks(), wait=0.0)
    begin(reader.main)
    yield reader
    reader.close()


def begin(source: Source) -> None:
    source.assign({where: low for where, (low, _) in source.watermarks().items()})


def everything(broker: MemoryBroker, *topics: str) -> list[Record]:
    return [record for topic in topics for record in broker.records(topic)]


def until_it_fails(reader: Reader, seen: list[Record], *channels: str) -> None:
    """Partitions are looked for, and channels opened, on other threads."""
    while True:
        seen += reader.poll()
        reader.channels.follow(channels)


def test_nothing_is_lost_where_the_look_for_partitions_fails(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: MemorySource) -> None:
        raise TopicError("the topic a is gone", topic="a")

    monkeypatch.setattr(watermarks, "LOOK_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(MemorySource, "partitions", gone)
        seen: list[Record] = []
        with pytest.raises(TopicError, match="gone"):
            until_it_fails(reader, seen)
    while len(seen) < len(everything(broker, "a", "b", "block")):
        seen += reader.poll()
    assert sorted(seen) == everything(broker, "a", "b", "block")


def test_nothing_of_the_stream_is_lost_where_a_channel_fails(
    broker: MemoryBroker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("channel", partitions=1)
    reader.channels.follow(["channel"])
    poll = MemorySource.poll

    def away(source: MemorySource, limit: int, timeout: float) -> list[Record]:
        if source is not reader.main:
            raise UnreachableError("the broker is away", address="channel")
        return poll(source, limit, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(MemorySource, "poll", away)
        assert sorted(reader.poll()) == everything(broker, "a", "b", "block")
        for _ in range(2):  # what was kept, and what the channel says with nothing beside it
            with pytest.raises(UnreachableError, match="away"):
                until_it_fails(reader, [], "channel")
    assert sorted(reader.poll()) == everything(broker, "channel")
