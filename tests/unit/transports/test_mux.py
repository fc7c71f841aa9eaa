"""Several transports as one: what the contract cannot say of each alone."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.errors import ConfigurationError, CursorExpiredError, DeliveryError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams import BlockRef, Rejected, ReorgAbandoned
from cardinal.testing.memory import MemoryBroker
from cardinal.transports import open_sink, open_source
from cardinal.transports.mux import MuxSource
from file_logs import APP, DEADLINE, block, sink_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Record


@pytest.fixture
def brokers() -> Iterator[tuple[MemoryBroker, MemoryBroker]]:
    with MemoryBroker(f"old-{uuid.uuid4().hex}") as old, MemoryBroker(f"new-{uuid.uuid4().hex}", partitions=3) as new:
        yield old, new


def mux(*brokers: MemoryBroker) -> str:
    return "mux:" + ",".join(broker.url for broker in brokers)


def test_a_consumer_moves_from_one_cluster_to_another_over_both(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    publish(old, line(1, 3))
    with Consumer(old.url, Blocks()) as consumer:
        updates = until(consumer, "3a")
    publish(old, line(4, 5))
    # The producer moves: the old cluster ends with block 5, the new one begins at 4 (both have 4 and 5).
    publish(new, line(4, 9))
    with Consumer(mux(old, new), Blocks(), start=updates[-1].cursor) as consumer:
        more = until(consumer, "9a")
        assert steps(more) == [f"+{number}a" for number in range(4, 10)]
        assert more[0].first_seq == updates[-1].seq + 1
    # ... and a cursor of both goes on with both, wherever their URLs stand.
    publish(new, line(10, 11))
    with Consumer(f"mux:0={old.url},64={new.url}", Blocks(), start=more[-1].cursor) as consumer:
        assert steps(until(consumer, "11a")) == ["+10a", "+11a"]


def test_a_member_that_is_left_out_too_early_is_missed_by_name(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    publish(old, line(1, 3))
    publish(new, line(3, 5))
    with Consumer(mux(old, new), Blocks()) as consumer:
        cursor = until(consumer, "5a")[-1].cursor
    with pytest.raises(CursorExpiredError, match=r"missing from a\[0\].* a mux was left out too early") as caught:
        Consumer(f"mux:64={new.url}", Blocks(), start=cursor)
    assert {number for _, number in caught.value.missing} <= set(range(64))


def test_a_member_that_was_read_to_its_end_may_be_left_out_after_the_threshold(
    brokers: tuple[MemoryBroker, MemoryBroker],
) -> None:
    """16 blocks below 21a is 5a; a cursor's floor is looked up some records before, a few blocks of this size."""
    old, new = brokers
    publish(old, line(1, 5))
    publish(new, line(6, 21))
    cursors = {}
    with Consumer(mux(old, new), Blocks()) as consumer:
        for number in range(21, 26):
            publish(new, line(number, number))
            cursors[number] = until(consumer, f"{number}a")[-1].cursor
    with pytest.raises(CursorExpiredError, match="a mux was left out too early"):  # 16 blocks back is block 5
        Consumer(f"mux:64={new.url}", Blocks(), start=cursors[21])
    publish(new, line(25, 27, "b", below="24a", weight=1))
    for cursor in (cursors[25], str(cursors[25])):
        with Consumer(f"mux:64={new.url}", Blocks(), start=cursor) as consumer:
            more = until(consumer, "27b")
        assert steps(more) == ["-25a", "+25b", "+26b", "+27b"]
        assert more[0].first_seq == cursors[25].seq + 1


