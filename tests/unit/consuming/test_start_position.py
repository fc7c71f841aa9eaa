"""Start positions: the number of a block, a time, and the first block of a stream that begins later."""

from __future__ import annotations

import string
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from blocks import DEADLINE, Blocks, added, block, consumer, hash_of, line, messages, publish, steps, updates_until
from cardinal.consuming import loop, options, partition_sync
from cardinal.errors import ConfigurationError, UnreachableError
from cardinal.protocols.streams import Routed
from cardinal.protocols.streams.types import Partition
from cardinal.transports import read_range
from cardinal.transports.partitioner import fnv1a_partition
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource
from clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
def broker(clock: Clock) -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=clock) as broker:
        yield broker


@pytest.mark.parametrize("first", [2, 500, 999])
def test_it_begins_with_the_block_of_a_number(broker: MemoryBroker, first: int) -> None:
    publish(broker, line(1, 1000))
    with consumer(broker, start=first) as reading:
        updates = updates_until(reading, "1000a")
    assert steps(updates) == added(first, 1000)
    assert updates[0].first_seq == 1


def test_of_a_number_s_blocks_it_begins_with_the_one_on_the_heaviest_chain(broker: MemoryBroker) -> None:
    publish(broker, [*line(1, 12), *line(9, 14, "b", "8a", weight=1), *line(15, 20, "b", weight=1)])
    with consumer(broker, start=10) as reading:
        assert steps(updates_until(reading, "20b")) == added(10, 20, "b")


def test_it_continues_from_a_cursor_without_the_number_it_began_with(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    with consumer(broker, start=40) as reading:
        before = updates_until(reading, "60a")
    publish(broker, [*line(57, 63, "b", "56a", weight=9)])
    with consumer(broker, start=str(before[-1].cursor)) as reading:
        after = updates_until(reading, "63b")
    whole = [*before, *after]
    assert [update.first_seq for update in after] == [before[-1].seq + 1]
    assert steps(whole)[:21] == added(40, 60)
    assert steps(whole)[21:25] == ["-60a", "-59a", "-58a", "-57a"]


def test_a_number_that_the_stream_does_not_hold_is_named(broker: MemoryBroker) -> None:
    publish(broker, line(50, 90))
    with pytest.raises(ConfigurationError, match=r"does not hold block 91 yet \(its highest is 90\)"):
        consumer(broker, start=91)
    with pytest.raises(ConfigurationError, match="followed down to block 40: it is held from block 50 on"):
        consumer(broker, start=40)
    publish(broker, line(91, 400))
    with pytest.raises(ConfigurationError, match="block 0: the next one that it holds is 50; start there"):
        consumer(broker, start=0)


@pytest.fixture(scope="module", params=[1, 2])
def repaired(request: pytest.FixtureRequest) -> Iterator[MemoryBroker]:
    """The blocks from 300 to 400 came after block 1000."""
    with MemoryBroker(uuid.uuid4().hex, partitions=request.param) as broker:
        publish(broker, [*line(1, 299), *line(401, 1000)])
        publish(broker, line(300, 400))
        publish(broker, line(1001, 1100))
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("first", [300, 400, 990])
def test_a_number_is_found_on_a_stream_that_was_repaired_long_after(repaired: MemoryBroker, first: int) -> None:
    """Halving lands in the blocks that came late, or before them."""
    with consumer(repaired, start=first) as reading:
        assert steps(updates_until(reading, "1100a")) == added(first, 1100)


@pytest.fixture(scope="module")
def apart() -> Iterator[MemoryBroker]:
    """A second producer is 300 blocks behind."""
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, 600))
        for ahead, behind in zip(line(601, 1000), line(300, 699), strict=True):
            publish(broker, [ahead])
            publish(broker, [behind], "two")
        yield broker


@pytest.mark.parametrize("first", [400, 650, 990])
def test_a_number_is_found_where_a_second_producer_follows_far_behind(apart: MemoryBroker, first: int) -> None:
    with consumer(apart, start=first) as reading:
        assert steps(updates_until(reading, "1000a")) == added(first, 1000)


