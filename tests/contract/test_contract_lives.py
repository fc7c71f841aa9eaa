"""Channels, copies, and how sinks and sources end, on every transport."""

from __future__ import annotations

import time

import pytest
from reading import block, read
from rooms import DEADLINE, Room, from_start

from blocks import Blocks, hash_of, line, steps, until
from blocks import block as block_of
from cardinal import BlockRef, Consumer, Producer
from cardinal.errors import TransportError
from cardinal.protocols.streams import Rejected
from cardinal.protocols.streams.types import Record, Routed
from cardinal.transports import Sink, open_source, parse_url


def test_a_reorg_channel_has_one_partition_and_carries_messages(room: Room) -> None:
    sink: Sink = room.sink()
    assert sink.capabilities.channels
    topic = f"{room.app.default_topic}-re"
    for _ in range(2):
        sink.open_channel(topic)
    messages = [Routed(topic, b"\x03" + number.to_bytes(32, "big"), b"x") for number in range(9)]
    sink.send(messages, None).result(DEADLINE)
    source = from_start(open_source(room.url, room.app, topics=[topic]))
    assert len(source.partitions()) == room.members
    records = [record for record in read(source, room.members * len(messages)) if record.partition == 0]
    assert [record.key for record in records] == [message.key for message in messages]
    sink.close()
    source.close()


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
            until(consumer, "12a")
            producer.reorg(BlockRef(1, hash_of("1a")), line(2, 13, "b", "1a")).result(DEADLINE)
            (switch,) = until(consumer, "13b")
        assert [block.number for block in switch.removed] == [*range(12, 1, -1)]
        assert [block.number for block in switch.added] == [*range(2, 14)]
        assert not [report for report in reports if isinstance(report, Rejected)]
        producer.add(block_of("14b", "13b")).result(DEADLINE)
        with Consumer(room.url, app, start=switch.cursor, idle_timeout=DEADLINE) as consumer:
            assert steps(until(consumer, "14b")) == ["+14b"]


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
    sink.close()
    source.close()


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
    sink.close()


def test_calls_that_are_under_way_are_finished_by_closing(any_room: Room) -> None:
    sink = any_room.sink()
    futures = [sink.send(*block(any_room.app, number)) for number in range(50)]
    sink.close()
    for future in futures:
        future.result(0)


def test_a_seal_may_be_sent_when_the_content_is_acknowledged_on_the_thread_that_says_so(any_room: Room) -> None:
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
    sink.close()
