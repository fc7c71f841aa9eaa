"""Asynchronous iterator over updates.

A cancelled call, such as ``asyncio.wait_for(anext(updates), 1)`` after a second, loses nothing: the next call
continues. An asynchronous generator would be finished then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cardinal.protocols.streams.events import ChainUpdate


class Updates:
    """See the module.

    Arguments:
        following: returns the next update, None at the end; its argument is when the previous one was done with.
        clock: seconds.

    """

    def __init__(self, following: Callable[[float], Awaitable[ChainUpdate | None]], clock: Callable[[], float]) -> None:
        self._following = following
        self._clock = clock
        self._since: float | None = clock()

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> ChainUpdate:
        """The next update."""
        self._since = self._clock() if self._since is None else self._since
        update = await self._following(self._since)
        if update is None:
            raise StopAsyncIteration
        self._since = None
        return update
