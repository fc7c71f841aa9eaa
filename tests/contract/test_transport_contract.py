"""Acknowledged messages, on every transport: complete, once, in order, and sealed after their block."""

from __future__ import annotations

import time
from collections import defaultdict

from reading import block, read, read_to_the_end
from rooms import DEADLINE, PARTITIONS, Room, from_start

from cardinal.protocols.streams.types import Position, Record, Routed, Row


def test_what_is_acknowledged_is_there_with_key_value_and_producer(room: Room) -> None:
    content, seal = block(room.app, 1)
    sink = room.sink("producer-ü")
    sink.send(content, seal).result(DEADLINE)
    source = from_start(room.source())
    records = read(source, room.members * (len(content) + 1))
    assert {(r.topic, r.key, r.value) for r in records} == {*map(tuple, content), tuple(seal)}
    assert all(("cardinal-producer", "producer-ü".encode()) in record.headers for record in records)
    assert all(abs(record.timestamp_ms / 1000 - time.time()) < 60 for record in records)
    sink.close()
    source.close()


def test_every_reader_gets_everything_once_with_equal_bytes_in_the_order_of_each_partition(room: Room) -> None:
    sink = room.sink()
    values = [b"", b"\0", bytes(range(256)), b"x" * 30_000]
    sent = []
    for number in range(12):
        content = [
            Routed(room.app.other, b"\x03" + number.to_bytes(32, "big") + b"\xff/%d" % index, value)
            for index, value in enumerate(values)
        ]
        sink.send(content, None).result(DEADLINE)
        sent += content
    readers = [from_start(room.source()) for _ in range(3)]
    for limit, reader in zip((1, 7, 1000), readers, strict=True):
        records = read(reader, room.members * len(sent), limit)
        assert sorted((r.key, r.value) for r in records) == sorted([(m.key, m.value) for m in sent] * room.members)
        for number in {record.partition for record in records}:
            keys = [record.key for record in records if record.partition == number]
            assert keys == [message.key for message in sent if message.key in set(keys)]
        reader.close()
    sink.close()


def test_a_reader_that_was_there_before_the_records_gets_the_same_as_one_that_comes_after(room: Room) -> None:
    sink = room.sink()
    early = from_start(room.source())
    seen: list[Record] = []
    for number in range(15):
        sink.send(*block(room.app, number))
        seen += early.poll(3, 0.01)
    sink.flush(DEADLINE)
    late = from_start(room.source())
    expected = read_to_the_end(late)
    deadline = time.monotonic() + DEADLINE
    while len(seen) < len(expected) and time.monotonic() < deadline:
        seen += early.poll(100, 0.2)
    assert len(expected) == room.members * (15 * 11 + 2 * PARTITIONS)
    assert sorted(expected) == sorted(seen)
    assert len({record[:3] for record in seen}) == len(seen)
    early.close()
    late.close()
    sink.close()


def test_rows_say_what_records_say_and_leave_out_only_whose_a_content_message_is(room: Room) -> None:
    content, seal = block(room.app, 1)
    sink = room.sink()
    sink.send(content, seal).result(DEADLINE)
    source = from_start(room.source())
    records = read_to_the_end(source)
    source.close()
    again = from_start(room.source())
    rows: list[Row] = []
    deadline = time.monotonic() + DEADLINE
    while len(rows) < len(records) and time.monotonic() < deadline:
        rows += again.poll_rows(3, 0.2)
    assert again.positions() == {where: high for where, (_, high) in again.watermarks().items()}
    told, expected = sorted(rows, key=_place), sorted(records)
    assert [row[:5] for row in told] == [record[:5] for record in expected]
    assert all(row[5] > 0 and abs(row[5] - record[5]) < 60_000 for row, record in zip(told, expected, strict=True))
    for row, record in zip(told, expected, strict=True):
        assert row[6] in ((), record.headers)
        assert record.key[:1] == b"\x03" or row[6] == record.headers
        assert record.key[:1] == b"\x03" or row == record
    sink.close()
    again.close()


def _place(row: Row) -> Position:
    return row[:3]


def test_only_the_seal_is_marked_as_sealed(room: Room) -> None:
    content, seal = block(room.app, 1)
    sink = room.sink()
    sink.send(content, None).result(DEADLINE)
    sink.send([], seal).result(DEADLINE)
    source = from_start(room.source())
    records = read(source, room.members * (len(content) + 1))
    sealed = [record.key for record in records if "cardinal-sealed" in dict(record.headers)]
    assert sealed == [seal.key] * room.members
    sink.close()
    source.close()


def test_a_seal_that_can_be_read_means_that_its_block_can_be(room: Room) -> None:
    sink = room.sink()
    watcher = from_start(room.source())
    for number in range(40):
        sink.send(*block(room.app, number))
    sealed: dict[bytes, int] = {}
    deadline = time.monotonic() + DEADLINE
    while len(sealed) < 40:
        assert time.monotonic() < deadline
        fresh = [r for r in watcher.poll(50, 0.2) if "cardinal-sealed" in dict(r.headers)]
        if fresh:
            # A second reader opened now: all of these blocks lie below its watermarks.
            reader = from_start(room.source())
            found: defaultdict[bytes, set[bytes]] = defaultdict(set)
            for record in read_to_the_end(reader):
                found[record.key[1:33]].add(record.key)
            sealed |= {record.key[1:33]: len(found[record.key[1:33]]) for record in fresh}
            reader.close()
    assert set(sealed.values()) == {11}
    watcher.close()
    sink.close()


def test_a_new_topic_has_a_heartbeat_in_every_partition(room: Room) -> None:
    room.sink("a").close()
    room.sink("b").close()  # and opening it again adds none
    source = from_start(room.source())
    found = read_to_the_end(source)
    where = [(record.topic, record.partition) for record in found]
    assert sorted(where) == list(source.partitions()) == room.everywhere()
    assert {(record.key, record.value) for record in found} == {(b"", b"")}
    source.close()


def test_copies_of_a_key_meet_in_the_partition_of_its_hash(room: Room) -> None:
    content, seal = block(room.app, 7, messages=40)
    for producer in ("a", "b"):
        sink = room.sink(producer)
        sink.send(content, seal).result(DEADLINE)
        sink.close()
    source = from_start(room.source())
    records = read(source, room.members * 2 * (len(content) + 1))
    places = defaultdict(set)
    for record in records:
        places[record.topic, record.key].add(record.partition)
    assert {key: room.places(key[1]) for key in places} == places
    assert len({record.partition for record in records}) == room.members * PARTITIONS
    source.close()
