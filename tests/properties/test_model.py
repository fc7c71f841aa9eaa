"""The streams core beside its naive model (cardinal.testing.schedule), over seeds and over sequences of steps."""

from __future__ import annotations

import pytest

from cardinal.testing.scenario import DEEP, QUICK, Profile
from cardinal.testing.schedule import run_schedules

DEFAULT = 600


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


@pytest.mark.parametrize(("profile", "seeds"), [(QUICK, DEFAULT // 10), (DEEP, DEFAULT // 60)], ids=["quick", "deep"])
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
