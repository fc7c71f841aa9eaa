"""Background threads, and futures that cannot be cancelled.

Threads are daemons: a server that does not answer must not keep a process alive at its end, which a
``ThreadPoolExecutor`` would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

Done: TypeAlias = Callable[[BaseException | None], None]
"""Called once, when something has ended: with the error, or None."""

_Result = TypeVar("_Result")


def new_future() -> Future[None]:
    """A future that cannot be cancelled."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def settle(future: Future[None], error: BaseException | None) -> None:
    """End a future with this error, or successfully where it is None."""
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def report(future: Future[None], done: Done) -> None:
    """Call back when a future ends, with its error or None."""
    future.add_done_callback(lambda ended: done(ended.exception()))


def run_in_thread(call: Callable[[], _Result], name: str) -> Future[_Result]:
    """Run a blocking call on a daemon thread of this name; the future has its result or its error."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the future's result
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
