"""Child processes of the demo: every one is a `cardinal` command, and none outlives the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from cardinal.errors import CardinalError
from cardinal_devkit.kafka.child_process import ChildProcess

_STOP_SECONDS: Final = 20.0
_TAIL: Final = 3


class ChildFailedError(CardinalError):
    """A part of the demo ended with an error; the sentence is its last output."""


class Child:
    """One `cardinal` command as a child process; its output goes to ``folder/name.log``.

    It dies with the demo, also when that is killed (:mod:`cardinal_devkit.kafka.child_process`). ``killed`` is true
    from :meth:`kill` until :meth:`start`.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "cardinal", *arguments]
        self._folder = folder
        self._read = 0
        self._rest = b""
        self.start()

    def start(self) -> None:
        """Start it: the first time, or after :meth:`kill`."""
        keep = os.open(os.devnull, os.O_RDONLY)
        try:
            self._child = ChildProcess(self._command, log=self.log, folder=self._folder, keep=keep)
        finally:
            os.close(keep)
        self.killed = False

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.killed = True
        self._child.process.kill()
        self._child.process.wait()
        self._child.release()

    def check(self) -> bool:
        """True while it runs; False after it ended well. ChildFailedError where it ended with an error."""
        code = self._child.process.poll()
        if code and not self.killed:
            raise ChildFailedError(f"{self.name} ended with status {code}: {self._last_words()} (see {self.log})")
        return code is None

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-_TAIL:]) or "it said nothing"

    def count(self, text: str) -> int:
        """Occurrences of a text in its log, which all its starts write."""
        return self.log.read_text(errors="replace").count(text)

    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed since the last call, a line each; other lines are skipped."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._child.process.poll() is None:
            self._child.process.send_signal(number)

    def stop(self) -> None:
        """Request its end, wait for a bounded time, then kill it. May be called twice."""
        process = self._child.process
        self.signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._child.release()


def cardinal(*arguments: str) -> str:
    """Run a `cardinal` command to its end; returns its output. ChildFailedError where it fails."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "cardinal", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ChildFailedError(f"cardinal {arguments[0]} failed: {said[-1] if said else 'it said nothing'}")
    return done.stdout
