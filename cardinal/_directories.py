"""Cache and data folders of this machine's user, with atomic writes and locks between processes.

Rules:

1. The cache (jars, the Java home for Spark) can be deleted at any time; it is recreated.
2. The data folder is the user's and is never deleted.
3. A file is written atomically, by a rename within one folder.
4. Locks are ``flock`` locks: the kernel releases them when the last holder ends or dies.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CACHE_VARIABLE = "CARDINAL_CACHE"
"""The environment variable that moves the cache folder."""


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The cache folder, created if missing.

    Arguments:
        environ: the environment that may name the folder; default this process's.

    Raises:
        MissingExtraError: platformdirs is not installed and the environment names no folder.
        ConfigurationError: the folder cannot be created or written.

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
    """Return ``folder`` as an absolute path, created if missing.

    Raises:
        ConfigurationError: it cannot be created or written; the message ends with ``hint``.

    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"the folder {folder} cannot be written ({reason}): {hint}") from error
    return folder


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file of UTF-8 text; a reader sees the old content or the new one, never a part."""
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
    """Hold the lock file ``path`` while the block runs; waits for the current holder."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Lock the file ``path``; returns its descriptor, for the caller to close, or None if it is locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """True if the file ``path`` is locked; False if it does not exist.

    Tests with a shared lock, so two tests at once do not see each other as a holder.
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
