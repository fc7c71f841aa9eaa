"""The Go implementation's producer and consumer as child processes, and a Kafka that its client can talk to.

``CARDINAL_INTEROP_GO`` names the program: ``main.go``, built beside the Go implementation.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any, Final

from cardinal.apps import Application
from cardinal.protocols.streams import Payload
from cardinal_devkit.kafka import EmbeddedKafka
from cardinal_devkit.kafka.jars import parse_lock

PROGRAM_VARIABLE: Final = "CARDINAL_INTEROP_GO"
BROKER_RELEASE: Final = "3.9"
"""The Go client speaks versions of Kafka's protocol that 4.0 removed."""
HERE: Final = Path(__file__).parent
DEADLINE: Final = 60.0


class GoUnavailableError(Exception):
    """No Go program is at hand; the text is the reason."""


def program() -> Path:
    """The Go program.

    Raises:
        GoUnavailableError: none is named.

    """
    if named := os.environ.get(PROGRAM_VARIABLE):
        return Path(named)
    raise GoUnavailableError(
        f"{PROGRAM_VARIABLE} names no program: build tests/interop/main.go beside the Go implementation, and name it"
    )


def kafka(data: Path) -> EmbeddedKafka:
    """A broker of the last release that the Go client can talk to; not started."""
    return EmbeddedKafka(data, jars=parse_lock((HERE / "kafka-3.9.1.lock").read_text(encoding="ascii")))


class GoProcess:
    """The Go program with one of its commands: its lines, and its log where it fails."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self._lines: Queue[bytes] = Queue()
        self._reader = Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put(b"")

    def next(self, timeout: float = DEADLINE) -> Any:  # noqa: ANN401 - JSON
        """The next line's value; AssertionError with the end of the log where none comes in time."""
        try:
            line = self._lines.get(timeout=timeout)
        except Empty:
            line = b""
        if not line:
            why = "ended" if self.process.poll() is not None else f"printed nothing for {timeout:g} s"
            raise AssertionError(f"the Go program {why}: {self.log.read_text()[-2000:]}")
        return json.loads(line)

    def send(self, blocks: int) -> None:
        """Let a producer that is ready publish its next blocks."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"%d\n" % blocks)
        self.process.stdin.flush()

    def close(self) -> None:
        """Kill it: nothing of it is of use any more."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Go:
    """Starts producers and consumers of the Go implementation.

    Arguments:
        executable: the program.
        bootstrap: ``host:port`` of the broker; ``url`` is its URL, for either implementation.
        folder: for blocks and logs.

    """

    def __init__(self, executable: Path, bootstrap: str, folder: Path) -> None:
        self._executable = executable
        self.url = f"kafka://{bootstrap}"
        self._folder = folder

    @contextmanager
    def producer(self, app: Application, payloads: Iterable[Payload], *options: str) -> Iterator[GoProcess]:
        """A producer that has read these blocks and connects. It prints ``ready``, then ``sent`` for each ``send``."""
        file = self._folder / f"{app.default_topic}.blocks"
        with file.open("w") as out:
            out.writelines(json.dumps(_described(payload)) + "\n" for payload in payloads)
        schema = json.dumps(app.topics)
        with self._running(
            "produce", "-topic", app.default_topic, "-schema", schema, "-blocks", str(file), *options
        ) as process:
            yield process

    @contextmanager
    def consumer(self, app: Application, after: Payload, *options: str) -> Iterator[GoProcess]:
        """A consumer of all topics that begins after this block. It prints updates, and once ``ready``."""
        at = ["-number", str(after.number), "-hash", after.hash.hex(), "-weight", str(after.weight)]
        with self._running("consume", "-topics", ",".join(app.all_topics), *at, *options) as process:
            yield process

    @contextmanager
    def _running(self, command: str, *options: str) -> Iterator[GoProcess]:
        process = GoProcess([str(self._executable), command, "-broker", self.url, *options], self._folder / "go.log")
        try:
            yield process
        finally:
            process.close()


def _described(payload: Payload) -> dict[str, object]:
    return {
        "number": payload.number,
        "hash": _text(payload.hash),
        "parent": _text(payload.parent),
        "weight": str(payload.weight),
        "updates": _entries(payload.updates),
        "deletes": _paths(payload.deletes),
        "sub_batches": [
            {
                "id": _text(name),
                "path": _path(sub.path),
                "updates": _entries(sub.updates),
                "deletes": _paths(sub.deletes),
            }
            for name, sub in payload.sub_batches.items()
            if sub is not None
        ],
    }


def received(block: dict[str, Any]) -> Payload:
    """A block that the Go consumer printed."""
    return Payload(
        block["number"],
        b64decode(block["hash"]),
        b64decode(block["parent"]),
        int(block["weight"]),
        {_unpath(entry["path"]): b64decode(entry["value"]) for entry in block.get("updates", ())},
        frozenset(map(_unpath, block.get("deletes", ()))),
    )


def _entries(updates: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"path": _path(path), "value": _text(value)} for path, value in updates.items()]


def _paths(deletes: Iterable[str]) -> list[str]:
    return [_path(path) for path in sorted(deletes)]


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _path(path: str) -> str:
    return _text(path.encode(errors="surrogateescape"))


def _unpath(text: str) -> str:
    return b64decode(text).decode(errors="surrogateescape")
