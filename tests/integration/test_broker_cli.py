"""`cardinal broker` as people and scripts run it: a command of its own each time."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cardinal._directories import cache_folder
from cardinal_devkit.kafka.jars import ensure_jars, locked_jars
from cardinal_devkit.kafka.pidfile import end_broker

pytestmark = pytest.mark.broker


class Commands:
    """Runs `cardinal broker …` on one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.environ = dict(os.environ)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from cardinal.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "broker", *arguments, "--data", str(self.data)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=self.environ,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def refused(self, *arguments: str) -> str:
        """Run a command that must fail: its one sentence."""
        done = self.run(*arguments)
        assert done.returncode == 1
        assert done.stdout == ""
        *logged, sentence, end = done.stderr.split("\n")
        assert sentence.startswith("error: ")
        assert end == ""
        assert not [line for line in logged if " info " not in line]
        return f"{sentence}\n"

    def up(self) -> dict[str, object]:
        done = self.run("up", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "data")
    yield commands
    if commands.data.is_dir():
        end_broker(commands.data)


def test_up_outlives_its_command_and_down_ends_it(commands: Commands) -> None:
    assert commands.run("status").returncode == 1
    assert "no broker runs" in commands.run("down").stdout
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(lambda _: commands.up(), range(2))
    assert first == second, "two at once start one broker"
    assert set(first) == {"bootstrap", "pid"}
    assert json.loads(commands.run("status", "--json").stdout) == first
    assert f"already up at {first['bootstrap']}" in commands.run("up").stdout
    assert f"already runs at {first['bootstrap']}" in commands.refused("up", "--port", "1")
    assert f"stopped process {first['pid']}" in commands.run("down").stdout
    assert "no broker runs" in commands.run("status").stdout
    again = commands.up()
    assert again["bootstrap"] == first["bootstrap"]
    assert again["pid"] != first["pid"]


@pytest.mark.slow
def test_files_of_a_crashed_broker_are_ignored(commands: Commands) -> None:
    first = commands.up()
    assert isinstance(first["pid"], int)
    os.kill(first["pid"], signal.SIGKILL)
    assert commands.up()["bootstrap"] == first["bootstrap"]


def test_a_data_folder_that_cannot_be_written_is_one_sentence(commands: Commands) -> None:
    commands.data = Path("/proc/cardinal")
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc, where nobody can make a folder")
    assert "cannot be written" in commands.refused("up")


@pytest.mark.slow
def test_no_network_and_a_jar_that_is_cut_is_one_sentence_and_heals_with_the_network(
    commands: Commands, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "jars").mkdir(parents=True)
    jars = locked_jars()
    for path in ensure_jars(cache_folder(), jars):
        os.link(path, cache / "jars" / path.name)
    smallest = min(jars, key=lambda jar: jar.size)
    damaged = cache / "jars" / smallest.name
    damaged.unlink()  # the cache of this run has it still
    damaged.write_bytes(b"cut")
    commands.environ["CARDINAL_CACHE"] = str(cache)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    commands.environ |= {"HTTPS_PROXY": nowhere, "https_proxy": nowhere, "NO_PROXY": "", "no_proxy": ""}
    said = commands.refused("up")
    assert f"{smallest.name} is damaged in the cache and could not be fetched again: check the network" in said
    damaged.write_bytes(cache_folder().joinpath("jars", smallest.name).read_bytes())
    assert commands.up()["pid"], "with the jars there nothing is requested from the network"
