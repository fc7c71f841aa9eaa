"""Pid file of a running broker: find and stop a broker that another process started.

Rules:

1. A broker runs on a data folder exactly while the folder's lock is held (see :mod:`.broker`).
2. Signals are sent only to the process in the folder's pid file, while the lock is held.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cardinal._directories import is_locked, write_atomically
from cardinal_devkit.errors import EmbeddedBrokerError

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE = "broker.lock"
PID_FILE = "broker.pid"
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Broker that holds a data folder. ``pid`` and ``bootstrap`` are None until its process has started."""

    pid: int | None = None
    bootstrap: str | None = None
    ready: bool = False


def write_pid_file(data: Path, running: RunningBroker) -> None:
    """Write the pid file of the data folder."""
    write_atomically(data / PID_FILE, json.dumps(asdict(running)) + "\n")


def remove_pid_file(data: Path, pid: int) -> None:
    """Remove the pid file of the ended process ``pid``, unless another broker has started on the folder since."""
    if (left := _read_pid_file(data)) is not None and left.pid == pid:
        (data / PID_FILE).unlink(missing_ok=True)


def find_broker(data: Path) -> RunningBroker | None:
    """The broker that holds the data folder, or None.

    Raises:
        EmbeddedBrokerError: the folder's files cannot be read.

    """
    try:
        return (_read_pid_file(data) or RunningBroker()) if is_locked(data / LOCK_FILE) else None
    except OSError as error:
        raise EmbeddedBrokerError(f"the data folder {data} cannot be read ({error.strerror})") from error


def end_broker(data: Path, *, timeout: float = 20.0) -> RunningBroker | None:
    """Stop the broker that holds the data folder: SIGTERM, and SIGKILL after ``timeout`` seconds.

    Returns:
        The stopped broker; None if none was running.

    Raises:
        EmbeddedBrokerError: it belongs to another user, or is still being started after ``timeout`` seconds.

    """
    deadline = time.monotonic() + timeout
    while (broker := find_broker(data)) is not None and broker.pid is None:
        if time.monotonic() > deadline:
            raise EmbeddedBrokerError(f"the broker on {data} is starting: retry in some seconds")
        time.sleep(_POLL_SECONDS)
    if broker is None or broker.pid is None:
        return None
    for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, timeout)):
        try:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(broker.pid, signal.SIGCONT)
                os.kill(broker.pid, number)
        except PermissionError as error:
            raise EmbeddedBrokerError(f"process {broker.pid} belongs to another user: ask them to stop it") from error
        if _has_ended(data, broker.pid, time.monotonic() + patience):
            remove_pid_file(data, broker.pid)
            return broker
    raise EmbeddedBrokerError(f"process {broker.pid} does not end even by SIGKILL: check its state with ps")


def _has_ended(data: Path, pid: int, deadline: float) -> bool:
    while (broker := find_broker(data)) is not None and broker.pid == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _read_pid_file(data: Path) -> RunningBroker | None:
    try:
        return RunningBroker(**json.loads((data / PID_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise EmbeddedBrokerError(f"{data / PID_FILE} cannot be read: remove it when no broker runs") from error
