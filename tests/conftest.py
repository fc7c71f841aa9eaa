"""Rules for every test: Hypothesis profiles, handling of Ctrl-C, the watch for passwords, shared resources."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import HypothesisDeprecationWarning

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from xdist.scheduler import LoadScopeScheduling

# No property is judged by how long an example took, because machines are shared. The default run has the same examples
# every time: looking for new ones is for continuous integration, with all of them and `--hypothesis-profile=full`, and
# not for somebody who tries a clone. See also `tests/examples.py`.
settings.register_profile("full", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("cardinal", settings.get_profile("full"), max_examples=10, derandomize=True)
settings.load_profile("cardinal")

# Compiled modules are kept, also where the environment says not to (in containers): hundreds of processes import
# Cardinal, and to rewrite the assertions of all test files takes three times as long as to load them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ("secrets_watch", "tiers")  # passwords that show up anywhere, and slow tests without a mark, fail

# A thread may log between two tests, where nothing captures what it writes.
logging.lastResort = logging.NullHandler()

# A shell starts what it puts into the background deaf to Ctrl-C, and so would be the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MAY_SKIP = re.compile(r"mainnet|reference's own vectors|CARDINAL_INTEROP_|not ours|cannot be moved|its own headers")
LONGEST_FIRST = ("tests/spark/", "tests/integration/", "tests/contract/", "tests/properties/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits longest comes first, so that processes side by side end at about the same time."""

    def rank(item: pytest.Item) -> tuple[int, str]:
        file = item.nodeid.split("::", 1)[0]
        return next((n for n, room in enumerate(LONGEST_FIRST) if file.startswith(room)), 9), file

    items.sort(key=rank)


class RotatedFolder(pytest.Dir):
    """A folder that each process of `pytest -n N` begins to collect elsewhere, so that they share compiling it."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The folder's files and folders, from another one on in each process."""
        entries = list(super().collect())
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        begin = len(entries) * worker // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        return entries[begin:] + entries[:begin]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector:
    """Collect folders in rotated order; the order above is the same in every process."""
    return RotatedFolder.from_parent(parent, path=path)


def pytest_collection_finish() -> None:
    """Tests and modules live to the end: Python's collector need not walk them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What stays frozen at the end is a leak to some libraries, which print it."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Use of `random` inside a strategy fails the test; it is only a warning while other threads run.

    Hypothesis compares the generator's state before and after it draws, and a library's thread may change it meanwhile.
    """
    if threading.active_count() > 1:
        warnings.filterwarnings("default", "Do not use the `random` module", HypothesisDeprecationWarning)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take down the logs that a command has set up in this process."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__module__ == "cardinal.cli.logs"]:
        root.removeHandler(handler)


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
    """`pytest -n N` keeps a file's tests in one process.

    Those of Spark and those of secured brokers stay in one, too: a session or such a broker costs too much twice.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - tests run without xdist, too

    class ByRoom(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return next(
                (shared for shared in ("tests/spark/", "tests/integration/test_security_") if file.startswith(shared)),
                file,
            )

    config.option.loadscopereorder = False  # the order above is by cost, xdist's own by the number of tests
    return ByRoom(config, log)
