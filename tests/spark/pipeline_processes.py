"""The processes of a running `cardinal lake run`: the driver, Spark's JVMs and the Python processes below them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class Process(NamedTuple):
    """One line of `ps`."""

    pid: int
    command: str


def listed(columns: str, *which: str) -> list[tuple[int, str]]:
    """Lines of `ps`: a process's id and one more column."""
    command = ["ps", "-ww", "-o", f"pid=,{columns}=", *which]
    lines = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return [(int(pid), rest.strip()) for pid, _, rest in (line.strip().partition(" ") for line in lines)]


def living(pids: Iterable[int]) -> list[Process]:
    """Those of some processes that live. Nobody else's command line is looked at, which may hold a secret."""
    return [Process(*line) for line in listed("args", "-p", ",".join(map(str, pids)))]


class Driver:
    """`cardinal lake run` in a process group of its own, with Spark's JVMs in it; Python workers have their own."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "cardinal", "lake", "run", *arguments]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},  # of a cluster of processes, too
            )

    @property
    def output(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def below(self) -> dict[Process, int]:
        """The processes that descend from it, and their parents."""
        every = [(pid, int(parent)) for pid, parent in listed("ppid", "-A")]
        found: dict[int, int] = {}
        level = {self._process.pid}
        while level := {pid for pid, parent in every if parent in level}:
            found |= {pid: parent for pid, parent in every if pid in level}
        return {process: found[process.pid] for process in living(found)} if found else {}

    def kill(self) -> None:
        """SIGKILL to the driver and its JVMs. Python workers are left to find out."""
        if self.code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
