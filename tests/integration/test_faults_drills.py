"""The catalogue of faults, played on real brokers: nothing acknowledged lost, nothing doubled, the node's chain.

By default the three kills are injected a few times, with `-m slow` all others too; `-m soak` does it a hundred times.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from cardinal.server.faults.drills import DRILLS, Drill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

    from cardinal.server.faults.ground import Ground

pytestmark = pytest.mark.broker

SOAK_TIMES = 100
SOAK_SECONDS = 3 * 3600
TIMES = {"broker-pause": 2, "leader-loss": 2}
"""How often by default, where it is not three times."""

SEED = 20_261_121


@pytest.fixture(scope="module")
def ground_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Drill], Ground]]:
    """What a drill is played on. One at a time: the next kind ends the one before, and its memory is given back."""
    with ExitStack() as stack:
        running: dict[type[Ground], Ground] = {}

        def get(drill: Drill) -> Ground:
            if drill.ground not in running:
                stack.close()
                running.clear()
                folder = tmp_path_factory.mktemp(drill.ground.__name__)
                running[drill.ground] = stack.enter_context(drill.ground(folder))
            return running[drill.ground]

        yield get


def by_ground() -> list[Drill]:
    kinds = list(dict.fromkeys(drill.ground for drill in DRILLS))
    return sorted(DRILLS, key=lambda drill: kinds.index(drill.ground))


def marked() -> list[ParameterSet]:
    """Every drill; those that are no kill are for the slow leg."""
    return [
        pytest.param(drill, id=drill.fault, marks=() if drill.fault.endswith("-kill") else pytest.mark.slow)
        for drill in by_ground()
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("drill", marked())
def test_what_is_promised_holds(drill: Drill, ground_of: Callable[[Drill], Ground], tmp_path: Path) -> None:
    outcome = drill.run(ground_of(drill), tmp_path, times=TIMES.get(drill.fault, 3), seed=SEED)
    assert outcome.wrong == ()
    assert outcome.delivered > 0


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("drill", by_ground(), ids=lambda drill: drill.fault)
def test_what_is_promised_holds_a_hundred_times(
    drill: Drill, ground_of: Callable[[Drill], Ground], tmp_path: Path
) -> None:
    outcome = drill.run(ground_of(drill), tmp_path, times=SOAK_TIMES, seed=SEED)
    assert outcome.wrong == ()
    assert outcome.injected == SOAK_TIMES
