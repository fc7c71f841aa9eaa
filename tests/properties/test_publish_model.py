"""The publish arbiter against its model, and sessions against arbiters in a simulated network (tests/model)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from click.testing import CliRunner

from cardinal.protocols.publish import ArbiterSettings, Start
from model.__main__ import main
from model.publish_model import NaiveArbiter
from model.publish_network import run_network
from model.publish_scenario import Scenario, block_of, by_recipient
from model.publish_schedule import Inputs, run_inputs
from publishing import load
from vectors import Case


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(240)), pytest.param(range(240, 10_240), marks=pytest.mark.slow)], ids=len
)
def test_the_arbiter_puts_out_what_its_model_does(seeds: range) -> None:
    assert [difference for seed in seeds if (difference := run_inputs(seed))] == []


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(50)), pytest.param(range(50, 5_050), marks=pytest.mark.slow)], ids=len
)
def test_a_network_keeps_its_promises(seeds: range) -> None:
    assert [broken for seed in seeds if (broken := run_network(seed))] == []


@pytest.mark.parametrize("case", load("publish-arbiter.json", "scenarios"), ids=lambda case: str(case["name"]))
def test_the_model_puts_out_what_the_scenario_says(case: Case) -> None:
    settings = ArbiterSettings(**{name: value for name, value in case["config"].items() if name != "stored_blocks"})
    scenario, model = Scenario(case), NaiveArbiter(settings, case["config"].get("stored_blocks", []))
    expected = defaultdict(list)
    for out in case["expect"]:
        expected[out["step"]].append((out["to"], out["send"]))
    for i, step in enumerate(case["steps"]):
        for effect in scenario.step(step):
            if isinstance(effect, Start):
                scenario.attempts[effect.block] = effect.attempt
        if "restart" in step:
            model = NaiveArbiter(settings, step["restart"], scenario.now)
            continue
        number = next((step[kind] for kind in ("verified", "persisted", "failed") if kind in step), None)
        current = {} if number is None else {"attempt": scenario.attempts.get(block_of(step, number), 0)}
        assert by_recipient(model.feed(current | step, scenario.now)) == by_recipient(expected[i]), f"step {i}: {step}"


def test_a_faulty_arbiter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.protocols.publish.blocks.Line.holds", lambda *_: True)
    monkeypatch.setattr("cardinal.protocols.publish.blocks.Tree.holds", lambda *_: True)
    assert [difference for seed in range(40) if (difference := run_inputs(seed))]


def test_equal_seeds_choose_equal_inputs() -> None:
    one, other = Inputs(7), Inputs(7)
    assert [one.step() for _ in range(60)] == [other.step() for _ in range(60)]
    assert one.last_step == other.last_step


def test_the_command_runs_schedules() -> None:
    result = CliRunner().invoke(main, ["--publish", "--seeds", "4"])
    assert result.exit_code == 0
    assert result.output.startswith("4 schedules of publish: 0 differ")


def test_the_command_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.protocols.publish.blocks.Tree.holds", lambda *_: True)
    result = CliRunner().invoke(main, ["--publish", "--seeds", "20"])
    assert result.exit_code == 1
    assert "publish seed " in result.output
