"""Program in which a handler runs: `python -m cardinal_devkit.faultkit.worker REPLIES`.

It imports the handler once, and then forks a process for every session: the handler is opened, receives the updates
after its cursor, and is closed or killed by the script. Requests are lines of JSON on standard input, replies are lines
of JSON on the descriptor ``REPLIES``. It ends when standard input does.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import pprint
import re
import signal
import sys
import sysconfig
import traceback
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cardinal import plugins
from cardinal.handlers import close_handler, load_factory

from .chain import Chain
from .feed import Feed
from .script import Kill, Read, Restart, parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from . import ComparedHandler

FAILED: Final = 3
"""The exit status of a session in which the handler raised; a reply reports the error."""

_LIBRARIES: Final = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES: Final = ("cardinal", "cardinal_devkit", *sorted(plugins.packages()))
_NOWHERE: Final = "\0"
_STATE_WIDTH: Final = 100
_ADDRESS: Final = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")

_chain = lru_cache(8)(Chain)


@lru_cache(None)
def _packages() -> tuple[str, ...]:
    """Folders of Cardinal's packages, which a clone has elsewhere than an installation."""
    specs = [find_spec(name) for name in _PACKAGES]
    return tuple(f"{folder}{os.sep}" for spec in specs if spec for folder in spec.submodule_search_locations or ())


@lru_cache(None)
def _own(file: str, root: str) -> bool:
    """True for the handler's code: its package's, and what is not Python's, Cardinal's or an installed package's."""
    foreign = (*_LIBRARIES, *_packages())
    return Path(file).is_absolute() and (file.startswith(root) or not file.startswith(foreign))


def _root(factory: object) -> str:
    """The folder of a handler's package, or its file: an installed handler, or one of Cardinal's, is tested too."""
    module = sys.modules.get(str(getattr(factory, "__module__", "")).partition(".")[0])
    folders = list(getattr(module, "__path__", ()))
    return f"{folders[0]}{os.sep}" if folders else getattr(module, "__file__", None) or _NOWHERE


class _Trace:
    """Counter of the lines that a handler's code runs; kills the process before one of them."""

    def __init__(self, root: str, reply: Callable[..., None]) -> None:
        self._root = root
        self._reply = reply
        self.count = 0
        self.kill_at: int | None = None

    def __enter__(self) -> None:
        self.count = 0
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def kill(self, **where: object) -> None:
        """Kill this process."""
        self._reply(killed=where)
        os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        del event
        return self._line if _own(frame.f_code.co_filename, self._root) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.count == self.kill_at:
                file = frame.f_code.co_filename
                text = linecache.getline(file, frame.f_lineno).strip()
                self.kill(file=Path(file).name, line=frame.f_lineno, text=text)
        return self._line


class _Session:
    """One process of the handler."""

    def __init__(
        self, task: dict[str, Any], factory: Callable[[Path], ComparedHandler], reply: Callable[..., None]
    ) -> None:
        self._task = task
        self._reply = reply
        self._chain = _chain(task["seed"], task["blocks"], app=task["app"])
        self._trace = _Trace(_root(factory), reply)
        self._handler = factory(Path(task["folder"]))

    def run(self) -> None:
        """Run the script from the task's first step on; at its end, report the state of the running handler."""
        script = parse(self._task["script"], self._chain)
        payloads = self._chain.payloads
        feed = Feed(self._chain.application, (payloads[name].hash for name in script.missing))
        for step in script.steps[: self._task["at"]]:
            for name in step.names if isinstance(step, Read) else ():
                feed.publish(payloads[name])
        cursor = self._handler.cursor()
        text = None if cursor is None else str(cursor)
        feed.open(text)
        self._reply(opened=None if feed.head is None else self._chain.name(feed.head))
        self._deliver(feed)
        for at, step in enumerate(script.steps[self._task["at"] :], self._task["at"] + 1):
            self._reply(step=at)
            match step:
                case Read(names):
                    for name in names:
                        feed.publish(payloads[name])
                    self._deliver(feed)
                case Kill(lines):
                    self._trace.kill_at = lines
                case Restart():
                    break
        if self._trace.kill_at is not None:
            self._trace.kill()
        if not self._task["state"]:
            self.state("running")

    def state(self, name: str = "state") -> None:
        """Report the handler's state, under this name."""
        text = pprint.pformat(self._handler.state(), width=_STATE_WIDTH)
        if shown := _ADDRESS.search(text):
            raise TypeError(f"state() must return plain data, and an object in it reads {shown[0]}")
        self._reply(**{name: text})

    def close(self) -> None:
        """Close the handler, if it has that method."""
        close_handler(self._handler)

    def _deliver(self, feed: Feed) -> None:
        for update in feed.updates():
            removed, added = (
                [self._chain.name(block.hash) for block in side] for side in (update.removed, update.added)
            )
            self._reply(removed=removed, added=added)
            if self._trace.kill_at == 0:
                self._trace.kill(before=True)
            with self._trace:
                self._handler.handle(update)
            self._reply(lines=self._trace.count)
            if self._trace.kill_at is not None:
                self._trace.kill(after=True)


def _fork(task: dict[str, Any], factory: Callable[[Path], ComparedHandler], reply: Callable[..., None]) -> int:
    """Run a session in a process of its own: its exit status, negative where a signal ended it."""
    _chain(task["seed"], task["blocks"], app=task["app"])  # once, for all processes to come
    gc.freeze()  # so that collecting garbage copies nothing that the processes share
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    signal.alarm(task["timeout"])  # unhandled: it ends a session that hangs
    if not task["verbose"]:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    status = 0
    try:
        _run(task, factory, reply)
    except BaseException as error:  # noqa: BLE001 - an error of the handler is the result
        reply(raised=_sentence(error, _root(factory)))
        status = FAILED
    gc.collect()  # close the files of the handler
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking apart what the processes share, which would copy all of it


def _run(task: dict[str, Any], factory: Callable[[Path], ComparedHandler], reply: Callable[..., None]) -> None:
    """One session: the script from its step ``at`` on, and the state where it is requested."""
    session = _Session(task, factory, reply)
    if not task["untouched"]:
        session.run()
    if task["state"]:
        session.state()
    session.close()


def _sentence(error: BaseException, root: str = _NOWHERE) -> str:
    """The error, and the newest line of the handler's own code in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if _own(frame.filename, root)] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


def main(replies: int) -> None:
    """Serve sessions until standard input ends."""

    def reply(**values: object) -> None:
        os.write(replies, (json.dumps(values) + "\n").encode())

    setup = json.loads(sys.stdin.readline())
    sys.path[:] = setup["path"]
    try:
        factory = load_factory(setup["handler"], setup["folder"])
    except Exception as error:  # noqa: BLE001 - any error of the import is reported
        reply(raised=_sentence(error))
        return
    reply(ready=True)
    for line in sys.stdin:
        reply(ended=_fork(json.loads(line), factory, reply))


if __name__ == "__main__":
    main(int(sys.argv[1]))
