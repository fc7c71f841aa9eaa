"""Rules for the wall clock: no code that waits, keeps a deadline or decides reads it.

The process's clock may be turned back by a day at any time. A kernel gives a process a clock of its own only for the
monotonic ones, so turning the real one back would turn it back for everybody on the machine; what never reads it
cannot be led astray by it.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ["cardinal", "connectors/cardinal_ingest", "connectors/cardinal_relay", "devkit"]
WALL = {"time", "time_ns", "localtime", "gmtime", "ctime"}
DATES = {"now", "utcnow", "today"}
STAMPS = {
    "cardinal/cli/status.py": "the age of what is printed",
    "cardinal/cli/tail.py": "the age of what is printed",
    "cardinal/server/status.py": "the age of what is reported",
    "cardinal/consuming/metrics.py": "the age of a block when it is delivered",
    "cardinal/server/produce/metrics.py": "the age of a block when it is published",
    "connectors/cardinal_relay/server/service.py": "the age of records, in metrics alone",
    "cardinal/producing/pings.py": "a ping says when it was sent",
    "devkit/cardinal_devkit/testing/memory.py": "what records in memory are stamped with, unless a test says otherwise",
    "cardinal/transports/file/sink.py": "what records of a file are stamped with, unless a test says otherwise",
}


def reads_of_the_wall_clock(source: str) -> list[int]:
    """The lines that read it, by a call or by handing the function on."""
    return sorted(
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (
            (node.value.id == "time" and node.attr in WALL)
            or (node.value.id in ("datetime", "date") and node.attr in DATES)
        )
    )


def test_nothing_that_reads_or_writes_a_stream_looks_at_the_wall_clock() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for root in ROOTS
        for path in (ROOT / root).rglob("*.py")
        if (lines := reads_of_the_wall_clock(path.read_text()))
    }
    assert found.keys() == STAMPS.keys()


def test_the_look_finds_what_it_looks_for() -> None:
    lines = ["a = time.time()", "b = time.monotonic()", "c = time.time_ns", "d = datetime.now(UTC)"]
    assert reads_of_the_wall_clock("\n".join(lines)) == [1, 3, 4]
