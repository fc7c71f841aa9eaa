from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cardinal.cli import selftest as command
from cardinal.cli.main import cardinal
from cardinal.protocols.streams import ChainUpdate, Divergence, Event, Follower, Record
from cardinal.protocols.streams.following.follower import Step
from cardinal.server.faults import drills
from cardinal.server.faults.drills import DRILLS, Drill
from cardinal.testing.scenario import DEEP, QUICK, make_scenario
from cardinal.testing.schedule import Outcome, Schedule, run_schedule


def test_says_how_many_ran_and_how_many_differ() -> None:
    result = CliRunner().invoke(cardinal, ["selftest", "--seeds", "3", "--first", "10"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("3 schedules, ")
    assert "0 differ from the model" in result.output


def test_a_difference_is_a_line_and_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "cardinal selftest --seeds 1 --first 7: step 3: the head is 1a, the heaviest are 1b"

    def differing(seeds: int, first: int, _profile: object, *, quorum: bool) -> list[Outcome]:
        assert not quorum
        return [Outcome(first + index, 3, 10, line if index == 0 else None) for index in range(seeds)]

    monkeypatch.setattr(command, "run_schedules", differing)
    result = CliRunner().invoke(cardinal, ["selftest", "--seeds", "2", "--first", "7"])
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == line
    assert "2 schedules, 20 records: 1 differ" in result.output


def test_what_did_not_hold_is_a_sentence_below_its_row_and_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(
        _folder: object, faults: Sequence[str], *, times: int, seed: int
    ) -> Generator[tuple[Drill, drills.Outcome]]:
        del seed
        for drill in DRILLS:
            if drill.fault in faults:
                wrong = ("lost: block 7 was acknowledged",) if drill.fault == "broker-kill" else ()
                yield (
                    drill,
                    drills.Outcome(drill.fault, times, 300, 350, wrong, 1.5, int(drill.fault == "broker-pause")),
                )

    monkeypatch.setattr(drills, "play", played)
    result = CliRunner().invoke(cardinal, ["selftest", "--faults", "--times", "2"])
    assert result.exit_code == 1
    _, *rows = result.output.splitlines()
    assert len(rows) == len(DRILLS) + 2
    fallen = next(at for at, row in enumerate(rows) if row.startswith("broker-pause "))
    assert rows.pop(fallen + 1).strip() == ("ended by a library's thread (librdkafka, issue 5280), and went on: 1")
    at = next(at for at, row in enumerate(rows) if row.startswith("broker-kill "))
    assert rows.pop(at).split()[-5:] == ["2", "300", "350", "1.5", "no"]
    assert rows.pop(at).strip() == "lost: block 7 was acknowledged"
    assert [row.split()[-1] for row in rows] == ["yes"] * (len(DRILLS) - 1)
    result = CliRunner().invoke(cardinal, ["selftest", "--faults", "--only", "topic-deleted"])
    assert (result.exit_code, len(result.output.splitlines())) == (0, 2)


def test_a_fault_that_is_not_in_the_catalogue_is_named_with_those_that_are() -> None:
    result = CliRunner().invoke(cardinal, ["selftest", "--faults", "--only", "rain"])
    assert result.exit_code == 2
    assert "there is no fault rain; there are " in result.output
    assert all(drill.fault in result.output for drill in DRILLS)


def test_equal_seeds_make_equal_scenarios_and_equal_runs() -> None:
    one, other = make_scenario(5, DEEP), make_scenario(5, DEEP)
    assert one.records == other.records
    assert one.payloads == other.payloads
    assert run_schedule(5) == run_schedule(5)
    assert make_scenario(6).records != make_scenario(5).records


class _Sabotaged(Follower):
    """A core with a fault: ``spoil`` changes what it returns."""

    def step(self, records: Sequence[Record], *args: object, **options: object) -> Step:  # type: ignore[override]  # as the schedule calls it
        step = super().step(records, *args, **options)  # type: ignore[arg-type]  # passed through as they came
        return replace(step, items=[item for item in map(self.spoil, step.items) if item is not None])

    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return item


class _DropsUpdates(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return None if isinstance(item, ChainUpdate) and item.seq > 3 else item


class _HidesLies(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return None if isinstance(item, Divergence) else item


class _SkipsNumbers(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        if not isinstance(item, ChainUpdate):
            return item
        return ChainUpdate(item.seq + 1, item.removed, item.added, item.finality)


class _ForgetsRemovals(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        if not isinstance(item, ChainUpdate) or not item.removed:
            return item
        return ChainUpdate(item.seq, (), item.added, item.finality)


class _Raises(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        raise KeyError(item)


@pytest.mark.parametrize("fault", [_DropsUpdates, _HidesLies, _SkipsNumbers, _ForgetsRemovals, _Raises])
def test_a_faulty_core_is_found_within_a_few_seeds_and_named(
    fault: type[_Sabotaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.testing.schedule.Follower", fault)
    found = [outcome for outcome in map(run_schedule, range(40)) if outcome.difference is not None]
    assert found
    first = found[0]
    assert first.difference is not None
    assert first.difference.startswith(f"cardinal selftest --seeds 1 --first {first.seed}: step ")
    assert "\n" not in first.difference


def test_a_schedule_can_be_driven_step_by_step() -> None:
    schedule = Schedule(make_scenario(3, QUICK))
    schedule.reveal(10_000)
    assert schedule.unrevealed == 0
    unread = schedule.unread
    schedule.read(4)
    assert schedule.unread == unread - 4
    schedule.restart(0)
    schedule.finish()
    assert schedule.unread == 0
