"""Exit status of a command that SIGINT or SIGTERM stops.

One that runs until it is stopped (`produce`, `record`, `serve`, `tail`) ends with 0. Any other has not done its work:
130 or 143, as every command before it begins. What is open is closed on the way in all cases.
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


def call_when_told(stop: Callable[[], object]) -> None:
    """From now on both call this, in the main thread."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop())


def exit_when_told() -> None:
    """From now on both end the command with status 0, wherever it is."""
    call_when_told(lambda: sys.exit(0))


def fail_when_told() -> None:
    """From now on SIGTERM ends the command with status 143, as SIGINT does with 130."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


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
