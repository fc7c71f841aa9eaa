"""Answers that are waited for on another thread, for readers that must not wait themselves."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")


def later(ask: Callable[[], _Answer], name: str) -> Future[_Answer]:
    """Ask on a thread of this name; what it raises is raised where the future is asked."""
    future: Future[_Answer] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        _fill(future, ask)

    # A daemon: a server that does not answer must not keep the process alive.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def now(ask: Callable[[], _Answer]) -> Future[_Answer]:
    """Ask at once, of who answers at once; a future as :func:`later` gives it."""
    future: Future[_Answer] = Future()
    future.set_running_or_notify_cancel()
    _fill(future, ask)
    return future


def mapped(asked: Future[_Answer], change: Callable[[_Answer], _Other]) -> Future[_Other]:
    """A future of what is made of the answer."""
    future: Future[_Other] = Future()
    future.set_running_or_notify_cancel()
    asked.add_done_callback(lambda answered: _fill(future, lambda: change(answered.result())))
    return future


def _fill(future: Future[_Answer], ask: Callable[[], _Answer]) -> None:
    try:
        future.set_result(ask())
    except BaseException as error:  # noqa: BLE001 - it is raised where the future is asked
        future.set_exception(error)
