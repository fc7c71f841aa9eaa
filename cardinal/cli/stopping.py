"""Exit status of a command that SIGINT or SIGTERM stops.

A command that runs until it is stopped (`produce`, `record`, `run`, `serve`, `tail`, `status --watch`) ends with 0. Any
other one, and every one that has not begun, ends with 130 or 143. Resources are released in all cases.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def call_on_signals(stop: Callable[[], object]) -> None:
    """Call a function, in the main thread, for both signals."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop())


def exit_on_signals() -> None:
    """End the command with status 0 on both signals, from now on."""
    call_on_signals(lambda: sys.exit(0))


def fail_on_sigterm() -> None:
    """End the command with status 143 on SIGTERM, from now on, as SIGINT does with 130."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextmanager
def cancelled_when_told(task: asyncio.Task[None] | None = None) -> Iterator[None]:
    """Cancel a task of the running event loop on both signals; None: the current one. An inner block ends an outer."""
    loop = asyncio.get_running_loop()
    target = task or asyncio.current_task()
    for number in _SIGNALS:
        loop.add_signal_handler(number, target.cancel if target else loop.stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
