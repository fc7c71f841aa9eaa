"""A stream whose newest records are all of blocks that were sent again: its end is the chain's, not theirs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, line, publish
from cardinal.errors import CursorExpiredError
from cardinal.producing.before import Before
from cardinal.producing.published import published_chain
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal.testing._memory_source import MemorySource

CHAIN = line(1, 3_000)
TAIL = 20


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=4) as broker:
        yield broker


@pytest.fixture
def source(broker: MemoryBroker) -> MemorySource:
    broker.sink(Blocks(), producer_id="one")
    return broker.source(Blocks().all_topics)


def _ends(source: MemorySource) -> int:
    return published_chain(source, Blocks(), tail=TAIL)[-1].number


@pytest.mark.parametrize("again", [range(100, 300), range(100, 2_000), range(1, 1_400)])
def test_after_a_repair_the_stream_ends_where_it_ended_before(
    broker: MemoryBroker, source: MemorySource, again: range
) -> None:
    publish(broker, CHAIN)
    publish(broker, CHAIN[again.start - 1 : again.stop - 1], "repair")
    assert _ends(source) == 3_000


def test_a_head_that_goes_on_while_a_repair_runs_is_the_end(broker: MemoryBroker, source: MemorySource) -> None:
    """A block of it after every fifty that are sent again, so that every tail begins with some of these."""
    publish(broker, CHAIN[:2_900])
    for step in range(30):
        publish(broker, CHAIN[50 * step : 50 * step + 50], "repair")
        publish(broker, CHAIN[2_900 + step : 2_901 + step])
    assert _ends(source) == 2_930


def test_where_retention_took_most_of_the_chain_its_end_is_found_as_well(
    broker: MemoryBroker, source: MemorySource
) -> None:
    publish(broker, CHAIN)
    publish(broker, CHAIN[100:900], "repair")
    for where, (_, high) in source.watermarks().items():
        if where[0] == "block":
            broker.trim(*where, high - 240)
    assert _ends(source) == 3_000


def test_pings_in_front_of_a_repair_hide_nothing(broker: MemoryBroker, source: MemorySource) -> None:
    publish(broker, CHAIN)
    publish(broker, CHAIN[100:900], "repair")
    for number in range(4):
        for _ in range(200):
            broker._append("block", number, b"\x06".ljust(33, b"p"), b"", ())
    assert _ends(source) == 3_000


def test_blocks_above_a_hole_are_not_taken_for_the_end(broker: MemoryBroker, source: MemorySource) -> None:
    publish(broker, CHAIN[:2_990] + CHAIN[2_991:])
    assert _ends(source) == 2_990


def test_so_many_looks_as_the_logarithm_of_what_is_kept(
    broker: MemoryBroker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, CHAIN)
    assigned: list[Mapping[Partition, int]] = []
    assign = source.assign

    def look(positions: Mapping[Partition, int]) -> None:
        assigned.append(positions)
        assign(positions)

    monkeypatch.setattr(source, "assign", look)
    assert _ends(source) == 3_000
    kept = max(high - low for low, high in source.watermarks().values())
    looks, tails = assigned[:-1], assigned[-1]
    distances = (kept // TAIL).bit_length() + 1
    assert 2 <= len(looks) <= (2 * distances + 3) // 4, "four partitions share them"
    assert all(tails[where] > at for look in looks for where, at in look.items())


def test_what_retention_takes_meanwhile_says_nothing(
    broker: MemoryBroker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, CHAIN)
    publish(broker, CHAIN[100:900], "repair")
    marks = {where: ends for where, ends in source.watermarks().items() if where[0] == "block"}
    assign = source.assign
    expired: list[CursorExpiredError] = []

    def late(positions: Mapping[Partition, int]) -> None:
        try:
            assign(positions)
        except CursorExpiredError as error:
            expired.append(error)
            raise

    monkeypatch.setattr(source, "assign", late)
    for where, (low, _) in marks.items():
        broker.trim(*where, low + 1)
    before = Before(source, marks, TAIL)
    assert expired
    assert before.number(dict.fromkeys(marks, TAIL)) > 2_000
