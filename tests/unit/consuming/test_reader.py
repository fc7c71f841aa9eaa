"""What was read is delivered, though a request that comes before, alongside or after it fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from blocks import DEADLINE, Blocks, added, line, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming import watermarks
from cardinal.consuming.channels import Channels
from cardinal.consuming.reader import Reader
from cardinal.errors import RefusedError, TopicError, UnreachableError
from cardinal.protocols.streams import Record
from cardinal.transports import Source
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource

PARTITIONS = 2


@pytest.fixture
def reader(broker: MemoryBroker) -> Iterator[Reader]:
    publish(broker, line(1, 3))
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
            raise UnreachableError("the broker is unreachable", address="channel")
        return poll(source, limit, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(MemorySource, "poll", away)
        assert sorted(reader.poll()) == everything(broker, "a", "b", "block")
        for _ in range(2):  # what was kept, and what the channel says with nothing beside it
            with pytest.raises(UnreachableError, match="unreachable"):
                until_it_fails(reader, [], "channel")
    assert sorted(reader.poll()) == everything(broker, "channel")


@pytest.mark.parametrize(("owner", "call"), [(Reader, "answered_ends"), (Channels, "follow")])
def test_nothing_is_lost_where_a_step_fails_after_it_has_read(
    monkeypatch: pytest.MonkeyPatch, owner: type, call: str
) -> None:
    """The first blocks are read; the rights are being changed just then, and the application iterates on."""
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 30))
        with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
            polled = []
            poll, asked = Reader.poll, getattr(owner, call)

            def noted(reader: Reader, seconds: float = 0.0) -> object:
                polled.append(poll(reader, seconds))
                return polled[-1]

            def ask(reader: object, *args: object) -> object:
                if polled and polled[-1]:
                    monkeypatch.undo()
                    raise RefusedError("the rights are being changed")
                return asked(reader, *args)

            monkeypatch.setattr(Reader, "poll", noted)
            monkeypatch.setattr(owner, call, ask)
            with pytest.raises(RefusedError):
                updates_until(consumer, "30a")
            assert steps(updates_until(consumer, "30a")) == added(1, 30)
