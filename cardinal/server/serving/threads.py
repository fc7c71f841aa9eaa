"""Calls that wait for somebody else, on a few threads of their own.

Rules:

1. Whoever waits on one kind of call (what is served, the file of tokens) keeps no other kind from being made.
2. No process waits for these threads at its end: a broker that does not answer must not keep it alive.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from cardinal._concurrency import new_future

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")


class Threads:
    """See the module. Used on the event loop.

    Arguments:
        most: how many calls at once.
        name: of the threads.

    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._ends: list[Future[None]] = []

    def submit(self, call: Callable[[], _Answer]) -> Future[_Answer]:
        """Make a call as soon as there is a thread for it."""
        future: Future[_Answer] = Future()
        self._calls.put((future, call))
        if len(self._ends) < self._most:
            self._ends.append(new_future())
            threading.Thread(target=self._work, args=(self._ends[-1],), name=self._name, daemon=True).start()
        return future

    async def run(self, call: Callable[[], _Answer]) -> _Answer:
        """Make a call, and wait for what it gives."""
        return await asyncio.wrap_future(self.submit(call))

    async def stop(self) -> None:
        """Wait until all calls are made; there will be no more."""
        for _ in self._ends:
            self._calls.put(None)
        await asyncio.gather(*map(asyncio.wrap_future, self._ends))

    def _work(self, end: Future[None]) -> None:
        while (next_one := self._calls.get()) is not None:
            future, call = next_one
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is waited for
                future.set_exception(error)
            del next_one, future, call  # nothing is kept while the thread waits
        end.set_result(None)
