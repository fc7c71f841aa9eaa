"""The command that runs Kafka: Java, its flags, the jars, and the archive of classes where there is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cds import Archive, archive_for, recording
from .folders import cache_folder
from .jars import ensure_jars, locked_jars
from .java import Java, find_java

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .jars import Jar, Progress

HEAP_MB = 512
JVM = (
    "-Xms128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
"""Flags for a small, quick server (facts, kafka.md, Start)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How Kafka's programs are run.

    ``command`` lacks only the main class and its arguments; ``plain`` is the same without an archive; ``record`` is
    the file that the run's classes are recorded in, None where they are not.
    """

    java: Java
    command: tuple[str, ...]
    plain: tuple[str, ...]
    archive: Archive
    record: Path | None

    def train(self) -> None:
        """Make the archive of the run that was recorded, where one was. Only after the run ended in order."""
        if self.record is not None:
            self.archive.make(self.plain, self.record)


def prepare(
    data: Path,
    *,
    java: Java | None,
    progress: Progress | None,
    train: bool,
    heap_mb: int = HEAP_MB,
    jars: Sequence[Jar] | None = None,
) -> Launch:
    """Find, or fetch, all that a start needs.

    Arguments:
        data: the broker's data folder, for the record.
        java: the Java to take; found where None.
        progress: told how many bytes of which jar have arrived, where jars must be fetched.
        train: record the run's classes where there is no archive yet.
        heap_mb: the most that the heap takes, in MB; an archive of classes fits every size.
        jars: the jars of another Kafka than the one that this release runs.

    Raises:
        JarError, JavaNotFoundError, MissingExtraError: something is missing.
        EmbeddedBrokerError: the cache folder cannot be written.

    """
    cache = cache_folder()
    java = java or find_java()
    files = ensure_jars(cache, jars or locked_jars(), progress=progress)
    archive = archive_for(cache, java, JVM, files)
    plain = (str(java.executable), *JVM, f"-Xmx{heap_mb}m", "-cp", os.pathsep.join(map(str, files)))
    flags = archive.use()
    record = data / "classes.list" if train and not flags else None
    if record is not None:
        flags = recording(record)
    return Launch(java, (plain[0], *flags, *plain[1:]), plain, archive, record)
