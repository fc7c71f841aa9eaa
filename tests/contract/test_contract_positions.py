"""Positions on every transport: offsets, pausing, times, what retention removed."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
from reading import block, read, read_partition, read_to_the_end
from rooms import DEADLINE, PARTITIONS, Room, from_start

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams.types import Record


def test_order_within_a_partition_is_kept_over_many_polls(room: Room) -> None:
    sink = room.sink()
    for number in range(20):
        sink.send(block(room.app, number)[0], None)
    sink.flush(DEADLINE)
    source = from_start(room.source())
    records: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(records) < room.members * (200 + 2 * PARTITIONS) and time.monotonic() < deadline:
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


def test_a_position_is_the_offset_after_the_last_record_that_was_given(room: Room) -> None:
    sink = room.sink()
    for number in range(10):
        sink.send(*block(room.app, number))
    sink.flush(DEADLINE)
    source = from_start(room.source())
    expected = source.positions()
    deadline = time.monotonic() + DEADLINE
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    while expected != ends:
        assert time.monotonic() < deadline
        for record in source.poll(9, 0.2):
            assert record.offset == expected[record.topic, record.partition]
            expected[record.topic, record.partition] += 1
        assert source.positions() == expected
    sink.close()
    source.close()


def test_poll_gives_what_is_there_at_once_and_waits_no_longer_than_told(room: Room) -> None:
    sink = room.sink()
    source = from_start(room.source())
    read_to_the_end(source)
    began = time.monotonic()
    assert source.poll(100, 0.3) == []
    assert 0.2 < time.monotonic() - began < DEADLINE
    content, seal = block(room.app, 1)
    sink.send(content, seal).result(DEADLINE)
    began = time.monotonic()
    assert source.poll(10_000, 3 * DEADLINE)
    assert time.monotonic() - began < DEADLINE
    sink.close()
    source.close()


def test_a_paused_partition_delivers_nothing_and_loses_nothing(room: Room) -> None:
    sink = room.sink()
    for number in range(30):
        sink.send(*block(room.app, number))
    sink.flush(DEADLINE)
    source = from_start(room.source())
    held = source.partitions()[::2]
    records = source.poll(5, 1.0)
    source.pause(held)
    before = {partition: at for partition, at in source.positions().items() if partition in held}
    deadline = time.monotonic() + DEADLINE
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    while not all(at == ends[p] for p, at in source.positions().items() if p not in held):
        assert time.monotonic() < deadline
        polled = source.poll(20, 0.1)
        assert not {(record.topic, record.partition) for record in polled} & set(held)
        records += polled
    assert {partition: source.positions()[partition] for partition in held} == before
    source.pause(())
    records += read_to_the_end(source)
    positions = [record[:3] for record in records]
    assert len(set(positions)) == len(positions) == room.members * (330 + 2 * PARTITIONS)
    for where in source.partitions():
        offsets = [record.offset for record in records if (record.topic, record.partition) == where]
        assert offsets == list(range(ends[where]))
    sink.close()
    source.close()


def test_partitions_paused_in_turn_lose_nothing_and_double_nothing(room: Room) -> None:
    sink = room.sink()
    for number in range(20):
        sink.send(*block(room.app, number))
    sink.flush(DEADLINE)
    source = from_start(room.source())
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    seen: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    turn = 0
    deadline = time.monotonic() + DEADLINE
    while any(at < ends[partition] for partition, at in source.positions().items()):
        assert time.monotonic() < deadline
        turn += 1
        held = [where for index, where in enumerate(source.partitions()) if (index + turn) % 3 == 0]
        source.pause(held)
        for record in source.poll(20, 0.05):
            assert (record.topic, record.partition) not in held
            seen[record.topic, record.partition].append(record.offset)
    assert seen == {where: list(range(end)) for where, end in ends.items()}
    sink.close()
    source.close()


def test_a_new_assignment_forgets_what_was_paused(room: Room) -> None:
    sink = room.sink()
    for number in range(10):
        sink.send(*block(room.app, number))
    sink.flush(DEADLINE)
    source = from_start(room.source())
    source.poll(5, 1.0)
    source.pause(source.partitions())
    from_start(source)
    read(source, room.members * 110)
    sink.close()
    source.close()


def test_reading_from_a_position_gives_exactly_what_follows_it(room: Room) -> None:
    sink = room.sink()
    content, seal = block(room.app, 1)
    sink.send(content, seal).result(DEADLINE)
    source = room.source()
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    source.assign(ends)
    assert source.poll(10, 0.1) == []
    other, other_seal = block(room.app, 2)
    sink.send(other, other_seal).result(DEADLINE)
    records = read(source, room.members * (len(other) + 1))
    assert {record.key for record in records} == {*(m.key for m in other), other_seal.key}
    source.assign({next(iter(ends)): 0})
    assert {(record.topic, record.partition) for record in source.poll(100, 2.0)} == {next(iter(ends))}
    sink.close()
    source.close()


def test_from_every_offset_of_a_partition_the_rest_of_it_follows(room: Room) -> None:
    sink = room.sink()
    for number in range(8):
        sink.send(*block(room.app, number)).result(DEADLINE)
    source = room.source()
    where = source.partitions()[-1]
    end = source.watermarks()[where][1]
    assert end > 10
    for offset in {*range(0, end, 1 + end // room.seeks), end}:
        source.assign({where: offset})
        assert [record.offset for record in read_partition(source, where, end)] == list(range(offset, end))
    sink.close()
    source.close()


def test_what_retention_removed_is_named(room: Room) -> None:
    sink = room.sink()
    for number in range(12):
        sink.send(*block(room.app, number)).result(DEADLINE)
    room.trim(room.app.other, 1, 2)
    source = room.source()
    low = source.watermarks()[room.app.other, 1][0]
    assert low >= 2
    with pytest.raises(CursorExpiredError, match="retention") as caught:
        source.assign({(room.app.other, 1): 0})
    assert caught.value.missing == {(room.app.other, 1): (0, low)}
    source.assign({(room.app.other, 1): low})
    assert source.poll(1, 2.0)[0].offset == low
    sink.close()
    source.close()


def test_a_time_is_found_in_every_partition(room: Room) -> None:
    sink = room.sink()
    sink.send(*block(room.app, 1, messages=60)).result(DEADLINE)
    source = room.source()
    marks = source.watermarks()
    assert source.offsets_for_time(0) == {partition: low for partition, (low, _) in marks.items()}
    later = int((time.time() + 3600) * 1000)
    assert source.offsets_for_time(later) == {partition: high for partition, (_, high) in marks.items()}
    records = read_to_the_end(from_start(source))
    for moment in sorted({record.timestamp_ms for record in records})[:3]:
        first = {partition: high for partition, (_, high) in marks.items()}
        for record in records:
            if record.timestamp_ms >= moment:
                where = (record.topic, record.partition)
                first[where] = min(first[where], record.offset)
        assert source.offsets_for_time(moment) == first
    sink.close()
    source.close()


def test_recent_gives_the_newest_of_the_default_topic(room: Room) -> None:
    sink = room.sink()
    for number in range(20):
        sink.send(*block(room.app, number, messages=0))
    sink.flush(DEADLINE)
    recent = sink.recent(3)
    assert {record.topic for record in recent} == {room.app.default_topic}
    by_partition = defaultdict(list)
    for record in recent:
        by_partition[record.partition].append(record.offset)
    source = room.source()
    marks = source.watermarks()
    assert by_partition == {
        number: list(range(max(0, high - 3), high))
        for (topic, number), (_, high) in marks.items()
        if topic == room.app.default_topic
    }
    sink.close()
    source.close()
