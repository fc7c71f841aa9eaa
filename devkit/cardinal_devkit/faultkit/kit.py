"""Fault kit: runs a handler under scripts of faults, compares states, shrinks failures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from cardinal.errors import ConfigurationError
from cardinal.handlers import Handler
from cardinal.texts import Count

from .chain import Chain
from .script import Script, one_kill, parse, plain, random_script, smaller
from .story import Failure, command, compose, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_WORKER: Final = f"{__package__}.worker"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
_ATTEMPTS: Final = 250
"""Scripts that are tried for shrinking a failure."""


class ComparedHandler(Handler, Protocol):
    """Handler under test: its state is compared."""

    def state(self) -> object:
        """Plain data that depends on the chain only, printed and compared."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a search.

    Attributes:
        seeds: number of scripts, each on a chain of its own.
        first: the seed of the first one.
        blocks: number of the last block of each chain.
        app: ``generated`` or ``evm``, see :class:`Chain`.
        missing: deliver some blocks as MissingPayload.
        timeout: seconds after which a running process is a failure.
        verbose: print the handler's output.

    """

    seeds: int = 30
    first: int = 0
    blocks: int = 12
    app: str = "generated"
    missing: bool = False
    timeout: int = 30
    verbose: bool = False


@dataclass(slots=True)
class Counts:
    """Counters of a search."""

    runs: int = 0
    blocks: int = 0
    reorgs: int = 0
    kills: int = 0
    restarts: int = 0


def find_failure(
    handler: str | Callable[[Path], ComparedHandler], settings: Settings | None = None, *, script: str | None = None
) -> Failure | None:
    """The first failure of a handler, shrunk; None where its state follows the chain in every run.

    Arguments:
        handler: a class or function at the top of a module, or its name: ``package.module:name``, ``file.py:name``.
        settings: see :class:`Settings`.
        script: run only this one, on the chain of the seed ``settings.first``, without shrinking.

    Raises:
        ConfigurationError: the handler cannot be imported, or a setting or the script cannot work.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    with FaultKit(handler, settings) as kit:
        return kit.search() if script is None else kit.play(script)


@dataclass(frozen=True, slots=True)
class _Run:
    """Result of a script: the reports of the processes, and the state or the failure.

    ``running``: the state before the last process, of a handler that stores nothing: it begins anew there, and sees no
    reorg of a backlog.
    """

    script: Script
    events: tuple[dict[str, Any], ...]
    state: str = ""
    running: str | None = None
    reason: str | None = None
    details: tuple[str, ...] = ()