def test_a_number_is_found_on_a_stream_whose_old_records_are_gone(broker: MemoryBroker) -> None:
    publish(broker, line(1, 300))
    for partition in range(3):
        low, high = broker.source(["block"]).watermarks()["block", partition]
        broker.trim("block", partition, (low + high) // 2)
    with consumer(broker, start=290) as reading:
        assert steps(updates_until(reading, "300a"))[0] == "+290a"


@pytest.mark.parametrize("behind", [61, 590])
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
        assert steps(updates_until(reading, "120a")) == added(60, 120)
    moment = datetime.fromtimestamp(1_000_000.0 + 12 * 60 + behind, tz=UTC)
    with consumer(broker, start=moment) as reading:
        assert steps(updates_until(reading, "120a")) == added(60, 120)


def test_it_begins_at_a_time(broker: MemoryBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of an hour each. Negative times mean something else to a broker: the end, or the start."""
    for number in range(1, 13):
        clock.now = 1_000_000.0 + 3600 * number
        publish(broker, line(number, number))
    find = MemorySource.offsets_for_time

    def found(source: MemorySource, at: int) -> dict[Partition, int]:
        assert at >= 0
        return find(source, at)

    monkeypatch.setattr(MemorySource, "offsets_for_time", found)
    moment = datetime.fromtimestamp(1_000_000.0 + 3600 * 7, tz=UTC)
    for start, first in ((moment, 7), (datetime(1960, 1, 1, tzinfo=UTC), 1)):
        with consumer(broker, start=start) as reading:
            assert steps(updates_until(reading, "12a")) == added(first, 12)
    with pytest.raises(ConfigurationError, match="time zone"):
        consumer(broker, start=moment.replace(tzinfo=None))


def test_a_number_whose_batches_do_not_arrive_is_no_mistake_of_the_caller(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, line(1, 60))
    monkeypatch.setattr(read_range, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(MemorySource, "poll", lambda *_: [])
    with pytest.raises(UnreachableError, match="did not arrive") as failed:
        consumer(broker, start=30)
    assert failed.value.retriable


# --- the first block of a stream ---------------------------------------------------------------------------


def branch_of(first: int, then: tuple[int, ...]) -> str:
    """A branch whose first Batch lies in the last partition, and these in ones that are read before it."""

    def partition(name: str) -> int:
        return fnv1a_partition(b"\0" + hash_of(name), 3)

    return next(
        letter
        for letter in string.ascii_letters
        if partition(f"{first}{letter}") == 2 > max(partition(f"{number}{letter}") for number in then)
    )


@pytest.mark.parametrize("polled", [1, 10])
def test_it_begins_with_the_lowest_of_the_blocks_that_come_at_once(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, polled: int
) -> None:
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", polled)
    branch = branch_of(1, (2, 3))
    publish(broker, [])
    with consumer(broker, idle_timeout=0.3) as reading:
        assert not list(reading)
        assert reading.caught_up
        publish(broker, line(1, 6, branch))
        updates = []
        reading._options = replace(reading._options, idle_timeout=DEADLINE)
        for update in reading:
            updates.append(update)
            if update.added[-1].hash == hash_of(f"6{branch}"):
                break
    assert steps(updates) == added(1, 6, branch)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "begins"), [(0.0, True), (3600.0, False)])
def test_blocks_below_the_start_that_do_not_come_hold_up_the_beginning_for_a_while(
    broker: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    begins: bool,  # noqa: FBT001 - a case
) -> None:
    """Of 2a only the Batch is there, and of blocks without Batches so many that each rewind evicts them again."""
    monkeypatch.setattr(options, "_BOUNDS", replace(options._BOUNDS, open_blocks=300))
    monkeypatch.setattr(loop, "_DOUBT_SECONDS", seconds)
    monkeypatch.setattr(loop, "_QUIET_SECONDS", seconds)
    sink = broker.sink(Blocks(), producer_id="p")
    sink.send([], messages(block("2a", "1a"))[-1]).result(DEADLINE)
    publish(broker, line(4, 20), "p")
    flood = [Routed("a", b"\x03" + b"%032d" % number + b"a/x", b"") for number in range(2 * 300)]
    sink.send(flood, None).result(DEADLINE)
    with consumer(broker, policy="quorum:1", producers=("p",)) as reading:
        for _ in range(20):
            reading._step()
        assert (reading.head is not None) == begins


# --- a heavier chain that leaves below the first block ----------------------------------------------------------


@pytest.mark.parametrize("start", [10, "latest"])
def test_a_reorg_below_the_first_block_removes_it_and_begins_anew_with_the_heavier_chain(
    broker: MemoryBroker, start: int | str
) -> None:
    publish(broker, line(1, 9 if start == "latest" else 10))
    with consumer(broker, start=start) as reading:
        publish(broker, line(10 if start == "latest" else 11, 12))
        before = updates_until(reading, "12a")
        publish(broker, line(9, 14, "b", "8a", weight=1))
        after = updates_until(reading, "14b")
        publish(broker, line(15, 20, "b", weight=1))
        rest = updates_until(reading, "20b")
        assert reading.withheld is None
    assert steps(before) == added(10, 12)
    assert steps(after) == ["-12a", "-11a", "-10a", *added(10, 14, "b")]
    assert steps(rest) == added(15, 20, "b")
    whole = [*before, *after, *rest]
    assert [update.first_seq for update in whole] == [1, *(update.seq + 1 for update in whole[:-1])]
    for index, update in enumerate(whole):
        with consumer(broker, start=str(update.cursor), until="end") as resumed:
            assert _final(steps([*whole[: index + 1], *resumed])) == [f"{number}b" for number in range(10, 21)]


def _final(moves: list[str]) -> list[str]:
    chain: list[str] = []
    for move in moves:
        if move[0] == "+":
            chain.append(move[1:])
        else:
            assert chain.pop() == move.lstrip("-?")
    return chain


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "follows"), [("halt", False), ("follow", True)])
def test_no_finalized_block_is_removed_by_a_chain_below_the_first_block(
    broker: MemoryBroker, policy: str, *, follows: bool
) -> None:
    chain = line(1, 12)
    final = chain[-1].updates | {"a/finalized": b"\x0a"}
    publish(broker, [*chain[:-1], replace(chain[-1], updates=final)])
    with consumer(broker, start=10, idle_timeout=0.5, on_finality_violation=policy) as reading:
        assert steps([*reading]) == added(10, 12)
        publish(broker, line(9, 14, "b", "8a", weight=1))
        assert bool([*reading]) is follows
        assert (reading.withheld is None, reading.ready) == (follows, follows)


def test_a_reader_of_ranges_begins_anew_too(broker: MemoryBroker) -> None:
    publish(broker, line(1, 12))
    with consumer(broker, start=10, content="ranges") as reading:
        lineage = updates_until(reading, "12a")[-1].cursor.lineage
        publish(broker, line(9, 14, "b", "8a", weight=1))
        update, *more = updates_until(reading, "14b")
    assert [(block.number, block.hash) for block in update.removed] == [(n, hash_of(f"{n}a")) for n in (12, 11, 10)]
    assert [block.number for one in (update, *more) for block in one.added] == [10, 11, 12, 13, 14]
    assert update.cursor.lineage == lineage


def test_a_chain_that_waits_for_a_block_published_before_latest_is_no_health(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consumer._OVERTAKEN_SECONDS", 0.1)
    publish(broker, [*line(1, 11), *line(11, 12, "b", "10a")])
    with consumer(broker, start="latest", idle_timeout=0.5) as reading:
        publish(broker, line(12, 12))
        assert steps([*reading]) == ["+12a"]
        assert reading.ready
        publish(broker, line(13, 15, "b"))
        assert [*reading] == []
        assert not reading.ready
        assert [one.block for one in reading.awaited] == [hash_of("12b")]
