"""Default and slow tests: a pytest plugin.

The default run holds what a change must not break and nothing that waits for the world: a test that needs a broker,
Spark, a node of another project or a process of its own (markers `broker`, `spark`, `node`, `process`) is slow, but for
:data:`END_TO_END`. An unmarked test that starts a process fails, so that none is slow unnoticed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

END_TO_END: Final = {
    "a producer is killed: no block is missing, consumers see reorgs": (
        "tests/integration/test_produce_and_tail.py::test_a_producer_killed_anywhere_leaves_no_block_missing_or_incomplete[240-10]"
    ),
    "a consumer is killed: its cursor resumes through reorgs": (
        "tests/integration/test_produce_and_tail.py::test_tail_killed_and_resumed_equals_an_uninterrupted_run[0.2]"
    ),
    "Spark's tables follow the chain": ("tests/spark/test_source_stream.py::test_a_lake_has_the_chain_after_reorgs"),
    "what an ingest node acknowledged reaches the topics": (
        "tests/integration/test_ingest_service.py::test_a_publishers_blocks_reach_a_consumer_once_and_in_order"
    ),
    "three members agree on what a publisher sends": (
        "tests/integration/test_cluster_faults.py::test_three_members_put_what_they_acknowledge_on_the_topics"
    ),
}
"""One test of each promise of the README, on the one broker that the run's processes share."""

_OUTSIDE: Final = ("broker", "spark", "node", "process")
_OF_FIXTURES: Final = {"cardinal_broker": "broker", "cardinal_killable_broker": "broker", "spark": "spark"}
_STARTS: Final = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_MARKED_FILE: Final = re.compile(rf"^pytestmark = .*\.mark\.(slow|soak|{'|'.join(_OUTSIDE)})\b", re.MULTILINE)

_started: list[str] = []
"""What the test that runs has started though it may not."""
_watched: list[pytest.Item] = []


def pytest_configure(config: pytest.Config) -> None:
    """Watch for processes from now on."""
    del config
    sys.addaudithook(_notice)


def _notice(event: str, details: tuple[Any, ...]) -> None:
    if event in _STARTS and _watched:
        _started.append(f"{event} {details[0] if details else ''}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out, unread, whose tests are all slow, where slow tests do not run: importing them takes seconds."""
    if config.option.markexpr != _default_expression(config) or not collection_path.match("test_*.py"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    named = {test.partition("::")[0] for test in (*config.args, *END_TO_END.values())}
    if name in named or str(collection_path) in named:
        return None
    return True if _MARKED_FILE.search(collection_path.read_text(encoding="utf-8")) else None


def _default_expression(config: pytest.Config) -> str:
    options: list[str] = config.getini("addopts")
    return options[options.index("-m") + 1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs something outside of the test process; the longest tests come first.

    Those are the ones with a limit of their own. One that came last would run beside idle workers.
    """
    for item in items:
        for fixture, mark in _OF_FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        if any(item.get_closest_marker(mark) for mark in _OUTSIDE) and item.nodeid not in END_TO_END.values():
            item.add_marker("slow")
    items.sort(key=_limit, reverse=True)


def _limit(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit else 0.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch an unmarked test."""
    marked = any(item.get_closest_marker(mark) for mark in ("slow", "soak", *_OUTSIDE))
    _started.clear()
    _watched[:] = [] if marked else [item]
    try:
        return (yield)
    finally:
        _watched.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail an unmarked test that started a process."""
    report = yield
    if call.when == "teardown" and _started and report.passed:
        report.outcome = "failed"
        report.longrepr = f"starts a process ({'; '.join(_started)}): mark it `process`, which makes it slow"
    return report
