"""A stream whose content stays on the topics has the same chain as one that takes it, over seeded schedules.

The planner's consumer runs beside the usual one, over forks, lies, lost messages, several Batches of a hash, restarts
from any cursor: every update is equal, to its cursor. And every block's ranges hold exactly what the other delivered.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cardinal.protocols.streams import ChainUpdate, Follower, Payload
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly, digested
from cardinal.protocols.streams.following.follower import Step, assembler_of
from cardinal_spark.source.tasks import assembled
from examples import examples
from model import schedule
from model.scenario import make_scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams import Cursor, Record
    from cardinal.protocols.streams.following.follower import FollowerSettings
    from cardinal.protocols.streams.types import Partition, Routed, Row
    from cardinal_spark.source.options import StreamSpec

SEEDS = examples(310)
"""Two thirds of them are about one producer and enough memory, and are compared."""
PIECE = 31


class Both(Follower):
    """A follower with the planner's beside it."""

    def __init__(self, settings: FollowerSettings, cursor: Cursor | None = None) -> None:
        super().__init__(settings, cursor)
        self.planner = Follower(replace(settings, contents=Contents.DIGESTS), cursor)

    def begin_at(self, marks: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        self.planner.begin_at(marks)
        return super().begin_at(marks)

    def step(
        self,
        records: Iterable[Row],
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None = None,
        *,
        waited: bool = False,
        may_abandon: bool = True,
    ) -> Step:
        given = list(records)
        planned = self.planner.step(digested(given), positions, ends, waited=waited, may_abandon=may_abandon)
        return self._equal(super().step(given, positions, ends, waited=waited, may_abandon=may_abandon), planned)

    def supply(self, messages: Iterable[Routed]) -> Step:
        given = list(messages)
        return self._equal(super().supply(given), self.planner.supply(given))

    def _equal(self, step: Step, planned: Step) -> Step:
        for ours, theirs in zip(step.updates, planned.updates, strict=True):
            assert hashes(theirs) == hashes(ours)
            assert str(theirs.cursor) == str(ours.cursor)
            PAIRS.append((ours, theirs))
        assert (planned.requests.watermarks, planned.requests.rewind) == (
            step.requests.watermarks,
            step.requests.rewind,
        )
        return step


PAIRS: list[tuple[ChainUpdate, ChainUpdate]] = []


def hashes(update: ChainUpdate) -> tuple[int, list[bytes], list[bytes]]:
    return update.seq, [block.hash for block in update.removed], [block.hash for block in update.added]


@pytest.mark.parametrize("piece", range(SEEDS // PIECE))
def test_the_planner_has_the_consumers_chain(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "Follower", Both)
    compared = 0
    for seed in range(piece * PIECE, piece * PIECE + PIECE):
        scenario = make_scenario(seed)
        if scenario.settings.policy != "first" or scenario.little_memory:
            continue
        PAIRS.clear()
        run = schedule.Schedule(scenario)
        run.run()
        settings = scenario.settings
        stream = SimpleNamespace(
            reassembler=lambda contents, settings=settings: assembler_of(replace(settings, contents=contents))
        )
        for ours, theirs in PAIRS:
            for whole, planned in zip(ours.added, theirs.added, strict=True):
                if isinstance(planned, HeaderOnly) and isinstance(whole, Payload):
                    compared += need_equal(cast("StreamSpec", stream), scenario.records, whole, planned)
    assert compared


def need_equal(stream: StreamSpec, records: Iterable[Record], whole: Payload, planned: HeaderOnly) -> bool:
    """The block that a task makes of the ranges; False where some of it was supplied and lies on no topic."""
    found = []
    for record in records:
        low, high = planned.ranges.get(record[:2], (0, 0))
        if record.key[1:33] == planned.hash and low <= record.offset < high:
            found.append(record)
    block = assembled(stream, found, Contents.VALUES)
    if not isinstance(block, Payload):
        return False
    assert (block.number, block.parent, block.weight) == (whole.number, whole.parent, whole.weight)
    assert (dict(block.updates), block.deletes) == (dict(whole.updates), whole.deletes)
    return True
