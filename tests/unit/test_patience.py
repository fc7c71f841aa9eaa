"""Where a stream begins that somebody reads from its start, beside a producer and through partitions that run apart."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.protocols.streams import BlockRef, ChainUpdate, Follower, FollowerSettings, Orderer, Routed, split
from cardinal.protocols.streams.ordering.patience import Patience
from cardinal.protocols.streams.ordering.start import Candidate
from cardinal.protocols.streams.types import Record
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Payload

THRESHOLD = 16
HASH = b"\x01" * 32
AT = {("t", 0): 100, ("t", 1): 50}


def candidate(length: int, number: int = 50, lowest: int = 50) -> Candidate:
    return Candidate(BlockRef(number, HASH), length, lowest)


def patience(published: int = 1_000, **times: int) -> Patience:
    made = Patience(THRESHOLD)
    made.completed(HASH, published)
    made.read(Record("t", int(name[1:]), 0, b"", b"", time) for name, time in times.items())
    return made


def test_without_doubt_it_begins_when_it_has_caught_up() -> None:
    assert patience().begins(candidate(1), None, AT, {}, caught_up=True)
    assert patience().begins(candidate(1), 50, AT, {}, caught_up=True)
    assert not patience().begins(candidate(THRESHOLD), None, AT, {}, caught_up=False)


@pytest.mark.parametrize(("lowest", "lowest_open"), [(49, None), (50, 49), (3, 7)])
def test_blocks_below_that_are_not_linked_leave_a_doubt(lowest: int, lowest_open: int | None) -> None:
    made = patience()
    assert not made.begins(candidate(60, lowest=lowest), lowest_open, AT, {}, caught_up=True)
    made.exhausted = True
    assert made.begins(candidate(60, lowest=lowest), lowest_open, AT, {}, caught_up=True)
    assert not made.begins(candidate(60, lowest=lowest), lowest_open, AT, {}, caught_up=False)


def test_a_long_chain_begins_when_every_partition_was_read_past_its_first_batch() -> None:
    for times, begins in [
        ({"p0": 3_000, "p1": 3_000}, True),
        ({"p0": 3_000, "p1": 2_999}, False),
        ({"p0": 3_000}, False),
    ]:
        made = patience(1_000, **times)
        assert made.begins(candidate(THRESHOLD + 1), None, AT, {}, caught_up=False) is begins
        assert not made.begins(candidate(THRESHOLD), None, AT, {}, caught_up=False)
    # a partition that has nothing more holds nothing up
    made = patience(1_000, p0=3_000)
    assert made.begins(candidate(THRESHOLD + 1), None, AT, {("t", 1): 50}, caught_up=False)
    assert not made.begins(candidate(THRESHOLD + 1), None, AT, {("t", 1): 51}, caught_up=False)


def test_a_doubt_is_put_aside_when_a_chain_is_several_thresholds_long() -> None:
    made = patience(1_000, p0=9_000, p1=9_000)
    assert not made.begins(candidate(4 * THRESHOLD, lowest=3), None, AT, {}, caught_up=False)
    assert made.begins(candidate(4 * THRESHOLD + 1, lowest=3), None, AT, {}, caught_up=False)


def test_no_length_of_a_chain_ends_the_wait_for_dropped_blocks_but_the_lack_of_room_does() -> None:
    made = patience(1_000, p0=9_000, p1=9_000)
    long = candidate(100 * THRESHOLD)
    assert not made.begins(long, None, AT, {}, caught_up=True, dropped=True)
    assert not made.begins(candidate(4 * THRESHOLD), None, AT, {}, caught_up=False, crowded=True, dropped=True)
    assert made.begins(long, None, AT, {}, caught_up=False, crowded=True, dropped=True)
    made.exhausted = True
    assert made.begins(long, None, AT, {}, caught_up=True, dropped=True)


def test_a_long_chain_begins_when_there_is_no_room_to_wait_for_more() -> None:
    assert not patience().begins(candidate(THRESHOLD + 1), None, AT, {}, caught_up=False)
    assert patience().begins(candidate(THRESHOLD + 1), None, AT, {}, caught_up=False, crowded=True)
    assert not patience().begins(candidate(THRESHOLD), None, AT, {}, caught_up=False, crowded=True)


@pytest.mark.parametrize("bound", [{"max_waiting": 100}, {"max_bytes": 600_000}])
def test_more_than_there_is_room_for_is_delivered_without_dropping_any(bound: dict[str, int]) -> None:
    """400 blocks that were written at once, with room for 100 of them."""
    app = Blocks()
    settings = FollowerSettings(
        app.name, app.chain, prefixes=tuple(app.topics), reorg_threshold=16, patient=True, **bound
    )
    follower = Follower(settings)
    records = []
    for payload in line(1, 400):
        for message in split(replace(payload, updates={"k": bytes(1_000)}), app.topics, app.default_topic):
            records.append(Record(message.topic, 0, len(records), message.key, message.value, 1_000))
    out = []
    for at in range(0, len(records), 20):
        out += follower.receive(records[at : at + 20])
        read = {(app.default_topic, 0): min(at + 20, len(records))}
        out += follower.progress(read, {(app.default_topic, 0): len(records)})
    assert [type(item) for item in out if not isinstance(item, ChainUpdate)] == []
    assert [block.number for item in out if isinstance(item, ChainUpdate) for block in item.added] == [*range(1, 401)]


def test_a_follower_that_is_not_patient_has_no_doubts() -> None:
    follower = Follower(FollowerSettings("test", "test:1"))
    follower.settle()
    assert not follower.in_doubt


def test_nothing_begins_with_a_block_that_is_not_held() -> None:
    assert Orderer(patient=True).begin(BlockRef(1, HASH)) == []


# --- through a consumer ------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


def consumer(broker: MemoryBroker, **options: object) -> Consumer:
    return Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def send(broker: MemoryBroker, blocks: list[Payload], *, batches: bool = True, others: bool = True) -> None:
    routed: list[Routed] = []
    for one in blocks:
        *rest, batch = split(one, Blocks().topics, "block")
        routed += rest * others + [batch] * batches
    broker.sink(Blocks(), producer_id="one").send(routed, None).result(DEADLINE)


def read(reading: Consumer, times: int) -> None:
    for _ in range(times):
        reading._step()


def test_it_waits_for_blocks_whose_batches_come_after_those_of_their_children(broker: MemoryBroker) -> None:
    send(broker, line(0, 0))
    send(broker, line(1, 20), batches=False)
    send(broker, line(21, 30))
    with consumer(broker) as reading:
        read(reading, 20)
        assert reading.head is None
        send(broker, line(1, 20), others=False)
        assert steps(until(reading, "30a")) == [f"+{number}a" for number in range(31)]


def test_it_begins_above_a_hole_when_nothing_comes_any_more(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consuming.loop._SETTLE_SECONDS", 0.3)
    send(broker, [*line(0, 4), *line(9, 14)])
    with consumer(broker) as reading:
        assert steps(until(reading, "14a")) == [f"+{number}a" for number in range(9, 15)]


def test_it_begins_above_a_hole_although_more_comes_all_the_time(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consuming.loop._DOUBT_SECONDS", 0.3)
    send(broker, [*line(0, 4), *line(9, 14)])
    number = 14
    with consumer(broker) as reading:
        while reading.head is None:
            number += 1
            assert number < 1_000
            send(broker, line(number, number))
            read(reading, 1)
        assert steps([next(iter(reading))])[0] == "+9a"


@pytest.mark.parametrize("ahead", [20, 60])
def test_partitions_that_are_read_far_apart_lose_no_block(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """The default topic's second partition is not read before the first is many blocks ahead."""
    monkeypatch.setattr("cardinal.consuming.pacing.POLL_RECORDS", 3 * ahead)
    publish(broker, line(0, 2 * ahead))
    with consumer(broker) as reading:
        assert steps(until(reading, f"{2 * ahead}a")) == [f"+{number}a" for number in range(2 * ahead + 1)]


def test_at_the_tail_a_block_that_is_cut_in_its_middle_holds_nothing_up(broker: MemoryBroker) -> None:
    publish(broker, line(0, 3))
    send(broker, line(4, 4), batches=False)
    with consumer(broker, start="tail") as reading:
        send(broker, line(4, 4), others=False)
        send(broker, line(5, 6))
        assert steps(until(reading, "6a")) == ["+5a", "+6a"]
    assert hash_of("4a") == block("4a", "3a").hash
