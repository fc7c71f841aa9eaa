"""Source on a daemon thread of its own, for the event loop.

A broker that does not answer must not keep the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from cardinal.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.transports import Source

_Result = TypeVar("_Result")


class SourceThread:
    """A source that is opened, called and closed on its own thread, one call after the other.

    Arguments:
        make: opens the source; retried by the next call where it failed.
        name: of the thread.

    """

    def __init__(self, make: Callable[[], Source], name: str) -> None:
        self._make = make
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[Source], Any]] | None] = SimpleQueue()
        self._stopped = False
        self._closed: Future[None] = Future()
        self._closed.set_running_or_notify_cancel()  # a waiting caller may be cancelled, the call is not
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, call: Callable[[Source], _Result]) -> _Result:
        """Call the source, and wait for the result. Raises errors of the call or of opening the source."""
        if self._stopped:
            raise UnreachableError("the server stops", address="")
        future: Future[_Result] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def close(self) -> Future[None]:
        """Close the source after the call in flight; the future ends then."""
        self._stopped = True
        self._calls.put(None)
        return self._closed

    def _work(self) -> None:
        source: Source | None = None
        try:
            while (item := self._calls.get()) is not None:
                future, call = item
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    source = source or self._make()
                    future.set_result(call(source))
                except BaseException as error:  # noqa: BLE001 - it is raised where the call is waited for
                    future.set_exception(error)
                del item, future, call  # nothing stays in memory while the thread waits
            if source is not None:
                source.close()
        finally:
            self._closed.set_result(None)