def test_the_numbers_of_a_member_that_stays_are_its_own(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    """Its URL alone has other numbers: refused by the names of the partitions that are not there."""
    old, new = brokers
    publish(old, line(1, 5))
    publish(new, line(4, 30))
    with Consumer(mux(old, new), Blocks()) as consumer:
        cursor = until(consumer, "30a")[-1].cursor
    with pytest.raises(CursorExpiredError, match="missing from"):
        Consumer(new.url, Blocks(), start=cursor)


def test_a_reorg_whose_sides_lie_in_different_clusters_is_one_update(
    brokers: tuple[MemoryBroker, MemoryBroker],
) -> None:
    old, new = brokers
    publish(old, line(1, 4))
    publish(new, line(3, 5, "b", below="2a", weight=1))
    with Consumer(mux(old, new), Blocks()) as consumer:
        found = steps(until(consumer, "5b"))
    assert found[-1] == "+5b"
    chain = []
    for step in found:
        if step[0] == "+":
            chain.append(step[1:])
        else:
            assert chain.pop() == step[1:]
    assert chain == ["1a", "2a", "3b", "4b", "5b"]


def test_a_producer_writes_both_and_each_alone_has_the_chain(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    with Producer(mux(*brokers), Blocks(), producer_id="one") as producer:
        for payload in line(1, 6):
            producer.add(payload)
        producer.flush(DEADLINE)
    for broker in brokers:
        with Consumer(broker.url, Blocks()) as consumer:
            assert steps(until(consumer, "6a")) == [f"+{number}a" for number in range(1, 7)]


def test_a_deep_reorg_is_one_update_wherever_it_is_written(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    """By a producer that writes both members, by one of the second one, and with the first one left out."""
    app = Blocks(reorg_threshold=4)
    old, new = brokers
    open_sink(old.url, app, producer_id="before").close()
    writers = [new.url, mux(old, new), new.url]
    readers = [mux(old, new), mux(old, new), f"mux:64={new.url}"]
    branch, length = "a", 12
    for number, (writes, reads) in enumerate(zip(writers, readers, strict=True)):
        reports: list[object] = []
        with (
            Producer(writes, app, producer_id=f"p{number}") as producer,
            Consumer(reads, app, on_event=reports.append, idle_timeout=DEADLINE) as consumer,
        ):
            if not number:
                publish(new, line(1, length), app=app)
            until(consumer, f"{length}{branch}")
            branch, length = "bcd"[number], length + 1
            producer.reorg(BlockRef(1, hash_of("1a")), line(2, length, branch, "1a")).result(DEADLINE)
            (switch,) = until(consumer, f"{length}{branch}")
            assert (len(switch.removed), len(switch.added)) == (length - 2, length - 1)
        assert not [report for report in reports if isinstance(report, Rejected | ReorgAbandoned)]


def test_a_call_fails_when_one_member_fails_and_may_be_sent_again(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    sink = open_sink(mux(old, new), Blocks(), producer_id="one")
    new.fail(lambda message: message.topic == "a")
    with Producer(mux(old, new), Blocks(), producer_id="two") as producer:
        payload = line(1, 1)[0]
        with pytest.raises(DeliveryError):
            producer.add(payload).result(DEADLINE)
        new.fail(None)
        producer.add(payload).result(DEADLINE)
    with Consumer(new.url, Blocks()) as consumer:
        assert steps(until(consumer, "1a")) == ["+1a"]
    sink.close()


def test_a_call_is_acknowledged_when_the_last_member_has_acknowledged_it(
    brokers: tuple[MemoryBroker, MemoryBroker],
) -> None:
    old, new = brokers
    sink = open_sink(mux(old, new), APP, producer_id="one")
    new.hold()
    future: Future[None] = sink.send(block(1)[0], None)
    with pytest.raises(TimeoutError):
        future.result(0.05)
    new.release()
    future.result(DEADLINE)
    sink.close()


def test_topics_that_a_member_gets_later_become_partitions(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    source = open_source(mux(old, new), Blocks())
    assert {number for _, number in source.partitions()} == {0, 1}
    publish(new, line(3, 4))
    assert {number for _, number in source.partitions()} == {0, 1, 64, 65, 66}
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while {hash_of(f"{number}a") for number in range(1, 5)} - {record.key[1:33] for record in found}:
        assert time.monotonic() < deadline
        found += source.poll(100, 0.1)
    source.close()


def test_a_topic_that_no_member_has_is_named(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    with pytest.raises(TopicError, match="in no member of the mux"):
        open_source(mux(*brokers), Blocks())


def test_positions_that_are_gone_are_named_as_they_are_shown(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    new.trim("block", 1, 1)
    source = open_source(mux(old, new), Blocks())
    with pytest.raises(CursorExpiredError, match=new.url) as caught:
        source.assign({("block", 0): 0, ("block", 65): 0})
    assert list(caught.value.missing) == [("block", 65)]
    source.close()


def test_nothing_that_a_member_gave_is_lost_where_another_one_fails(
    brokers: tuple[MemoryBroker, MemoryBroker],
) -> None:
    """In each round another member is asked first; what the one gave is returned before the other's error is raised."""
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    source = open_source(mux(old, new), Blocks())
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    new.trim("block", 1, 1)
    found: list[Record] = []
    errors: list[str] = []
    for _ in range(4):
        try:
            found += source.poll(1_000, 0.0)
        except CursorExpiredError as error:
            errors += [f"{topic}:{number}" for topic, number in error.missing]
    assert sorted(found) == old.records()
    assert set(errors) == {"block:65"}
    assert len(errors) == 3
    source.close()


def test_an_error_of_positions_that_are_left_is_not_told(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    for broker in brokers:
        publish(broker, line(1, 2))
    source = open_source(mux(old, new), Blocks())
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    new.trim("block", 1, 1)
    with pytest.raises(CursorExpiredError):
        source.poll(1_000, 0.0)
    assert sorted(source.poll(1_000, 0.0)) == old.records()
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    assert len(source.poll(1_000, 0.0)) == len(old.records() + new.records())
    source.close()


def test_partitions_that_would_meet_are_refused(brokers: tuple[MemoryBroker, MemoryBroker]) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    with pytest.raises(ConfigurationError, match="higher number"):
        open_source(f"mux:0={new.url},2={old.url}", Blocks()).partitions()
    open_source(f"mux:0={old.url},2={new.url}", Blocks()).partitions()


def test_no_member_is_left_behind_by_a_busy_one(tmp_path: Path) -> None:
    busy, quiet = tmp_path / "busy", tmp_path / "quiet"
    for folder, count in ((busy, 200), (quiet, 1)):
        sink = sink_of(folder, "fsync=never")
        for number in range(count):
            sink.send(*block(number)).result(DEADLINE)
        sink.close()
    source = open_source(f"mux:file://{busy},file://{quiet}", APP)
    assert isinstance(source, MuxSource)
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    first = source.poll(20, 1.0) + source.poll(20, 1.0)
    assert {record.partition >= 64 for record in first} == {True, False}
    source.close()


def test_null_members_read_nothing_and_swallow_everything(tmp_path: Path) -> None:
    url = f"mux:null://,file://{tmp_path}"
    sink = open_sink(url, APP, producer_id="one")
    sink.send(*block(1)).result(DEADLINE)
    sink.close()
    source = open_source(url, APP)
    assert {number for _, number in source.partitions()} == {64, 65}
    source.close()
    empty = open_source("mux:null://,null://", APP)
    empty.assign({})
    assert (empty.partitions(), empty.poll(10, 0.02)) == ((), [])
    empty.close()
