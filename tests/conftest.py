"""Rules for every test: Hypothesis profiles, handling of Ctrl-C, the watch for passwords, shared resources."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import HypothesisDeprecationWarning

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.scheduler import LoadScopeScheduling

# No property is judged by how long an example took, because machines are shared.
settings.register_profile("cardinal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cardinal")

pytest_plugins = ("secrets_watch",)  # passwords that show up anywhere fail the run

# A shell starts what it puts into the background deaf to Ctrl-C, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MAY_SKIP = re.compile(r"mainnet|reference's own vectors|CARDINAL_INTEROP_|not ours|cannot be moved|its own headers")
LONGEST_FIRST = ("tests/spark/", "tests/integration/", "tests/contract/", "tests/properties/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits longest comes first, so that processes side by side end at about the same time."""
    items.sort(key=lambda item: next((n for n, room in enumerate(LONGEST_FIRST) if item.nodeid.startswith(room)), 9))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Use of `random` inside a strategy fails the test; it is only a warning while other threads run.

    Hypothesis compares the generator's state before and after it draws, and a library's thread may change it meanwhile.
    """
    if threading.active_count() > 1:
        warnings.filterwarnings("default", "Do not use the `random` module", HypothesisDeprecationWarning)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CARDINAL_NO_SKIPS=1 a test that is skipped fails, unless its reason may hold on a complete machine."""
    report = yield
    if os.environ.get("CARDINAL_NO_SKIPS") and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not MAY_SKIP.search(reason):
            report.outcome, report.longrepr = "failed", f"skipped, which CARDINAL_NO_SKIPS does not permit: {reason}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """`pytest -n N` keeps a file's tests in one process, and Spark's in one: a session costs too much twice."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - tests run without xdist, too

    class ByRoom(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "tests/spark" if file.startswith("tests/spark/") else file

    config.option.loadscopereorder = False  # the order above is by cost, xdist's own by the number of tests
    return ByRoom(config, log)
