"""Kafka's jars: listed in a committed lock file, fetched once, verified at every start.

Rules:

1. ``kafka-4.3.1.lock`` lists every jar with coordinates, SHA-256 and size. A jar that differs never runs.
2. A jar enters the cache by a rename after verification; concurrent processes wait for each other.
3. With a complete cache the network is not used, and neither jgo nor its dependencies are imported.
4. A damaged jar in the cache is refetched; a fetched jar that differs from the lock is an error.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from cardinal._directories import exclusive
from cardinal.errors import MissingExtraError
from cardinal_devkit.errors import JarError

LOCK_NAME = "kafka-4.3.1.lock"
_THREADS = 8
_ATTEMPTS = 3
_TIMEOUT_SECONDS = 30
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """Jar in the lock file. ``sha256`` is lower-case hexadecimal, ``size`` in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The file name, unique within the lock."""
        return f"{self.artifact}-{self.version}.jar"


Progress: TypeAlias = Callable[[Jar, int], None]
"""Callback with a jar and the number of its fetched bytes; never called by two threads at once."""

Fetch: TypeAlias = Callable[[Jar, Path, Callable[[int], None]], Path]
"""Fetches a jar into an empty folder and returns the file; reports the bytes of each piece. May raise OSError."""


def parse_lock(text: str) -> tuple[Jar, ...]:
    """Parse a lock file: lines of ``group:artifact:version``, SHA-256 and size, separated by blanks.

    Raises:
        JarError: a line has another form, or two lines name the same file.

    """
    jars: dict[str, Jar] = {}
    for line in text.splitlines():
        try:
            coordinates, sha256, size = line.split()
            group, artifact, version = coordinates.split(":")
            jar = Jar(group, artifact, version, sha256, int(size))
        except ValueError as error:
            raise JarError(f"the lock of Kafka's jars has a line that cannot be read: {line!r}", jar=line) from error
        if jar.name in jars:
            raise JarError(f"the lock of Kafka's jars names {jar.name} twice", jar=jar.name)
        jars[jar.name] = jar
    return tuple(jars.values())


def locked_jars() -> tuple[Jar, ...]:
    """The jars of this release's Kafka."""
    return parse_lock(files("cardinal_devkit.kafka").joinpath(LOCK_NAME).read_text(encoding="ascii"))


def ensure_jars(
    cache: Path, jars: Sequence[Jar], *, progress: Progress | None = None, fetch: Fetch | None = None
) -> tuple[Path, ...]:
    """Return the verified files of the jars, sorted by name; missing or damaged ones are fetched first.

    Arguments:
        cache: the cache folder; must exist.
        jars: the required jars.
        progress: receives the number of fetched bytes of each jar.
        fetch: fetches a jar; default from the public repositories by jgo.

    Raises:
        JarError: a jar cannot be fetched, or differs from the lock.
        MissingExtraError: a jar is missing and jgo is not installed.

    """
    folder = cache / "jars"
    folder.mkdir(exist_ok=True)
    if missing := _missing(folder, jars):
        with exclusive(cache / "jars.lock"):
            # Repeat under the lock: its previous holder may have fetched the same jars.
            if missing := _missing(folder, jars):
                _fetch_all(folder, missing, progress or (lambda *_: None), fetch or _jgo_fetch())
    return tuple(sorted(folder / jar.name for jar in jars))


def _missing(folder: Path, jars: Sequence[Jar]) -> list[Jar]:
    with ThreadPoolExecutor(_THREADS) as pool:  # hashlib releases the interpreter's lock
        return [jar for jar, found in zip(jars, pool.map(partial(_is_there, folder), jars), strict=True) if not found]


def _is_there(folder: Path, jar: Jar) -> bool:
    path = folder / jar.name
    try:
        if path.stat().st_size == jar.size and _sha256(path) == jar.sha256:
            return True
        _log.info("%s in the cache is not the jar that the lock names; it is refetched", path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise JarError(f"{path} cannot be read ({error.strerror}): check its permissions", jar=jar.name) from error
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_all(folder: Path, jars: Sequence[Jar], progress: Progress, fetch: Fetch) -> None:
    reports = threading.Lock()

    def report(jar: Jar, received: int) -> None:
        with reports:
            progress(jar, received)

    for jar in jars:  # all of them first, so that a progress bar has the total size
        report(jar, 0)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        pool = ThreadPoolExecutor(_THREADS)
        try:
            tasks = [
                pool.submit(_fetch_one, folder, jar, Path(temporary), partial(report, jar), fetch)
                for jar in sorted(jars, key=lambda jar: -jar.size)
            ]
            for task in tasks:
                task.result()
        finally:
            # The first failure cancels pending tasks; tasks in flight end by their timeout.
            pool.shutdown(cancel_futures=True)


def _fetch_one(folder: Path, jar: Jar, temporary: Path, report: Callable[[int], None], fetch: Fetch) -> None:
    """Fetch, verify and store one jar. A network failure is retried, a wrong jar is not."""
    for attempt in range(1, _ATTEMPTS + 1):
        place = temporary / f"{jar.name}.{attempt}"
        place.mkdir()
        received = 0

        def add(size: int) -> None:
            nonlocal received
            received += size
            report(received)

        try:
            fetched = fetch(jar, place, add)
            break
        except OSError as error:
            _log.debug("attempt %d at %s: %s", attempt, jar.name, error)
            if attempt == _ATTEMPTS:
                # a cached file that has to be fetched differs from the lock
                damaged = (folder / jar.name).exists()
                what = "is damaged in the cache and could not be fetched again" if damaged else "could not be fetched"
                raise JarError(
                    f"{jar.name} {what}: check the network, which is needed once for Kafka's jars", jar=jar.name
                ) from error
    digest = _sha256(fetched)
    if digest != jar.sha256:
        raise JarError(
            f"{jar.name} was refused: its SHA-256 is {digest[:12]}…, not {jar.sha256[:12]}… as in the lock; check the "
            "repository or proxy that serves it",
            jar=jar.name,
        )
    fetched.replace(folder / jar.name)
    report(jar.size)


def _jgo_fetch() -> Fetch:
    """Fetch function that uses jgo, a resolver of Maven coordinates in pure Python: needs no Java, names no host."""
    try:
        from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("fetching Kafka's jars", "local") from error

    def fetch(jar: Jar, place: Path, add: Callable[[int], None]) -> Path:
        @contextmanager
        def follow(_name: str, _total: int) -> Iterator[Callable[[int], None]]:
            yield add

        context = MavenContext(
            PythonResolver(progress_callback=follow), repo_cache=place, local_repos=[], timeout=_TIMEOUT_SECONDS
        )
        try:
            return Path(context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
        except RuntimeError as error:  # raised by jgo if the repository lacks the file
            raise OSError(str(error)) from error

    return fetch
