"""The streams core against its model (tests/model): seeded schedules, the command, and cores that are faulty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cardinal.protocols.streams import ChainUpdate, Divergence, Event, Follower, Record
from cardinal.protocols.streams.following.follower import Step
from examples import examples
from model.__main__ import main
from model.scenario import DEEP, QUICK, Profile, make_scenario
from model.schedule import Schedule, run_schedule, run_schedules

DEFAULT = examples(600)


@pytest.mark.parametrize(
    ("profile", "seeds"),
    [
        pytest.param(QUICK, DEFAULT, id="quick"),
        pytest.param(DEEP, DEFAULT // 6, id="deep", marks=pytest.mark.slow),
    ],
)
def test_no_schedule_differs_from_the_model(profile: Profile, seeds: int) -> None:
    outcomes = list(run_schedules(seeds, profile=profile))
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []
    assert all(outcome.records for outcome in outcomes)  # a schedule that reads nothing proves nothing


@pytest.mark.parametrize(("profile", "seeds"), [(QUICK, DEFAULT // 10), (DEEP, DEFAULT // 50)], ids=["quick", "deep"])
def test_no_schedule_in_which_a_quorum_decides_differs_from_the_model(profile: Profile, seeds: int) -> None:
    outcomes = list(run_schedules(seeds, profile=profile, quorum=True))
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []
    assert all(outcome.records for outcome in outcomes)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("profile", [QUICK, DEEP], ids=lambda profile: profile.name)
def test_no_schedule_of_a_hundred_thousand_differs_from_the_model(profile: Profile) -> None:
    outcomes = run_schedules(100_000, first=1_000_000, profile=profile)
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []


@pytest.mark.parametrize("quorum", [False, True])
def test_equal_seeds_make_equal_scenarios_and_equal_runs(*, quorum: bool) -> None:
    one, other = (make_scenario(5, DEEP, quorum=quorum) for _ in range(2))
    assert one.records == other.records
    assert one.payloads == other.payloads
    assert (one.quorum, one.lied) == (other.quorum, other.lied)
    assert run_schedule(5, quorum=quorum) == run_schedule(5, quorum=quorum)
    assert make_scenario(6, quorum=quorum).records != make_scenario(5, quorum=quorum).records


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
    monkeypatch.setattr("model.schedule.Follower", fault)
    found = [outcome for outcome in map(run_schedule, range(40)) if outcome.difference is not None]
    assert found
    first = found[0]
    assert first.difference is not None
    assert first.difference.startswith(f"python -m tests.model --seeds 1 --first {first.seed}: step ")
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


def test_the_command_reports_how_many_ran_and_how_many_differ() -> None:
    result = CliRunner().invoke(main, ["--seeds", "3", "--first", "10"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("3 schedules, ")
    assert "0 differ from the model" in result.output


def test_the_command_runs_quorums_alone() -> None:
    result = CliRunner().invoke(main, ["--seeds", "5", "--quorum"])
    assert result.exit_code == 0, result.output
    assert "5 schedules, " in result.output


def test_a_difference_is_a_line_that_repeats_it_and_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.schedule.Follower", _Raises)
    result = CliRunner().invoke(main, ["--seeds", "2", "--first", "7", "--profile", "deep"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("python -m tests.model --seeds 1 --first 7 --profile deep: step ")
    assert lines[-1].startswith("2 schedules, ")
    assert "2 differ" in lines[-1]
