"""The arbiter against `publish-arbiter.json`: everything that comes out of every step, in order per recipient."""

from __future__ import annotations

from collections import defaultdict

import pytest

from model.publish_scenario import Scenario, by_recipient, told
from publishing import load
from vectors import Case

CASES = load("publish-arbiter.json", "scenarios")


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_every_step_puts_out_what_the_scenario_says(case: Case) -> None:
    expected = defaultdict(list)
    for out in case["expect"]:
        expected[out["step"]].append((out["to"], out["send"]))
    for i, effects in enumerate(Scenario(case).play()):
        found = [out for effect in effects if (out := told(effect)) is not None]
        assert by_recipient(found) == by_recipient(expected[i]), f"step {i}: {case['steps'][i]}"
