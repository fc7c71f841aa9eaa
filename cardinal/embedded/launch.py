"""Command line of Kafka: Java, its flags, and the jars."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .directories import cache_folder
from .jars import ensure_jars, locked_jars
from .java import Java, find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""JVM flags for a small server with a quick start (facts, kafka.md, Start)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Command that runs Kafka's programs, without the main class and its arguments."""

    java: Java
    command: tuple[str, ...]


def prepare(
    *,
    java: Java | None = None,
    progress: Progress | None = None,
    heap_mb: int = HEAP_MB,
    jars: Sequence[Jar] | None = None,
) -> Launch:
    """Find or fetch Java and the jars.

    Arguments:
        java: the Java to use; None finds one.
        progress: receives the number of fetched bytes of each jar.
        heap_mb: maximum heap of the JVM in MB.
        jars: the jars of another Kafka than this release's.

    Raises:
        JarError, JavaNotFoundError, MissingExtraError: something is missing.
        EmbeddedBrokerError: the cache folder cannot be written.

    """
    java = java or find_java()
    files = ensure_jars(cache_folder(), jars or locked_jars(), progress=progress)
    command = (str(java.executable), *JVM, f"-Xmx{heap_mb}m", "-cp", os.pathsep.join(map(str, files)))
    return Launch(java, command)
