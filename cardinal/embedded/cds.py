"""Archives of loaded classes (AppCDS), with which the broker starts in 0.9 s where it takes 1.5 s without.

Rules:

1. An archive is an extra. Without one, or where making one fails, the broker starts all the same; the debug log says
   why.
2. One archive fits one Java, one set of jar files and one set of JVM flags; its name is a digest of them all, because
   a JVM that is given another's archive ignores it in silence, and its own base archive with it.
3. It is never made while somebody waits for a broker. To record the classes of a run costs 0.1 s at most; to make the
   archive of the record takes 4 to 5 s of one core, and pays after eight starts. So only those train who start brokers
   again and again (the pytest fixture), at the end of a run.
4. Its SHA-256 is checked before each use (58 MB, 30 ms): a JVM maps an archive into memory and believes it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .folders import try_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .java import Java

_DUMP_SECONDS = 120
_KEEP = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Archive:
    """The place of the archive for one way of starting the broker; the file may not be there."""

    path: Path

    @property
    def _digest(self) -> Path:
        return self.path.with_suffix(".sha256")

    def is_usable(self) -> bool:
        """Whether the file is there and is the one that was made."""
        try:
            with self.path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            return found == self._digest.read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            _log.debug("no archive of classes: %s", error)
            return False

    def use(self) -> list[str]:
        """The JVM flags that use it; none where it is not usable."""
        return [f"-XX:SharedArchiveFile={self.path}"] if self.is_usable() else []

    def make(self, command: Sequence[str], record: Path) -> bool:
        """Make the archive of a recorded run; takes seconds. Whether it is there now.

        Arguments:
            command: Java with the flags and the class path of the recorded run.
            record: what :func:`recording` wrote in a run that ended in order.

        """
        try:
            self.path.parent.mkdir(exist_ok=True)
            lock = try_lock(self.path.parent / "lock")
            if lock is None:
                _log.debug("another process makes an archive of classes already")
                return False
            try:
                self._make_locked(command, record)
            finally:
                os.close(lock)
        except (OSError, subprocess.SubprocessError) as error:
            _log.debug("no archive of classes could be made: %s", error)
            return False
        return True

    def _make_locked(self, command: Sequence[str], record: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
            made = Path(folder, self.path.name)
            _dump(command, record, made)
            with made.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            # The digest first: between the two renames whatever lies there is refused, and a start goes without.
            write_atomically(self._digest, digest)
            made.replace(self.path)
        self._prune()

    def _prune(self) -> None:
        """Archives of Javas and jars that are gone are never used again: keep the newest few."""
        by_age = sorted(self.path.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[_KEEP:]:
            path.unlink(missing_ok=True)
            path.with_suffix(".sha256").unlink(missing_ok=True)


def archive_for(cache: Path, java: Java, flags: Sequence[str], jars: Sequence[Path]) -> Archive:
    """The archive in the cache for this Java, these JVM flags and these jar files as they are now."""
    digest = hashlib.sha256("\0".join([str(java.home), java.version, *flags]).encode())
    for jar in jars:
        status = jar.stat()  # a JVM compares size and time of each jar with those that the archive was made of
        digest.update(f"\0{jar}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return Archive(cache / "classes" / f"{digest.hexdigest()[:24]}.jsa")


def recording(record: Path) -> list[str]:
    """The JVM flags of a run whose loaded classes are written to ``record``."""
    return [f"-XX:DumpLoadedClassList={record}"]


def _dump(command: Sequence[str], record: Path, made: Path) -> None:
    subprocess.run(  # noqa: S603 - the Java that runs the broker
        [
            command[0],
            "-Xshare:dump",
            f"-XX:SharedClassListFile={record}",
            f"-XX:SharedArchiveFile={made}",
            *command[1:],
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=_DUMP_SECONDS,
    )
