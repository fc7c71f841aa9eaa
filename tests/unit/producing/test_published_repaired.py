"""A stream whose newest records are all of blocks that a repair sent again: its end is the chain's, not theirs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, line, publish
from cardinal.producing.survey import batch_index as found
from cardinal.producing.survey.batch_index import repairing
from cardinal.producing.survey.frontier import survey
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.testing._memory_source import MemorySource

CHAIN = line(1, 1_000)
REPAIR = repairing("host")
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
    return survey(source, Blocks(), tail=TAIL).chain[-1].number


def test_a_name_says_it_once() -> None:
    assert REPAIR == "host-repair"
    assert repairing(REPAIR) == REPAIR


@pytest.mark.parametrize("again", [range(100, 300), range(100, 900), range(1, 1_000)], ids=str)
def test_after_a_repair_the_stream_ends_where_it_ended_before(
    broker: MemoryBroker, source: MemorySource, again: range
) -> None:
    publish(broker, CHAIN)
    publish(broker, CHAIN[again.start - 1 : again.stop - 1], REPAIR)
    assert _ends(source) == 1_000


def test_a_head_that_goes_on_while_a_repair_runs_is_the_end(broker: MemoryBroker, source: MemorySource) -> None:
    """A block of it after every thirty that are sent again, so that every tail begins with some of these."""
    publish(broker, CHAIN[:900])
    for step in range(20):
        publish(broker, CHAIN[30 * step : 30 * step + 30], REPAIR)
        publish(broker, CHAIN[900 + step : 901 + step])
    assert _ends(source) == 920


def test_a_block_that_only_a_repair_has_sent_belongs_to_the_chain(broker: MemoryBroker, source: MemorySource) -> None:
    publish(broker, [*CHAIN[:995], *CHAIN[996:]])
    assert _ends(source) == 995
    publish(broker, CHAIN[995:996], REPAIR)
    assert _ends(source) == 1_000


def test_a_stream_that_is_all_of_a_repair_ends_with_it(broker: MemoryBroker, source: MemorySource) -> None:
    publish(broker, CHAIN, REPAIR)
    assert _ends(source) == 1_000


def test_of_a_repair_as_long_as_the_stream_the_newest_blocks_are_held(
    broker: MemoryBroker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "_REPAIRED_MAX", 30)
    publish(broker, CHAIN)
    publish(broker, CHAIN[:900], REPAIR)
    looked = survey(source, Blocks(), tail=TAIL)
    assert looked.chain[-1].number == 1_000
    again = {payload.hash for payload in CHAIN[:900]} & looked.batches.keys()
    assert len(again) < 900 / 2
