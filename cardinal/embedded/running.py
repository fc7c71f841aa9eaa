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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardinal.errors import EmbeddedBrokerError

from .folders import try_lock

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE = "broker.lock"
PID_FILE = "broker.pid"
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that holds a data folder. Both are None in the moments in which it is being started."""

    pid: int | None
    bootstrap: str | None


def pid_file_text(pid: int, bootstrap: str) -> str:
    """What the pid file holds."""
    return json.dumps({"pid": pid, "bootstrap": bootstrap}) + "\n"


def find_running(data: Path) -> Running | None:
    """The broker that holds the data folder; None where none does.

    Raises:
        EmbeddedBrokerError: the folder's files cannot be read.

    """
    if not (data / LOCK_FILE).exists():
        return None
    try:
        lock = try_lock(data / LOCK_FILE)
        if lock is not None:
            os.close(lock)
            return None
        text = (data / PID_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Running(None, None)
    except OSError as error:
        raise EmbeddedBrokerError(f"the data folder {data} cannot be read ({error.strerror})") from error
    found = json.loads(text)
    return Running(found["pid"], found["bootstrap"])


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
            return broker
    raise EmbeddedBrokerError(f"process {broker.pid} does not end, not even by SIGKILL: see what it waits for")


def _has_ended(data: Path, pid: int, deadline: float) -> bool:
    while (broker := find_running(data)) is not None and broker.pid == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
