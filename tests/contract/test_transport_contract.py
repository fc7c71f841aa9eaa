"""What every transport keeps: run on the memory broker and on a real Kafka."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import CursorExpiredError, OversizeError, TopicError, TransportError
from cardinal.protocols.streams.types import Record, Routed
from cardinal.testing.memory import MemoryBroker, fnv1a_partition
from cardinal.transports import Sink, Source, open_sink, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE = 20.0
PARTITIONS = 3
LIMIT = 100_000


@dataclass(frozen=True)
class Names:
    default_topic: str
    other: str

    @property
    def all_topics(self) -> tuple[str, ...]:
        return (self.default_topic, self.other)


@dataclass
class Room:
    """A transport under test: fresh topics, and a way to remove old records."""

    url: str
    app: Names
    trim: Callable[[str, int, int], None]

    def sink(self, producer_id: str = "a") -> Sink:
        return open_sink(self.url, self.app, producer_id=producer_id)

    def source(self) -> Source:
        return open_source(self.url, self.app)


def _names() -> Names:
    stem = uuid.uuid4().hex[:12]
    return Names(f"{stem}-block", f"{stem}-logs")


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    if request.param == "memory":
        with MemoryBroker(uuid.uuid4().hex, partitions=PARTITIONS, max_message_bytes=LIMIT) as broker:
            yield Room(broker.url, _names(), broker.trim)
        return
    bootstrap = request.getfixturevalue("cardinal_broker").bootstrap
    options = f"cardinal.partitions={PARTITIONS}&cardinal.max.message.bytes={LIMIT}"

    def trim(topic: str, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition  # noqa: PLC0415 - only this case needs it
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(DEADLINE)

    yield Room(f"kafka://{bootstrap}?{options}", _names(), trim)


def _block(app: Names, name: int, messages: int = 10) -> tuple[list[Routed], Routed]:
    block_hash = name.to_bytes(32, "big")
    content = [
        Routed(
            app.other if index % 2 else app.default_topic, b"\x03" + block_hash + b"p/%d" % index, b"value %d" % index
        )
        for index in range(messages)
    ]
    return content, Routed(app.default_topic, b"\x00" + block_hash, b"batch")


def _read(source: Source, count: int) -> list[Record]:
    """Exactly ``count`` records with a key, and nothing after them."""
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        found += [record for record in source.poll(100, 0.2) if record.key]
    found += [record for record in source.poll(100, 0.05) if record.key]
    assert len(found) == count
    return found


def _from_start(source: Source) -> Source:
    source.assign({partition: low for partition, (low, _) in source.watermarks().items()})
    return source


def test_what_is_acknowledged_is_there_with_key_value_and_producer(room: Room) -> None:
    content, seal = _block(room.app, 1)
    sink = room.sink("producer-ü")
    sink.send(content, seal).result(DEADLINE)
    source = _from_start(room.source())
    records = _read(source, len(content) + 1)
    assert {(r.topic, r.key, r.value) for r in records} == {*map(tuple, content), tuple(seal)}
    assert all(("cardinal-producer", "producer-ü".encode()) in record.headers for record in records)
    assert all(abs(record.timestamp_ms / 1000 - time.time()) < 60 for record in records)
    sink.close()
    source.close()


def test_only_the_seal_is_marked_as_sealed(room: Room) -> None:
    content, seal = _block(room.app, 1)
    sink = room.sink()
    sink.send(content, None).result(DEADLINE)
    sink.send([], seal).result(DEADLINE)
    source = _from_start(room.source())
    records = _read(source, len(content) + 1)
    sealed = [record.key for record in records if "cardinal-sealed" in dict(record.headers)]
    assert sealed == [seal.key]
    sink.close()
    source.close()


def test_a_new_topic_has_a_heartbeat_in_every_partition(room: Room) -> None:
    room.sink("a").close()
    room.sink("b").close()  # and opening it again adds none
    source = _from_start(room.source())
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < 2 * PARTITIONS and time.monotonic() < deadline:
        found += source.poll(100, 0.2)
    found += source.poll(100, 0.1)
    where = [(record.topic, record.partition) for record in found]
    assert sorted(where) == list(source.partitions())
    assert len(where) == 2 * PARTITIONS
    assert {(record.key, record.value) for record in found} == {(b"", b"")}
    source.close()


def test_copies_of_a_key_meet_in_the_partition_of_its_hash(room: Room) -> None:
    content, seal = _block(room.app, 7, messages=40)
    for producer in ("a", "b"):
        sink = room.sink(producer)
        sink.send(content, seal).result(DEADLINE)
        sink.close()
    source = _from_start(room.source())
    records = _read(source, 2 * (len(content) + 1))
    places = defaultdict(set)
    for record in records:
        places[record.topic, record.key].add(record.partition)
    assert {key: {fnv1a_partition(key[1], PARTITIONS)} for key in places} == places
    assert len({record.partition for record in records}) == PARTITIONS
    source.close()


def test_order_within_a_partition_is_kept_over_many_polls(room: Room) -> None:
    sink = room.sink()
    for number in range(20):
        sink.send(_block(room.app, number)[0], None)
    sink.flush(DEADLINE)
    source = _from_start(room.source())
    records: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(records) < 200 + 2 * PARTITIONS and time.monotonic() < deadline:
        polled = source.poll(7, 0.2)
        assert len(polled) <= 7
        records += polled
    offsets = defaultdict(list)
    for record in records:
        offsets[record.topic, record.partition].append(record.offset)
    assert all(seen == list(range(len(seen))) for seen in offsets.values())
    assert source.positions() == {partition: high for partition, (_, high) in source.watermarks().items()}
    sink.close()
    source.close()


def test_poll_gives_what_is_there_at_once_and_waits_no_longer_than_told(room: Room) -> None:
    sink = room.sink()
    source = _from_start(room.source())
    deadline = time.monotonic() + DEADLINE
    heartbeats = 0
    while heartbeats < 2 * PARTITIONS:
        assert time.monotonic() < deadline
        heartbeats += len(source.poll(100, 0.2))
    began = time.monotonic()
    assert source.poll(100, 0.3) == []
    assert 0.2 < time.monotonic() - began < 3
    content, seal = _block(room.app, 1)
    sink.send(content, seal).result(DEADLINE)
    began = time.monotonic()
    assert source.poll(10_000, 10.0)
    assert time.monotonic() - began < 5
    sink.close()
    source.close()


def test_a_paused_partition_delivers_nothing_and_loses_nothing(room: Room) -> None:
    sink = room.sink()
    for number in range(30):
        sink.send(*_block(room.app, number))
    sink.flush(DEADLINE)
    source = _from_start(room.source())
    held = source.partitions()[::2]
    records = source.poll(5, 1.0)
    source.pause(held)
    before = {partition: at for partition, at in source.positions().items() if partition in held}
    deadline = time.monotonic() + DEADLINE
    while len(records) < 100 and time.monotonic() < deadline:
        polled = source.poll(20, 0.1)
        assert not {(record.topic, record.partition) for record in polled} & set(held)
        records += polled
        if all(at == source.watermarks()[p][1] for p, at in source.positions().items() if p not in held):
            break
    assert {partition: source.positions()[partition] for partition in held} == before
    source.pause(())
    while len(records) < 330 + 2 * PARTITIONS and time.monotonic() < deadline:
        records += source.poll(50, 0.2)
    positions = [record[:3] for record in records]
    assert len(set(positions)) == len(positions) == 330 + 2 * PARTITIONS
    sink.close()
    source.close()


def test_a_new_assignment_forgets_what_was_paused(room: Room) -> None:
    sink = room.sink()
    for number in range(10):
        sink.send(*_block(room.app, number))
    sink.flush(DEADLINE)
    source = _from_start(room.source())
    source.poll(5, 1.0)
    source.pause(source.partitions())
    _from_start(source)
    _read(source, 110)
    sink.close()
    source.close()


def test_reading_from_a_position_gives_exactly_what_follows_it(room: Room) -> None:
    sink = room.sink()
    content, seal = _block(room.app, 1)
    sink.send(content, seal).result(DEADLINE)
    source = room.source()
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    source.assign(ends)
    assert source.poll(10, 0.1) == []
    other, other_seal = _block(room.app, 2)
    sink.send(other, other_seal).result(DEADLINE)
    assert {record.key for record in _read(source, len(other) + 1)} == {*(m.key for m in other), other_seal.key}
    source.assign({next(iter(ends)): 0})
    assert {(record.topic, record.partition) for record in source.poll(100, 2.0)} == {next(iter(ends))}
    sink.close()
    source.close()


def test_what_retention_removed_is_named(room: Room) -> None:
    sink = room.sink()
    for number in range(5):
        sink.send(*_block(room.app, number))
    sink.flush(DEADLINE)
    room.trim(room.app.other, 1, 2)
    source = room.source()
    assert source.watermarks()[room.app.other, 1][0] == 2
    with pytest.raises(CursorExpiredError, match=r"retention|gone") as caught:
        source.assign({(room.app.other, 1): 0, (room.app.other, 0): 0})
    assert caught.value.missing == {(room.app.other, 1): (0, 2)}
    sink.close()
    source.close()


def test_a_time_is_found_in_every_partition(room: Room) -> None:
    sink = room.sink()
    sink.send(*_block(room.app, 1, messages=60)).result(DEADLINE)
    source = room.source()
    marks = source.watermarks()
    assert source.offsets_for_time(0) == {partition: low for partition, (low, _) in marks.items()}
    later = int((time.time() + 3600) * 1000)
    assert source.offsets_for_time(later) == {partition: high for partition, (_, high) in marks.items()}
    sink.close()
    source.close()


def test_recent_gives_the_newest_of_the_default_topic(room: Room) -> None:
    sink = room.sink()
    for number in range(20):
        sink.send(*_block(room.app, number, messages=0))
    sink.flush(DEADLINE)
    recent = sink.recent(3)
    assert {record.topic for record in recent} == {room.app.default_topic}
    by_partition = defaultdict(list)
    for record in recent:
        by_partition[record.partition].append(record.offset)
    source = room.source()
    for number, offsets in by_partition.items():
        high = source.watermarks()[room.app.default_topic, number][1]
        assert offsets == list(range(max(0, high - 3), high))
    sink.close()
    source.close()


def test_an_oversize_message_is_refused_before_anything_is_sent(room: Room) -> None:
    sink = room.sink()
    content, seal = _block(room.app, 1)
    content.append(Routed(room.app.other, b"\x03" + bytes(32) + b"big/one", bytes(LIMIT + 1)))
    for attempt in (lambda: sink.send(content, seal), lambda: sink.check(content)):
        with pytest.raises(OversizeError) as caught:
            attempt()
        assert caught.value.path == "big/one"
        assert caught.value.limit == LIMIT
        assert caught.value.size > LIMIT
    source = _from_start(room.source())
    sink.flush(DEADLINE)
    assert [record for record in source.poll(100, 0.3) if record.key] == []
    sink.close()
    source.close()


def test_a_message_of_just_under_the_limit_arrives_whole(room: Room) -> None:
    sink = room.sink()
    big = Routed(room.app.other, b"\x03" + bytes(32) + b"big", bytes(LIMIT - 1000))
    sink.send([big], None).result(DEADLINE)
    source = _from_start(room.source())
    assert _read(source, 1)[0].value == big.value
    sink.close()
    source.close()


def test_a_topic_of_another_stream_is_refused(room: Room) -> None:
    sink = room.sink()
    with pytest.raises(TopicError) as caught:
        sink.send([Routed("elsewhere", b"\x03" + bytes(32), b"")], None)
    assert caught.value.topic == "elsewhere"
    sink.close()


def test_a_stream_that_nobody_writes_yet_is_named(room: Room) -> None:
    with pytest.raises(TopicError, match="start a producer") as caught:
        room.source()
    assert caught.value.topic in room.app.all_topics


def test_closing_twice_is_fine_and_sending_afterwards_is_refused(room: Room) -> None:
    sink = room.sink()
    sink.send(*_block(room.app, 1)).result(DEADLINE)
    source = room.source()
    for _ in range(2):
        sink.close()
        source.close()
    with pytest.raises(TransportError, match="closed"):
        sink.send(*_block(room.app, 2))
