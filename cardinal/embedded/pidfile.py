"""Brokers that somebody else started: found by their data folder, waited for, ended.

Rules:

1. A broker runs on a data folder while the folder's lock is held, and only then (see :mod:`.broker`).
2. Only the process that the folder's pid file names, while the lock is held, is ever sent a signal.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cardinal.errors import EmbeddedBrokerError

from .folders import is_locked, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE = "broker.lock"
PID_FILE = "broker.pid"
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that holds a data folder. ``pid`` and ``bootstrap`` are None until its process is there."""

    pid: int | None = None
    bootstrap: str | None = None
    ready: bool = False


def save_pid_file(data: Path, running: Running) -> None:
    """Tell everybody who looks at the data folder which broker holds it."""
    write_atomically(data / PID_FILE, json.dumps(asdict(running)) + "\n")


def remove_pid_file(data: Path, pid: int) -> None:
    """Remove what the ended process ``pid`` left; somebody else may have started another broker on the folder since."""
    if (left := _read_pid_file(data)) is not None and left.pid == pid:
        (data / PID_FILE).unlink(missing_ok=True)


def find_running(data: Path) -> Running | None:
    """The broker that holds the data folder; None where none does.

    Raises:
        EmbeddedBrokerError: the folder's files cannot be read.

    """
    try:
        return (_read_pid_file(data) or Running()) if is_locked(data / LOCK_FILE) else None
    except OSError as error:
        raise EmbeddedBrokerError(f"the data folder {data} cannot be read ({error.strerror})") from error


def end_running(data: Path, *, timeout: float = 20.0) -> Running | None:
    """End the broker that holds the data folder: SIGTERM, and SIGKILL after ``timeout`` seconds.

    Returns:
        The broker that was ended; None where none ran.

    Raises:
        EmbeddedBrokerError: it belongs to another user, or is still being started after ``timeout`` seconds.

    """
    deadline = time.monotonic() + timeout
    while (broker := find_running(data)) is not None and broker.pid is None:
        if time.monotonic() > deadline:
            raise EmbeddedBrokerError(f"the broker on {data} is still being started: try again in a moment")
        time.sleep(_POLL_SECONDS)
    if broker is None or broker.pid is None:
        return None
    for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, timeout)):
        try:
            with suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(broker.pid, signal.SIGCONT)
                os.kill(broker.pid, number)
        except PermissionError as error:
            raise EmbeddedBrokerError(f"process {broker.pid} belongs to another user: ask them to stop it") from error
        if _has_ended(data, broker.pid, time.monotonic() + patience):
            remove_pid_file(data, broker.pid)
            return broker
    raise EmbeddedBrokerError(f"process {broker.pid} does not end, not even by SIGKILL: see what it waits for")


def _has_ended(data: Path, pid: int, deadline: float) -> bool:
    while (broker := find_running(data)) is not None and broker.pid == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _read_pid_file(data: Path) -> Running | None:
    try:
        return Running(**json.loads((data / PID_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise EmbeddedBrokerError(f"{data / PID_FILE} cannot be read: remove it when no broker runs") from error
