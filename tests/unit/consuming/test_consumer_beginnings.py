from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, messages, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.errors import ConfigurationError
from cardinal.testing.memory import MemoryBroker, MemorySource
from clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams.types import Partition


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
def broker(clock: Clock) -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=clock) as broker:
        yield broker


def consumer(broker: MemoryBroker, **options: object) -> Consumer:
    return Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def timed(broker: MemoryBroker, clock: Clock, first: int, last: int) -> None:
    """Blocks of an hour each."""
    for number in range(first, last + 1):
        clock.now = 1_000_000.0 + 3600 * number
        publish(broker, line(number, number))


@pytest.mark.parametrize("first", [2, 3, 500, 999])
def test_it_begins_with_the_block_of_a_number(broker: MemoryBroker, first: int) -> None:
    publish(broker, line(1, 1000))
    with consumer(broker, start=first) as reading:
        updates = until(reading, "1000a")
    assert steps(updates) == [f"+{number}a" for number in range(first, 1001)]
    assert updates[0].first_seq == 1


def test_of_a_number_s_blocks_it_begins_with_the_one_on_the_heaviest_chain(broker: MemoryBroker) -> None:
    publish(broker, [*line(1, 12), *line(9, 14, "b", "8a", weight=1), *line(15, 20, "b", weight=1)])
    with consumer(broker, start=10) as reading:
        assert steps(until(reading, "20b")) == [f"+{number}b" for number in range(10, 21)]


def test_it_goes_on_from_a_cursor_without_the_number_it_began_with(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    with consumer(broker, start=40) as reading:
        before = until(reading, "60a")
    publish(broker, [*line(57, 63, "b", "56a", weight=9)])
    with consumer(broker, start=str(before[-1].cursor)) as reading:
        after = until(reading, "63b")
    whole = [*before, *after]
    assert [update.first_seq for update in after] == [before[-1].seq + 1]
    assert steps(whole)[:21] == [f"+{number}a" for number in range(40, 61)]
    assert steps(whole)[21:25] == ["-60a", "-59a", "-58a", "-57a"]


def test_the_first_block_of_the_stream_is_begun_with_by_its_parent(broker: MemoryBroker) -> None:
    publish(broker, line(5, 9))
    with consumer(broker, start=5) as reading:
        assert steps(until(reading, "9a")) == [f"+{number}a" for number in range(5, 10)]


def test_a_number_that_the_stream_does_not_hold_is_named(broker: MemoryBroker) -> None:
    publish(broker, line(50, 90))
    with pytest.raises(ConfigurationError, match=r"does not hold block 91 yet \(its highest is 90\)"):
        consumer(broker, start=91)
    with pytest.raises(ConfigurationError, match="followed down to block 40: it is held from block 50 on"):
        consumer(broker, start=40)


@pytest.fixture(scope="module", params=[1, 2])
def repaired(request: pytest.FixtureRequest) -> Iterator[MemoryBroker]:
    """The blocks from 300 to 400 came after block 1000."""
    with MemoryBroker(uuid.uuid4().hex, partitions=request.param) as broker:
        publish(broker, [*line(1, 299), *line(401, 1000)])
        publish(broker, line(300, 400))
        publish(broker, line(1001, 1100))
        yield broker


@pytest.mark.parametrize("first", [300, 350, 400, 900, 950, 990, 995, 1000])
def test_a_number_is_found_on_a_stream_that_was_repaired_long_after(repaired: MemoryBroker, first: int) -> None:
    """Halving lands in the blocks that came late, or before them."""
    with consumer(repaired, start=first) as reading:
        assert steps(until(reading, "1100a")) == [f"+{number}a" for number in range(first, 1101)]


@pytest.fixture(scope="module")
def apart() -> Iterator[MemoryBroker]:
    """A second producer is 300 blocks behind."""
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, 600))
        for ahead, behind in zip(line(601, 1000), line(300, 699), strict=True):
            publish(broker, [ahead])
            publish(broker, [behind], "two")
        yield broker


@pytest.mark.parametrize("first", [350, 400, 500, 650, 700, 800, 900, 990])
def test_a_number_is_found_where_a_second_producer_follows_far_behind(apart: MemoryBroker, first: int) -> None:
    with consumer(apart, start=first) as reading:
        assert steps(until(reading, "1000a")) == [f"+{number}a" for number in range(first, 1001)]


def test_a_number_is_found_on_a_stream_whose_old_records_are_gone(broker: MemoryBroker) -> None:
    publish(broker, line(1, 300))
    for partition in range(3):
        low, high = broker.source(["block"]).watermarks()["block", partition]
        broker.trim("block", partition, (low + high) // 2)
    with consumer(broker, start=290) as reading:
        assert steps(until(reading, "300a"))[0] == "+290a"


def test_it_begins_at_a_time(broker: MemoryBroker, clock: Clock) -> None:
    timed(broker, clock, 1, 12)
    moment = datetime.fromtimestamp(1_000_000.0 + 3600 * 7, tz=UTC)
    with consumer(broker, start=moment) as reading:
        assert steps(until(reading, "12a")) == [f"+{number}a" for number in range(7, 13)]
    with pytest.raises(ConfigurationError, match="time zone"):
        consumer(broker, start=moment.replace(tzinfo=None))


def test_it_is_ready_when_everything_that_was_there_is_delivered_not_merely_read(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with consumer(broker) as reading:
        assert not reading.ready
        seen = iter(reading)
        update = next(seen)
        while update.added[-1].hash != hash_of("5a"):
            assert not reading.ready
            update = next(seen)
        assert not reading.ready  # nobody has said that the last one was taken
        publish(broker, [block("6a", "5a")])
        assert steps([next(seen)]) == ["+6a"]
        assert reading.caught_up


@pytest.mark.parametrize("behind", [61, 130, 590])
def test_the_rest_of_a_block_may_lie_minutes_before_its_batch(
    broker: MemoryBroker, clock: Clock, behind: float
) -> None:
    """The seal was held for so long, and whoever begins with the Batch begins with the rest as well."""
    sink = broker.sink(Blocks(), producer_id="one")
    written = [(12.0 * one.number + later * behind, one, later) for one in line(1, 120) for later in (0, 1)]
    for after, payload, later in sorted(written, key=lambda one: one[0]):
        clock.now = 1_000_000.0 + after
        *rest, batch = messages(payload)
        sink.send([batch] if later else rest, None).result(DEADLINE)
    with consumer(broker, start=60) as reading:
        assert steps(until(reading, "120a")) == [f"+{number}a" for number in range(60, 121)]
    moment = datetime.fromtimestamp(1_000_000.0 + 12 * 60 + behind, tz=UTC)
    with consumer(broker, start=moment) as reading:
        assert steps(until(reading, "120a")) == [f"+{number}a" for number in range(60, 121)]


def test_a_time_before_1970_is_the_beginning(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative times mean something else to a broker: the end, or the start."""
    publish(broker, line(1, 5))
    asked: list[int] = []
    find = MemorySource.offsets_for_time

    def noted(source: MemorySource, moment: int) -> dict[Partition, int]:
        asked.append(moment)
        return find(source, moment)

    monkeypatch.setattr(MemorySource, "offsets_for_time", noted)
    with consumer(broker, start=datetime(1960, 1, 1, tzinfo=UTC)) as reading:
        assert steps(until(reading, "5a")) == [f"+{number}a" for number in range(1, 6)]
    assert asked == [0, 0]
