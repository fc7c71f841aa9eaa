import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cardinal_devkit.cli.jar_bar import JarBar
from cardinal_devkit.kafka.jars import Jar

USERS_TESTS = """
def test_uses(cardinal_broker):
    assert cardinal_broker.bootstrap == "127.0.0.1:1"
    assert cardinal_broker.client_config() == {"bootstrap.servers": "127.0.0.1:1"}

def test_kills_the_shared_one(cardinal_broker):
    cardinal_broker.kill()
    raise AssertionError

def test_kills_its_own(cardinal_killable_broker):
    raise AssertionError
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("environ", "outcome", "reason"),
    [
        ({}, "1 passed, 2 skipped", "CARDINAL_TEST_BROKER names one that is not ours"),
        (
            {"CARDINAL_TEST_BROKER": "docker", "DOCKER_HOST": "unix:///nowhere/nobody.sock"},
            "3 skipped",
            "CARDINAL_TEST_BROKER=docker, and no Docker engine answers",
        ),
    ],
    ids=["a named broker", "docker without an engine"],
)
def test_a_broker_that_the_environment_names_is_used_or_skipped_with_the_reason(
    tmp_path: Path, environ: dict[str, str], outcome: str, reason: str
) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_users.py"],
        cwd=tmp_path,
        env={"CARDINAL_TEST_BROKER": "127.0.0.1:1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert outcome in done.stdout, done.stdout
    assert reason in done.stdout


def report_all(bar: JarBar) -> None:
    jars = [Jar("group", name, "1", "", 2_000_000) for name in ("one", "two")]
    for received in (0, 1_000_000, 2_000_000):
        for jar in jars:
            bar.report(jar, received)


def test_without_a_terminal_sizes_are_plain_lines() -> None:
    stream = io.StringIO()
    with JarBar(Console(file=stream)) as bar:
        report_all(bar)
    assert stream.getvalue().splitlines() == [
        "fetching Kafka, 2 jars, 4.0 MB, once",
        "fetched 1.0 of 4.0 MB",
        "fetched 2.0 of 4.0 MB",
        "fetched 3.0 of 4.0 MB",
        "fetched 4.0 of 4.0 MB",
    ]


def test_in_a_terminal_sizes_are_a_bar() -> None:
    stream = io.StringIO()
    with JarBar(Console(file=stream, force_terminal=True, width=100)) as bar:
        report_all(bar)
    assert "4.0/4.0 MB" in stream.getvalue()


def test_where_nothing_is_fetched_nothing_is_shown() -> None:
    stream = io.StringIO()
    with JarBar(Console(file=stream)) as bar:
        pass
    assert (stream.getvalue(), bar.seconds) == ("", 0.0)
