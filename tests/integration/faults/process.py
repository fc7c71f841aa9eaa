"""Process of a producer or a consumer, which a fault may kill, hold and restart.

librdkafka (2.4 to 2.16 at least) has a fault that ends the process of a consumer: where a broker names the leaders of
some partitions and says of others that they have none, it reads memory that nobody wrote (its issue 5280; seen once in
some hundred pauses of a broker). What Cardinal promises then is what it promises after a kill: such a worker is started
again and goes on, and it is counted. A worker that a thread of Python's brought down is not, it is an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, Self

from cardinal.errors import CardinalError, RefusedError

from . import work

if TYPE_CHECKING:
    from .work import Task

END_SECONDS: Final = 90.0
PROGRAM: Final = work.__name__
OVER: Final = "everything is to end"
_LOOK_SECONDS: Final = 0.05
_HERE: Final = Path(__file__).parents[1]


class ScenarioError(CardinalError):
    """A scenario did not go on: a process ended that should not have, or nothing happened for too long."""


def _client_crashed(status: int | None, said: str) -> bool:
    """Whether a process was ended by a thread that is not Python's, as librdkafka's are.

    Arguments:
        status: as :class:`subprocess.Popen` gives it.
        said: its standard error, with ``-X faulthandler``: that names the current thread only if it is Python's.

    """
    return status == -signal.SIGSEGV and "Segmentation fault" in said and "Current thread" not in said


def variables() -> dict[str, str]:
    """The environment variables of a worker: it finds this package."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path])}


class Worker:
    """A producer or a consumer as a process.

    Arguments:
        what: ``publish`` or ``follow``.
        task: what it works on.
        over: set when everything is to end, and nobody is to be waited for.

    Attributes:
        crashes: how often the Kafka client brought it down, and it was started again.

    """

    def __init__(self, what: str, task: Task, over: Event | None = None) -> None:
        self.what = what
        self._over = over or Event()
        self.task = task
        self.log = Path(task.folder, f"{what}.log")
        self.crashes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> int:
        """Its process id.

        Raises:
            ScenarioError: it was not started.

        """
        if self._process is None:
            raise ScenarioError(f"{self.what} was not started")
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended: 0 when its work was done."""
        return None if self._process is None else self._process.poll()

    @property
    def said(self) -> str:
        """Its last line on standard error, the sentence of its error."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return lines[-1] if lines else ""

    def start(self) -> Self:
        """Start it, or start it again: it goes on where its files say that it was. It ends when this process does."""
        self._let_go()
        with self.log.open("wb") as log:
            command = [sys.executable, "-X", "faulthandler", "-m", PROGRAM, self.what, self.task.text()]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=variables())
        return self

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def revive(self) -> bool:
        """Start it again if the Kafka client has brought it down; whether it had."""
        said = self.log.read_text(errors="replace") if self.status else ""
        if not _client_crashed(self.status, said):
            return False
        self.crashes += 1
        self.start()
        return True

    def kill(self) -> bool:
        """SIGKILL, at whatever it is doing; whether it was still at work."""
        if self._process is None:
            return False
        worked = self._process.poll() is None
        self._process.kill()
        status = self._process.wait(END_SECONDS)
        self._let_go()
        return worked and status == -signal.SIGKILL

    def end(self, within: float = END_SECONDS) -> None:
        """Wait until its work is done.

        Raises:
            RefusedError: it ended with an error of Cardinal's own, which is the message.
            ScenarioError: it ended otherwise, or was ended because it had not in time, or because all is.

        """
        if self._process is None:
            raise ScenarioError(f"{self.what} was not started")
        deadline = time.monotonic() + within
        while (status := self._process.poll()) is None or self.revive():
            if self._over.is_set() or time.monotonic() > deadline:
                self.kill()
                raise ScenarioError(OVER if self._over.is_set() else f"{self.what} is not done after {within:g} s")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_SECONDS)
        self._let_go()
        if status == work.REFUSED:
            raise RefusedError(self.said)
        if status != 0:
            raise ScenarioError(f"{self.what} ended with status {status}: {self.said}")
