"""Blocking calls of sources, for the event loop: each source has a daemon thread of its own.

A process that ends does not wait for these threads: a broker that does not answer must not keep it alive.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cardinal.errors import CardinalError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cardinal.transports import Source

_Answer = TypeVar("_Answer")

_RECORDS_MAX: Final = 10_000


class SourceThread:
    """A source that is opened, called and closed on its own thread, one call after the other.

    Arguments:
        make: opens the source; called again where it failed.
        name: of the thread.

    """

    def __init__(self, make: Callable[[], Source], name: str) -> None:
        self._make = make
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[Source], Any]] | None] = SimpleQueue()
        self._stopped = False
        self._closed: Future[None] = Future()
        self._closed.set_running_or_notify_cancel()  # whoever waits for it may be cancelled, it is not
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, call: Callable[[Source], _Answer]) -> _Answer:
        """Call the source, and wait for what that returns. Raises what it does, or what opening it does."""
        if self._stopped:
            raise UnreachableError("the server stops", address="")
        future: Future[_Answer] = Future()
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


class Shared(Generic[_Answer]):
    """One call for all who wait for the same answer, which is never older than their request.

    Arguments:
        call: the call.

    """

    def __init__(self, call: Callable[[], Awaitable[_Answer]]) -> None:
        self._call = call
        self._lock = asyncio.Lock()
        self._began = 0
        self._requests = 0
        self._answer: _Answer | CardinalError | None = None

    async def get(self) -> _Answer:
        """The answer of a call that begins after this request. Raises what it raises."""
        self._requests = number = self._requests + 1
        async with self._lock:
            if self._began < number:
                began = self._requests
                try:
                    self._answer = await self._call()
                except CardinalError as error:
                    self._answer = error
                self._began = began
            answer = self._answer
        if isinstance(answer, CardinalError):
            raise answer.with_traceback(None)
        return answer  # type: ignore[return-value] # there was a call


class BatchSize:
    """Number of records to poll so that they have about so many bytes: a source counts records alone.

    It begins with one, of any size, and doubles at most.

    Arguments:
        size: bytes.

    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.records = 1

    def update(self, records: int, size: int) -> None:
        """So many records came, of so many bytes in all."""
        if records:
            fitting = self._size * records // max(size, 1)
            self.records = max(1, min(fitting, 2 * self.records, _RECORDS_MAX))
