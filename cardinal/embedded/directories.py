"""Where the embedded broker keeps things, and how several processes share a folder.

Rules:

1. The cache (jars, archives, the Java home for Spark) can be deleted at any time; it is fetched or made again.
2. The data folder is the user's: nothing here ever deletes it.
3. A file that others may read appears whole, by a rename within one folder, or not at all.
4. Locks are ``flock`` locks: the kernel drops them when the last process that holds them ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.errors import EmbeddedBrokerError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CACHE_VARIABLE = "CARDINAL_CACHE"
"""The environment variable that moves the cache folder."""


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for what can be fetched or made again; created where it is missing.

    Arguments:
        environ: the environment that may name the folder; this process's where None.

    Raises:
        MissingExtraError: platformdirs is not installed and the environment names no folder.
        EmbeddedBrokerError: the folder cannot be created or written.

    """
    named = (os.environ if environ is None else environ).get(CACHE_VARIABLE)
    folder = Path(named).expanduser() if named else _user_folder("cache")
    return writable(folder, hint=f"set {CACHE_VARIABLE} to a folder that can be written")


def data_folder() -> Path:
    """The default data folder of ``cardinal broker``; not created here.

    Raises:
        MissingExtraError: platformdirs is not installed.

    """
    return _user_folder("data") / "broker"


def writable(folder: Path, *, hint: str) -> Path:
    """``folder`` as an absolute path, created where it is missing.

    Raises:
        EmbeddedBrokerError: it cannot be created or nothing can be written in it; the sentence ends with ``hint``.

    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise EmbeddedBrokerError(f"the folder {folder} cannot be written ({reason}): {hint}") from error
    return folder


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file of UTF-8 text so that a reader sees the old content or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; waits for whoever holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """The descriptor of the lock file ``path``, locked, or None where somebody else holds it. The caller closes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock file ``path``; False where there is no such file.

    Asks by a shared lock, so that two who ask at once do not take each other for a holder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _user_folder(kind: str) -> Path:
    try:
        import platformdirs  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("the embedded Kafka broker", "local") from error
    return platformdirs.user_cache_path("cardinal") if kind == "cache" else platformdirs.user_data_path("cardinal")
