"""One embedded broker for several processes, such as the workers of `pytest -n N`.

A host process runs the broker: `python -m cardinal_devkit.testing.shared_broker FOLDER`. Files in the folder coordinate
it with its users, by locks that the kernel releases when a process ends or dies:

1. ``start.lock``: held by a user while it looks for the host, or starts it.
2. ``users.lock``: shared, held by every user while it uses the broker. The host waits for it exclusively, and then
   stops the broker, which thus ends with its last user. A new user waits until it has stopped.
3. ``host.lock``: held by the host while it lives; ``ready`` is its report, empty or an error message.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError
from cardinal_devkit.errors import EmbeddedBrokerError
from cardinal_devkit.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

_READY_SECONDS: Final = 240.0
"""Includes the time for fetching jars."""
_POLL_SECONDS: Final = 0.05
_DATA: Final = "data"
PROPERTIES: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""The broker looks for overdue transactions every half second: by default Kafka does every ten, and tests wait."""


@contextmanager
def shared_broker(folder: Path) -> Iterator[EmbeddedKafka]:
    """The broker of this folder, started if necessary. The caller must not stop it.

    Raises:
        EmbeddedBrokerError: it could not be started.

    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "start.lock", fcntl.LOCK_EX) as starting, _locked(folder / "users.lock", fcntl.LOCK_SH):
        if not _is_locked(folder / "host.lock"):
            _start(folder)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield EmbeddedKafka(folder / _DATA)


def _start(folder: Path) -> None:
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (folder / "host.log").open("ab") as log:
        # This process starts the host, which holds its lock, and ends.
        subprocess.run(  # noqa: S603 - this module
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
            check=False,
        )
    deadline = time.monotonic() + _READY_SECONDS
    while not ready.exists():
        if time.monotonic() > deadline or not (_is_locked(folder / "host.lock") or ready.exists()):
            raise EmbeddedBrokerError(f"the shared broker does not start: see {log.name}")
        time.sleep(_POLL_SECONDS)
    if sentence := ready.read_text(encoding="utf-8"):
        raise EmbeddedBrokerError(sentence)


@contextmanager
def _locked(file: Path, how: int) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(file: Path) -> bool:
    try:
        with _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


def main(folder: Path) -> None:
    """Run the broker until its last user has ended."""
    with _locked(folder / "host.lock", fcntl.LOCK_EX):
        if os.fork():
            return  # the lock is the child's, too
        try:
            broker = EmbeddedKafka(folder / _DATA, properties=PROPERTIES).start()
        except CardinalError as error:
            _answer(folder, str(error))
            return
        try:
            _answer(folder, "")
            # Held until this process has ended: a user that acquires it afterwards starts another host.
            fcntl.flock(os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        finally:
            broker.stop()


def _answer(folder: Path, sentence: str) -> None:
    new = folder / "ready.new"
    new.write_text(sentence, encoding="utf-8")
    new.replace(folder / "ready")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
