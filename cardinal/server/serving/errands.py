"""Sources for clients that are older than the ring: few, and each for a turn.

Rules:

1. There are never more than so many at once; who comes later waits, in the order of coming.
2. A client that takes nothing gives its turn up when others wait (:mod:`.session` sees to that).
3. A source is used by one call at a time, also when its client has gone in the middle of one: its closing waits, and
   its place is free only after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cardinal.transports import Source


class Errand:
    """A source that is used from the event loop.

    Arguments:
        make: opens it, at the first use.
        pool: the threads that it is used on.

    """

    def __init__(self, make: Callable[[], Source], pool: Threads) -> None:
        self._make = make
        self._pool = pool
        self._lock = threading.Lock()
        self._source: Source | None = None

    async def use(self, call: Callable[[Source], Any]) -> Any:  # noqa: ANN401 - what the call gives
        """Make a call of the source, on another thread."""
        return await self._pool.run(lambda: self._use(call))

    def _use(self, call: Callable[[Source], Any]) -> Any:  # noqa: ANN401 - the same
        with self._lock:
            if self._source is None:
                self._source = self._make()
            return call(self._source)

    def close(self) -> None:
        """Release it, after the call that is under way."""
        with self._lock:
            if self._source is not None:
                self._source.close()


class Errands:
    """See the module.

    Arguments:
        most: how many at once.

    """

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._pool = Threads(most, "cardinal-serve-errand")
        self.under_way = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, make: Callable[[], Source]) -> AsyncIterator[Errand]:
        """A source for a turn, as soon as there is a place."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.under_way += 1
        errand = Errand(make, self._pool)
        try:
            yield errand
        finally:
            # Not awaited: who leaves may be cancelled.
            self._pool.submit(errand.close).add_done_callback(partial(self._closed, asyncio.get_running_loop()))

    async def stop(self) -> None:
        """Wait for those under way; there will be no more."""
        await self._pool.stop()

    def _closed(self, loop: asyncio.AbstractEventLoop, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(self._free)

    def _free(self) -> None:
        self.under_way -= 1
        self._places.release()
