"""Fails a test, or the run, where a password shows up: a pytest plugin that reads everything that the suite writes.

Tests give out passwords, tokens and keys that hold one of :data:`MARKS`; nothing else does. Looked at are

- every log record that is handled, with its traceback, and of Cardinal's own loggers also those that are below the
  level and are shown to nobody else;
- what a test and its fixtures print, as far as pytest captures it;
- every error that ``pytest.raises`` takes, with all that hangs on it: causes, notes, attributes, their ``repr``;
- what child processes print, where a test waits for them with ``communicate`` or ``run``, asyncio's too;
- at the end of the run every file under pytest's temporary folder: logs of brokers and commands, cursors beside data,
  recordings, reports, whatever was written there.

Secrets may stand in files that a test itself wrote (settings, secret files) as long as they hold what it wrote, and in
a broker's ``server.properties`` where that is its owner's alone. A test that has to leak wraps itself in
:func:`leaking`. Marks are looked for as they are, in hexadecimal, percent-encoded and in base64, as in an HTTP header;
in files that gzip, zlib, bzip2 or xz has compressed, and in Avro's blocks, also in what they hold.

Not seen: output that a test reads line by line from a pipe, files outside of pytest's folder, and pages of Parquet.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import logging
import lzma
import os
import stat
import subprocess
import sys
import traceback
import zlib
from asyncio.subprocess import Process
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import fastavro
import pytest
from _pytest._code.code import ExceptionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from types import FrameType

MARKS: Final = ("s3cr3t", "horse-battery", "sesame")
"""What every made-up secret holds: Kafka's and settings' passwords, tokens of the websocket, nodes' keys."""