class FaultKit:
    """Search for failures of one handler; see :func:`find_failure` for the arguments.

    Attributes:
        counts: counters of the runs, without those for shrinking.

    """

    def __init__(self, handler: str | Callable[[Path], ComparedHandler], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.handler = handler if isinstance(handler, str) else _name(handler)
        self.counts = Counts()
        self._expected = lru_cache(256)(self._without_faults)
        self._chain = lru_cache(4)(lambda seed: Chain(seed, self.settings.blocks, app=self.settings.app))

    def __enter__(self) -> Self:
        # In memory where possible: a kill loses no written file, and syncing to a disk is slow.
        memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="cardinal-faults-", dir=memory))
        self._workers = _Workers(self.handler)
        try:
            self._workers.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def search(self) -> Failure | None:
        """Run the scripts of all seeds until one fails."""
        return next((failure for _, failure in self.failures() if failure is not None), None)

    def failures(self) -> Iterator[tuple[int, Failure | None]]:
        """Run the scripts of all seeds: each seed with its failure, None where it passed."""
        for seed in range(self.settings.first, self.settings.first + self.settings.seeds):
            chain = self._chain(seed)
            if seed == self.settings.first and (run := self._empty(chain)) is not None:
                yield seed, self._failure(chain, run)
                continue
            for script in self._scripts(chain):
                run = self._checked(script, chain)
                self._count(run)
                if run.reason is not None:
                    yield seed, self._failure(chain, self._shrunk(run, chain))
                    break
            else:
                yield seed, None

    def play(self, script: str) -> Failure | None:
        """Run one script on the chain of the first seed."""
        chain = self._chain(self.settings.first)
        run = self._empty(chain) or self._checked(parse(script, chain), chain)
        self._count(run)
        return None if run.reason is None else self._failure(chain, run)

    def _scripts(self, chain: Chain) -> Iterator[Script]:
        """A random script; the first one is preceded by the final chain alone."""
        final = chain.heaviest()
        if chain.seed == self.settings.first:
            yield plain(final, together=True)
        run = self._expected(chain, plain(final))
        lines = [event["lines"] for event in run.events if "lines" in event]
        source = random.Random(f"faults/{chain.seed}")  # noqa: S311 - repeatable, no secret
        yield random_script(chain, source, lines or [0], missing=self.settings.missing)

    def _empty(self, chain: Chain) -> _Run | None:
        """Failure of a handler whose state after a run equals its initial state, so that states cannot be compared."""
        full = self._expected(chain, plain(chain.heaviest()))
        if full.reason is not None or full.state != self._play(full.script, chain, untouched=True).state:
            return None
        reason = (
            f"the state after {Count(len(full.script.steps), 'block')} is that of a handler without any: "
            "store what handle() is given, and return it from state()"
        )
        return replace(full, reason=reason, details=(f"state      {full.state}",))

    # --- one run -----------------------------------------------------------------------------------------------

    def _without_faults(self, chain: Chain, script: Script) -> _Run:
        return self._play(script, chain)

    def _checked(self, script: Script, chain: Chain) -> _Run:
        """Run a script, and compare the state with that of the final chain alone."""
        final = script.final(chain)
        expected = self._expected(chain, plain(final, script.missing))
        if expected.reason is not None:
            return expected
        run = self._play(script, chain)
        wrong = next((state for state in (run.running, run.state) if state not in {None, expected.state}), None)
        if run.reason is not None or wrong is None:
            return run
        wanted = " ".join(f"{name}?" if name in script.missing else name for name in final)
        if script.faults == 0 and tuple(script.names) == final:
            reason = (
                "two runs without faults over one chain end in different states: "
                "state() may hold nothing but what follows from the chain, however blocks are grouped into updates"
            )
        else:
            reason = "the state is not that of the chain"
        details = (
            f"compare    - the state after a run without faults over {wanted}",
            "           + the state after this run",
            *(f"           {line}" for line in differences(expected.state, wrong, chain)),
        )
        return replace(run, reason=reason, details=details)

    def _play(self, script: Script, chain: Chain, *, untouched: bool = False) -> _Run:
        """Run a script to its end, in one process per kill or restart; the last one reads the state.

        With ``untouched`` no step runs, and the state is that of a new handler.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        task = {
            "seed": chain.seed,
            "blocks": chain.blocks,
            "app": chain.app,
            "folder": str(folder),
            "script": str(script),
            "timeout": self.settings.timeout,
            "verbose": self.settings.verbose,
            "untouched": untouched,
        }
        events: list[dict[str, Any]] = []
        try:
            at, state, running = 0, untouched, None
            while True:
                before = len(events)
                events += self._workers.session(task | {"at": at, "state": state})
                reported = events[before:]
                at = max((event["step"] for event in reported if "step" in event), default=at)
                if (reason := self._wrong(reported)) is not None:
                    return _Run(script, tuple(events), reason=reason)
                if state:
                    found = next(event["state"] for event in reported if "state" in event)
                    begins_anew = any(event.get("opened", "") is None for event in reported)
                    return _Run(script, tuple(events), state=found, running=running if begins_anew else None)
                state = at == len(script.steps) and events[-1]["ended"] == 0
                running = next((event["running"] for event in reported if "running" in event), None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _wrong(self, reported: list[dict[str, Any]]) -> str | None:
        """The failure of a session, None where it is sound."""
        if any("raised" in event for event in reported):
            return "the handler raised an error"
        status = reported[-1]["ended"]
        if status == 0 or any("killed" in event for event in reported):
            return None
        if status == -signal.SIGALRM:
            return f"the handler was not done after {self.settings.timeout} s"
        return f"the handler's process ended with status {status}"

    def _count(self, run: _Run) -> None:
        counts = self.counts
        counts.runs += 1
        counts.blocks += sum(len(event["removed"]) + len(event["added"]) for event in run.events if "added" in event)
        counts.reorgs += sum(bool(event["removed"]) for event in run.events if "added" in event)
        counts.kills += sum("killed" in event for event in run.events)
        counts.restarts += (
            sum("opened" in event for event in run.events) - sum("killed" in event for event in run.events) - 2
        )

    # --- a failure ---------------------------------------------------------------------------------------------

    def _shrunk(self, run: _Run, chain: Chain) -> _Run:
        """The smallest failing run found, with any symptom."""
        if run.script.faults:
            run = self._with_one_kill(run, chain)
        attempts = 0
        tried = {str(run.script)}
        better: _Run | None = run
        while better is not None:
            run, better = better, None
            for script in smaller(run.script, chain):
                if str(script) in tried or not script.final(chain):
                    continue
                tried.add(str(script))
                attempts += 1
                if attempts > _ATTEMPTS:
                    return run
                smaller_run = self._checked(script, chain)
                if smaller_run.reason is not None:
                    better = smaller_run
                    break
        return run

    def _with_one_kill(self, run: _Run, chain: Chain) -> _Run:
        """The shortest run without forks and with one kill that fails; the run itself where there is none."""
        expected = self._expected(chain, plain(chain.heaviest(), run.script.missing))
        lines = [event["lines"] for event in expected.events if "lines" in event]
        for script in one_kill(expected.script, lines):
            shorter = self._checked(script, chain)
            if shorter.reason is not None:
                return shorter
        return run

    def _failure(self, chain: Chain, run: _Run) -> Failure:
        reason = run.reason or ""
        repeat = command(self.handler, chain, run.script)
        return Failure(chain.seed, str(run.script), reason, compose(reason, run.events, run.details, repeat))


class _Workers:
    """Process that forks the handler's sessions."""

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Import the handler.

        Raises:
            ConfigurationError: that is not possible.

        """
        reading, writing = os.pipe()
        arguments = [sys.executable, "-m", _WORKER, str(writing)]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                arguments, stdin=subprocess.PIPE, text=True, pass_fds=(writing,), env=variables
            )
        finally:
            os.close(writing)
        self._replies = os.fdopen(reading, encoding="utf-8")
        first = self._ask({"path": sys.path, "handler": self._handler, "folder": str(Path.cwd())})
        if "raised" in first:
            raise ConfigurationError(
                f"the handler {self._handler} cannot be imported: {first['raised']}", setting="handler"
            )

    def session(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a session; returns all its reports, the last one about its end."""
        reported = [self._ask(task)]
        while "ended" not in reported[-1]:
            reported.append(self._reply())
        return reported

    def stop(self) -> None:
        """End the process. May be called twice."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        self._process.wait()
        self._replies.close()
        self._process = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None:
            raise ConfigurationError("the kit is not open: use it in a with statement")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._replies.readline()
        if not line:
            raise ConfigurationError("the process that runs the handler has ended: see its output", setting="handler")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _name(handler: Callable[[Path], ComparedHandler]) -> str:
    """The name by which another process imports a class or function."""
    name, module = getattr(handler, "__qualname__", "<locals>"), sys.modules.get(getattr(handler, "__module__", ""))
    if module is None or "<" in name:
        raise ConfigurationError(
            f"the handler {handler!r} cannot be imported by another process: define it at the top of a module",
            setting="handler",
        )
    file = getattr(module, "__file__", None)
    if file is None or "." in module.__name__:
        return f"{module.__name__}:{name}"
    return f"{os.path.relpath(file)}:{name}"
