"""Helpers of the command tests: `cardinal …` as processes, and their JSON lines."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

from cardinal.cli.main import main

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from types import TracebackType

DEADLINE = 60.0
COMMAND = (sys.executable, "-c", "from cardinal.cli import main; main()")


def limited(file_bytes: int) -> tuple[str, ...]:
    """The command on a disk that has room for so many bytes of every file.

    The process sets the limit itself: in a copy of the test's process gRPC's handlers may abort.
    """
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, {file_bytes}))"
    return sys.executable, "-c", f"{limit}; {COMMAND[2]}"


class Processes:
    """Commands of ours as child processes, each ended at the end of the block.

    Arguments:
        folder: where their stderr goes.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE)
            if process.stdout:
                process.stdout.close()

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start `cardinal …`; its stderr goes to a file."""
        with self._log(len(self._running)).open("w") as log:
            process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=log, text=True)
        self._running.append(process)
        return process

    def run(self, *args: str) -> tuple[int, str, str]:
        """Run `cardinal …` to its end: exit status, stdout, stderr."""
        return self.end(self.start(*args))

    def end(self, process: subprocess.Popen[str], within: float = DEADLINE) -> tuple[int, str, str]:
        """Wait, at most so many seconds, for the end of one that was started: exit status, stdout, stderr."""
        out, _ = process.communicate(timeout=within)
        return process.returncode, out, self._log(self._running.index(process)).read_text()

    def _log(self, index: int) -> Path:
        return self._folder / f"{index}.err"


def run_here(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run `cardinal …` to its end in this process, which costs no start: exit status, stdout, stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    status = 0
    capfd.readouterr()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["cardinal", *args])
            main()
    except SystemExit as ended:
        status = int(str(ended.code))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return status, *capfd.readouterr()


@asynccontextmanager
async def command(log: Path, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`cardinal …` beside a running event loop, killed at the end of the block; its stderr goes to ``log``."""
    with log.open("w") as stderr:
        process = await asyncio.create_subprocess_exec(*COMMAND, *args, stdout=asyncio.subprocess.PIPE, stderr=stderr)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def fresh_chain_id() -> int:
    """A chain of one test's own: its topics are named after it."""
    return random.SystemRandom().randrange(10**6, 10**9)


def replayed(lines: Iterable[dict[str, Any]]) -> list[str]:
    """The chain that the lines of `cardinal tail --format json` build, checked step by step, their numbers too."""
    chain: list[str] = []
    seq: int | None = None
    for line in lines:
        for block in line["removed"]:
            assert chain.pop() == block["hash"]
        chain += [block["hash"] for block in line["added"]]
        steps = len(line["removed"]) + len(line["added"])
        seq = line["seq"] if seq is None else seq + steps
        assert line["seq"] == seq
    return chain