_TESTS: Final = Path(os.environ.get("CARDINAL_TESTS") or __file__).parent
_CHUNK: Final = 4 << 20
_OVERLAP: Final = 64
_AVRO: Final = b"Obj\x01"
_COMPRESSED: Final[dict[bytes, Callable[[Any], IO[bytes]]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
_ZLIB: Final = (b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_OURS: Final = (
    *("cardinal", "cardinal_devkit", "cardinal_ethereum", "cardinal_ingest", "cardinal_relay", "cardinal_spark"),
)
"""The roots of Cardinal's loggers."""
_FIXED: Final = frozenset({".index", ".timeindex", ".txnindex"})
"""Kafka's indexes: numbers, and ten megabytes of nothing each."""


def _forms(mark: str) -> list[bytes]:
    """Every way in which it is looked for; of base64 what does not depend on what stands before and behind."""
    raw = mark.encode()
    percent = "".join(f"%{byte:02x}" for byte in raw)
    coded = [base64.b64encode(b"." * shift + raw)[-(-shift * 8 // 6) :].rstrip(b"=")[:-1] for shift in range(3)]
    digits = [raw.hex(), raw.hex().upper(), percent, percent.upper()]
    return [raw, *(form.encode() for form in digits), *coded]


FORMS: Final = {form: mark for mark in MARKS for form in _forms(mark)}


def marks_in(text: str | bytes) -> set[str]:
    """The marks that it holds in any form."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return {mark for form, mark in FORMS.items() if form in data}


def contents(path: Path) -> Iterator[bytes]:
    """What a file holds, piece by piece, and what it holds when it is no longer compressed."""
    with path.open("rb") as file:
        begin = file.read(8)
        file.seek(0)
        yield from iter(partial(file.read, _CHUNK), b"")
        file.seek(0)
        with suppress(Exception):  # what is cut off, damaged or no such file after all is over where it stops
            if begin.startswith(_AVRO):
                yield from (block.bytes_.read() for block in fastavro.block_reader(file))
            elif opened := next((opened for magic, opened in _COMPRESSED.items() if begin.startswith(magic)), None):
                yield from iter(partial(opened(file).read, _CHUNK), b"")
            elif begin.startswith(_ZLIB):
                inflate = zlib.decompressobj()
                yield from map(inflate.decompress, iter(partial(file.read, _CHUNK), b""))


def _as_it_is(path: Path) -> tuple[Path, bytes]:
    with path.open("rb") as file:
        return path.resolve(), hashlib.file_digest(file, "blake2b").digest()


class Watch(logging.Handler):
    """What was found since the last look, and the files that tests wrote themselves."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.found: list[str] = []
        self.given: set[tuple[Path, bytes]] = set()
        self.silent = 0

    def look(self, where: str, text: str | bytes) -> None:
        """Look at something that was written."""
        if not self.silent:
            self.found += [f"{where} holds a secret ({mark[:2]}…)" for mark in sorted(marks_in(text))]

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a log record."""
        trace = "".join(traceback.format_exception_only(record.exc_info[1])) if record.exc_info else ""
        self.look(f"the log {record.name}", f"{record.getMessage()} {trace}")

    def error(self, error: BaseException) -> None:
        """Look at an error and at what it came from."""
        seen: set[int] = set()
        chain: list[BaseException | None] = [error]
        while chain:
            one = chain.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            self.look(f"an error {type(one).__name__}", f"{one} {one!r} {one.args!r} {vars(one)!r}")
            chain += [one.__cause__, None if one.__suppress_context__ else one.__context__]

    def take(self) -> list[str]:
        """What was found since the last time."""
        found, self.found = self.found, []
        return list(dict.fromkeys(found))

    def files(self, folder: Path) -> list[str]:
        """The files under a folder that hold what they should not, as sentences."""
        before, self.found = self.found, []
        for path in folder.rglob("*"):
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode) or path.suffix in _FIXED:
                continue
            if path.name == "server.properties" and not state.st_mode & 0o077:
                continue
            self._file(path, f"the file {path.relative_to(folder)}")
        found, self.found = self.take(), before
        return found

    def _file(self, path: Path, where: str) -> None:
        known = len(self.found)
        rest = b""
        for chunk in contents(path):
            self.look(where, rest + chunk)
            rest = chunk[-_OVERLAP:]
        if len(self.found) > known and _as_it_is(path) in self.given:
            del self.found[known:]


WATCH: Final = Watch()
"""One for the process: logging, subprocess and pytest have one each, too."""


@contextmanager
def leaking() -> Iterator[None]:
    """What happens inside is known to leak."""
    WATCH.silent += 1
    try:
        yield
    finally:
        WATCH.silent -= 1


# --- where things are written ------------------------------------------------------------------------------


def _written(write: Callable[..., int]) -> Callable[..., int]:
    """``Path.write_…`` that remembers what tests write: settings and secret files are where secrets belong."""

    def wrapped(self: Path, *args: Any, **options: Any) -> int:  # noqa: ANN401 - as it is
        size = write(self, *args, **options)
        if marks_in(args[0] if args else options["data"]) and _by_a_test(sys._getframe(1)):
            WATCH.given.add(_as_it_is(self))
        return size

    return wrapped


def _moved(move: Callable[..., Path]) -> Callable[..., Path]:
    """``Path.replace`` and ``rename``, after which what a test wrote is elsewhere."""

    def wrapped(self: Path, target: Path | str) -> Path:
        before = self.resolve()
        moved = move(self, target)
        if _by_a_test(sys._getframe(1)):
            WATCH.given |= {(moved.resolve(), digest) for path, digest in WATCH.given if path == before}
        return moved

    return wrapped


def _by_a_test(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(_TESTS)


def _communicated(communicate: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    def wrapped(self: subprocess.Popen[Any], *args: Any, **options: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as it is
        return _looked_at(communicate(self, *args, **options))

    return wrapped


def _awaited(communicate: Callable[..., Coroutine[Any, Any, tuple[Any, Any]]]) -> Callable[..., Any]:
    async def wrapped(self: Process, *args: Any, **options: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as it is
        return _looked_at(await communicate(self, *args, **options))

    return wrapped


def _looked_at(said: tuple[Any, Any]) -> tuple[Any, Any]:
    for name, text in zip(("stdout", "stderr"), said, strict=True):
        WATCH.look(f"{name} of a child process", text or b"")
    return said


def _all_of_ours(logger: type[logging.Logger], patch: pytest.MonkeyPatch) -> None:
    """Have records of Cardinal's loggers made whatever the level; below it nobody gets them but the watch."""
    enabled, call = logger.isEnabledFor, logger.callHandlers

    def is_enabled(self: logging.Logger, level: int) -> bool:
        return self.name.split(".", 1)[0] in _OURS or enabled(self, level)

    def called(self: logging.Logger, record: logging.LogRecord) -> None:
        if enabled(self, record.levelno):
            call(self, record)
        else:
            WATCH.handle(record)

    patch.setattr(logger, "isEnabledFor", is_enabled)
    patch.setattr(logger, "callHandlers", called)


def _filled(fill: Callable[..., None]) -> Callable[..., None]:
    def wrapped(self: ExceptionInfo[BaseException], found: tuple[Any, BaseException, Any]) -> None:
        WATCH.error(found[1])
        fill(self, found)

    return wrapped


def pytest_configure(config: pytest.Config) -> None:
    """Look at everything from now on."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Path, "write_text", _written(Path.write_text))
    patch.setattr(Path, "write_bytes", _written(Path.write_bytes))
    patch.setattr(Path, "replace", _moved(Path.replace))
    patch.setattr(Path, "rename", _moved(Path.rename))
    patch.setattr(subprocess.Popen, "communicate", _communicated(subprocess.Popen.communicate))
    patch.setattr(Process, "communicate", _awaited(Process.communicate))
    _all_of_ours(logging.Logger, patch)
    patch.setattr(ExceptionInfo, "fill_unfilled", _filled(ExceptionInfo.fill_unfilled))
    logging.getLogger().addHandler(WATCH)
    config.add_cleanup(patch.undo)
    config.add_cleanup(lambda: logging.getLogger().removeHandler(WATCH))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that passed and leaked has failed."""
    report = yield
    for title, text in report.sections:
        WATCH.look(title, text)
    if (found := WATCH.take()) and report.outcome == "passed":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid.split('[')[0]}: " + "; ".join(found)
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_secret_in_any_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the end, when everything else has been torn down, every file is looked at."""
    yield
    if found := WATCH.files(tmp_path_factory.getbasetemp()):
        pytest.fail("\n".join(found), pytrace=False)
