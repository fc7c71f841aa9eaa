"""A question that many ask at once: who asks while it is under way is answered by the next one, together with others.

An answer is never older than the question: one that was begun before does not count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Answer = TypeVar("_Answer")


class Rounds(Generic[_Answer]):
    """See the module. Used on the event loop.

    Arguments:
        ask: asks once.

    """

    def __init__(self, ask: Callable[[], Awaitable[_Answer]]) -> None:
        self._question = ask
        self._round: asyncio.Task[_Answer] | None = None
        self._next: asyncio.Task[_Answer] | None = None

    async def ask(self) -> _Answer:
        """The answer to a question that is asked after this call; raises what the question does."""
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._ask())
            return await asyncio.shield(self._round)
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._after(self._round))
        return await asyncio.shield(self._next)

    async def _ask(self) -> _Answer:
        return await self._question()

    async def _after(self, before: asyncio.Task[_Answer]) -> _Answer:
        await asyncio.wait({before})
        self._round, self._next = self._next, None
        return await self._question()
