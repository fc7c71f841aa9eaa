"""What SIGINT and SIGTERM do to a command that runs until it is told to stop: it ends with status 0."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def call_when_told(stop: Callable[[], object]) -> None:
    """From now on both call this, in the main thread."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop())


def exit_when_told() -> None:
    """From now on both end the command wherever it is: what is open is closed on the way."""
    call_when_told(lambda: sys.exit(0))


@contextmanager
def cancelled_when_told(task: asyncio.Task[None] | None = None) -> Iterator[None]:
    """Within, both cancel a task of the running event loop; None: the one that runs. An inner block ends an outer."""
    loop = asyncio.get_running_loop()
    told = task or asyncio.current_task()
    for number in _SIGNALS:
        loop.add_signal_handler(number, told.cancel if told else loop.stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
