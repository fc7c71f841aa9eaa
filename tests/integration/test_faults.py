"""Every fault of the catalogue on real brokers: nothing acknowledged is lost, nothing delivered twice.

By default each is injected about three times, the cases side by side; `-m soak` does it a hundred times.
"""

from __future__ import annotations

import pytest
from faults.cases import CASES, Outcome, run_cases

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOAK_TIMES = 100
SOAK_SECONDS = 4 * 3600
SOAK_CRASHES = 3
"""Of the Kafka client, each survived; more would be another fault than the one that is known."""
TIMES = 3
SEED = 20_261_121

FAULTS = [case.fault for case in CASES]


def _played(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, times: int, test: str
) -> dict[str, Outcome]:
    """What the cases came to that this run has chosen."""
    chosen = {
        item.callspec.params["fault"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test and item.path == request.path
    }
    return {case.fault: outcome for case, outcome in run_cases(factory.mktemp("cases"), chosen, times=times, seed=SEED)}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return _played(request, tmp_path_factory, TIMES, "test_guarantees_hold")


@pytest.fixture(scope="module")
def played_often(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return _played(request, tmp_path_factory, SOAK_TIMES, "test_guarantees_hold_a_hundred_times")


@pytest.mark.parametrize("fault", FAULTS)
def test_guarantees_hold(fault: str, played: dict[str, Outcome]) -> None:
    outcome = played[fault]
    assert outcome.wrong == ()
    assert outcome.delivered > 0
    # Whoever is to be killed may have come to the end of its work first, on a machine that is busy.
    assert TIMES - 1 <= outcome.injected <= TIMES
    assert outcome.crashes <= 1


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_guarantees_hold_a_hundred_times(fault: str, played_often: dict[str, Outcome]) -> None:
    outcome = played_often[fault]
    assert outcome.wrong == ()
    assert outcome.injected >= SOAK_TIMES - 5
    assert outcome.crashes <= SOAK_CRASHES
