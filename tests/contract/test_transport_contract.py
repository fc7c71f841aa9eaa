"""Contract of every transport: acknowledged messages, positions, refusals, channels, and how sinks and sources end."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from rooms import (
    DEADLINE,
    LIMIT,
    PARTITIONS,
    Room,
    block,
    ends_of,
    filled,
    from_start,
    read,
    read_partition,
    read_to_the_end,
    with_key,
)

from blocks import Blocks, hash_of, line, steps, updates_until
from blocks import block as block_of
from cardinal import BlockRef, Consumer, Producer
from cardinal.errors import CursorExpiredError, OversizeError, TopicError, TransportError
from cardinal.protocols.streams import Rejected
from cardinal.protocols.streams.types import Position, Record, Routed, Row
from cardinal.transports import Sink, parse_url

if TYPE_CHECKING:
    from cardinal.transports import Source


def test_what_is_acknowledged_is_there_with_key_value_and_producer(room: Room) -> None:
    content, seal = block(room.app, 1)
    sink = room.sink("producer-ü")
    sink.send(content[:3], None).result(DEADLINE)
    sink.send(content[3:], seal).result(DEADLINE)
    source = from_start(room.source())
    records = read(source, room.members * (len(content) + 1))
    sealed = [record.key for record in records if "cardinal-sealed" in dict(record.headers)]
    assert sealed == [seal.key] * room.members
    assert {(r.topic, r.key, r.value) for r in records} == {*map(tuple, content), tuple(seal)}
    assert all(("cardinal-producer", "producer-ü".encode()) in record.headers for record in records)
    assert all(abs(record.timestamp_ms / 1000 - time.time()) < 60 for record in records)


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
    assert again.positions() == ends_of(again)
    told, expected = sorted(rows, key=_place), sorted(records)
    assert [row[:5] for row in told] == [record[:5] for record in expected]
    assert all(row[5] > 0 and abs(row[5] - record[5]) < 60_000 for row, record in zip(told, expected, strict=True))
    for row, record in zip(told, expected, strict=True):
        assert row[6] in ((), record.headers)
        assert record.key[:1] == b"\x03" or row[6] == record.headers
        assert record.key[:1] == b"\x03" or row == record


def _place(row: Row) -> Position:
    return row[:3]


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


def test_a_new_topic_has_a_heartbeat_in_every_partition(room: Room) -> None:
    room.sink("a").close()
    room.sink("b").close()  # and opening it again adds none
    source = from_start(room.source())
    found = read_to_the_end(source)
    where = [(record.topic, record.partition) for record in found]
    assert sorted(where) == list(source.partitions()) == room.everywhere()
    assert {(record.key, record.value) for record in found} == {(b"", b"")}


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


def test_a_position_is_the_offset_after_the_last_record_that_was_given(room: Room) -> None:
    source = from_start(filled(room, 10))
    expected = source.positions()
    deadline = time.monotonic() + DEADLINE
    ends = ends_of(source)
    while expected != ends:
        assert time.monotonic() < deadline
        polled = source.poll(9, 0.2)
        assert len(polled) <= 9
        for record in polled:
            assert record.offset == expected[record.topic, record.partition]
            expected[record.topic, record.partition] += 1
        assert source.positions() == expected


def test_poll_returns_available_records_at_once_and_waits_no_longer_than_its_timeout(room: Room) -> None:
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


def test_a_paused_partition_delivers_nothing_and_loses_nothing(room: Room) -> None:
    source = from_start(filled(room, 30))
    held = source.partitions()[::2]
    records = source.poll(5, 1.0)
    source.pause(held)
    before = {partition: at for partition, at in source.positions().items() if partition in held}
    deadline = time.monotonic() + DEADLINE
    ends = ends_of(source)
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


def test_partitions_paused_in_turn_lose_nothing_and_double_nothing(room: Room) -> None:
    source = from_start(filled(room, 20))
    ends = ends_of(source)
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


def test_a_new_assignment_forgets_what_was_paused(room: Room) -> None:
    source = from_start(filled(room, 10))
    source.poll(5, 1.0)
    source.pause(source.partitions())
    from_start(source)
    read(source, room.members * 110)


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


def test_expired_records_are_named(room: Room) -> None:
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


def test_a_position_behind_the_end_is_refused_and_the_end_itself_is_not(room: Room) -> None:
    sink = room.sink()
    sink.send(*block(room.app, 1)).result(DEADLINE)
    source = room.source()
    ends = ends_of(source)
    where = max(ends)
    for beyond in (1, 1_000):
        with pytest.raises(CursorExpiredError) as caught:
            source.assign({**ends, where: ends[where] + beyond})
        assert set(caught.value.missing) == {where}
    with pytest.raises(TopicError):
        source.assign({(where[0], where[1] + 1_000_000): 0})
    source.assign(ends)
    assert source.poll(100, 0.0) == []
    sink.send(*block(room.app, 2)).result(DEADLINE)
    assert {record.key[1:33] for record in read_to_the_end(source)} == {(2).to_bytes(32, "big")}


def test_recreated_topics_are_reported_at_every_poll_until_positions_are_assigned(
    room: Room,
) -> None:
    sink = room.sink()
    sink.send(*block(room.app, 1)).result(DEADLINE)
    sink.close()
    source = from_start(room.source())
    read_to_the_end(source)
    room.forget()
    anew = room.sink()
    for _ in range(3):
        with pytest.raises((CursorExpiredError, TopicError)):
            _poll_in_vain(source)
    source.close()
    anew.send(*block(room.app, 2)).result(DEADLINE)
    source = from_start(room.source())
    assert {record.key[1:33] for record in read(source, 11 * room.members)} == {(2).to_bytes(32, "big")}


def _poll_in_vain(source: Source) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        assert source.poll(100, 0.2) == []


def test_an_oversize_message_is_refused_before_anything_is_sent(room: Room) -> None:
    sink = room.sink()
    content, _ = block(room.app, 1)
    content.append(Routed(room.app.other, b"\x03" + bytes(32) + b"big/one", bytes(LIMIT + 1)))
    for attempt in (lambda: sink.send(content, None), lambda: sink.check(content)):
        with pytest.raises(OversizeError) as caught:
            attempt()
        assert caught.value.path == "big/one"
        assert caught.value.limit == LIMIT
        assert caught.value.size > LIMIT
    sink.flush(DEADLINE)
    source = from_start(room.source())
    assert with_key(read_to_the_end(source)) == []


def test_a_message_of_just_under_the_limit_arrives_whole(room: Room) -> None:
    sink = room.sink()
    big = Routed(room.app.other, b"\x03" + bytes(32) + b"big", bytes(LIMIT - 1000))
    sink.send([big], None).result(DEADLINE)
    source = from_start(room.source())
    assert {record.value for record in read(source, room.members)} == {big.value}


def test_a_topic_of_another_stream_is_refused(any_room: Room) -> None:
    sink = any_room.sink()
    with pytest.raises(TopicError) as caught:
        sink.send([Routed("elsewhere", b"\x03" + bytes(32), b"")], None)
    assert caught.value.topic == "elsewhere"


def test_a_stream_that_nobody_writes_yet_is_named(room: Room) -> None:
    with pytest.raises(TopicError, match="start a producer") as caught:
        room.source()
    assert caught.value.topic in room.app.all_topics


def test_a_reorg_channel_has_one_partition_and_carries_messages(room: Room) -> None:
    sink: Sink = room.sink()
    assert sink.capabilities.channels
    topic = f"{room.app.default_topic}-re"
    for _ in range(2):
        sink.open_channel(topic)
    messages = [Routed(topic, b"\x03" + number.to_bytes(32, "big"), b"x") for number in range(9)]
    sink.send(messages, None).result(DEADLINE)
    source = from_start(room.source([topic]))
    assert len(source.partitions()) == room.members
    records = [record for record in read(source, room.members * len(messages)) if record.partition == 0]
    assert [record.key for record in records] == [message.key for message in messages]


def test_a_deep_reorg_is_followed_in_the_place_that_is_written_to(room: Room) -> None:
    """Of a mux that is its last member: the one that a stream moves to."""
    app = Blocks(reorg_threshold=4, default_topic=room.app.default_topic, topics={"a/": room.app.other})
    url = parse_url(room.writes or room.url)
    with Producer(url.members[-1][1] if url.members else url, app, producer_id="one") as producer:
        for payload in line(1, 12):
            producer.add(payload)
        producer.flush(DEADLINE)
        reports: list[object] = []
        with Consumer(room.url, app, idle_timeout=DEADLINE, on_event=reports.append) as consumer:
            updates_until(consumer, "12a")
            producer.reorg(BlockRef(1, hash_of("1a")), line(2, 13, "b", "1a")).result(DEADLINE)
            (switch,) = updates_until(consumer, "13b")
        assert [block.number for block in switch.removed] == [*range(12, 1, -1)]
        assert [block.number for block in switch.added] == [*range(2, 14)]
        assert not [report for report in reports if isinstance(report, Rejected)]
        producer.add(block_of("14b", "13b")).result(DEADLINE)
        with Consumer(room.url, app, start=switch.cursor, idle_timeout=DEADLINE) as consumer:
            assert steps(updates_until(consumer, "14b")) == ["+14b"]


def test_records_are_taken_over_as_they_are(any_room: Room) -> None:
    sink = any_room.sink()
    if not sink.capabilities.records:
        sink.close()
        pytest.skip("this transport's sink adds its own headers")
    headers = (("cardinal-producer", b"someone"), ("x", b""), ("x", b"\xff"))
    records = [
        Record(any_room.app.other, 7, 1_000, b"\x03" + bytes([n]) * 32, b"v%d" % n, 5_000 + n, headers)
        for n in range(20)
    ]
    sink.replay(records).result(DEADLINE)
    source = any_room.source()
    if any_room.members:
        from_start(source)
        found = read(source, any_room.members * len(records))
        assert sorted({(r.key, r.value, r.headers) for r in found}) == sorted(
            (r.key, r.value, headers) for r in records
        )


def test_closing_twice_is_fine_and_use_afterwards_is_refused(any_room: Room) -> None:
    sink = any_room.sink()
    sink.send(*block(any_room.app, 1)).result(DEADLINE)
    source = any_room.source()
    for _ in range(2):
        sink.close()
        source.close()
    for attempt in (lambda: sink.send(*block(any_room.app, 2)), lambda: sink.check(())):
        with pytest.raises(TransportError, match="closed"):
            attempt()


def test_an_empty_call_is_done_at_once(any_room: Room) -> None:
    sink = any_room.sink()
    sink.send((), None).result(DEADLINE)
    sink.flush(DEADLINE)


def test_calls_that_are_in_flight_are_finished_by_closing(any_room: Room) -> None:
    sink = any_room.sink()
    futures = [sink.send(*block(any_room.app, number)) for number in range(50)]
    sink.close()
    for future in futures:
        future.result(0)


def test_a_seal_may_be_sent_on_the_thread_that_acknowledges_the_content(any_room: Room) -> None:
    sink = any_room.sink()
    seals = []
    for number in range(10):
        content, seal = block(any_room.app, number)
        sink.send(content, None).add_done_callback(lambda _, seal=seal: seals.append(sink.send((), seal)))
    deadline = time.monotonic() + DEADLINE
    while len(seals) < 10:
        assert time.monotonic() < deadline
        sink.flush(DEADLINE)
    for future in seals:
        future.result(DEADLINE)
